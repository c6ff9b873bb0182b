"""The options of the source: declared in `declared`, parsed by `parse`."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any

from cdc.errors import BadOption
from cdc.model import quotable_name
from cdc.options.declared import OPTIONS, SourceOptions
from cdc.options.mistakes import Mistakes
from cdc.options.option import Option
from cdc.options.other_names import current_names, split_starting_position

_BY_NAME = {option.name: option for option in OPTIONS}
_OTHER_NAMES = {alias.lower(): option.name for option in OPTIONS for alias in option.aliases}
# Durations, and the units of options.
_MILLISECONDS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"\s*(\d{1,12})\s*(ms|s|m|h|d)\s*")
_NAMES = {"ms": "milliseconds", "s": "seconds"}

_TRUTH = {"true": True, "false": False}


def parse(given: Mapping[str, str]) -> SourceOptions:
    """Check the options of a source and convert them to their types.

    Names are case-insensitive. Raises BadOption, which reports all options that are unknown or
    malformed, or BadToken for a malformed token.
    """
    values, mistakes = canonical(given), Mistakes()
    for unknown in sorted(set(values) - set(_BY_NAME)):
        name = quotable_name(unknown)
        known = nearest(name, list(_BY_NAME))
        mistakes.add(BadOption(f"There is no option '{name}'.", known), name)
    parsed = {
        option.attribute: mistakes.check(option.name, _parse_value, option, values.get(option.name))
        for option in OPTIONS
    }
    mistakes.require_none()
    return SourceOptions(**parsed)


def canonical(given: Mapping[str, str]) -> dict[str, str]:
    """Return options of the source by the names that are declared, in lower case.

    An unknown name stays. Raises BadOption if an option is given by two names.
    """
    values = current_names({name.lower(): value for name, value in given.items()}, _OTHER_NAMES)
    return split_starting_position(values)


def table() -> str:
    """Return the options as a Markdown table, for the documents."""
    rows = ["| option | default | meaning |", "| --- | --- | --- |"]
    for option in OPTIONS:
        default = "required" if option.required else _format_default(option.default)
        rows.append(f"| `{option.name}` | {default} | {_describe(option)} |")
    return "\n".join(rows)


def _describe(option: Option) -> str:
    duration = [explain_duration(option.unit)] if option.unit else []
    others = [f"Another name is `{name}`." for name in option.aliases]
    return " ".join([option.description, *duration, *others])


def _format_default(default: Any) -> str:
    if default is None:
        return "–"
    return f"`{str(default).lower()}`"


def nearest(name: str, known: list[str]) -> str:
    """Return a remedy that names the most similar known option, or all of them."""
    close = difflib.get_close_matches(name, known, n=1)
    return f"Did you mean '{close[0]}'?" if close else f"Known options: {', '.join(sorted(known))}."


def _parse_value(option: Option, text: str | None) -> Any:
    if text is None:
        if option.required:
            raise BadOption(f"Option '{option.name}' is not set.", f"Set it: {option.description}")
        return option.default
    if option.kind is bool:
        if text.lower() not in _TRUTH:
            raise BadOption(
                f"Option '{option.name}' is neither true nor false.", "Set it to true or false."
            )
        return _TRUTH[text.lower()]
    if option.kind in (int, float):
        return _parse_number(option, text)
    if option.choices and text not in option.choices:
        raise BadOption(
            f"Option '{option.name}' cannot be '{text}'.",
            f"Use one of {', '.join(option.choices)}.",
        )
    return text


def _parse_number(option: Option, text: str) -> int | float:
    if option.unit:
        text = expand_duration(option.name, text, option.unit)
    try:
        number: int | float = option.kind(text)
    except ValueError:
        expected = "is not a whole number" if option.kind is int else "is not a number"
        remedy = "Write it like 30s or 5m." if option.unit else "Write it in digits only."
        raise BadOption(f"Option '{option.name}' {expected}.", remedy) from None
    if option.least is not None and not number >= option.least:
        raise BadOption(
            f"Option '{option.name}' is below {option.least}.",
            f"Set it to {option.least} or more.",
        )
    if option.most is not None and not number <= option.most:
        raise BadOption(
            f"Option '{option.name}' is above {option.most}.", f"Set it to {option.most} or less."
        )
    return number


def expand_duration(name: str, text: str, unit: str) -> str:
    """Return a duration such as `5m` as the text of a number of `unit`, and any other text as is.

    Args:
        name: The name of the option, for errors.
        text: The value of the option.
        unit: "s" or "ms".

    Raises BadOption if the duration is not a whole number of `unit`.
    """
    found = _DURATION.fullmatch(text)
    if found is None:
        return text
    number, rest = divmod(int(found[1]) * _MILLISECONDS[found[2]], _MILLISECONDS[unit])
    if rest:
        raise BadOption(
            f"Option '{name}' cannot be '{text}': it counts whole {_NAMES[unit]}.",
            "Write it like 30s or 5m.",
        )
    return str(number)


def explain_duration(unit: str) -> str:
    """Return the sentence of the documents on values of such an option."""
    return f"A duration like `30s` or `5m`; a number alone is in {_NAMES[unit]}."
