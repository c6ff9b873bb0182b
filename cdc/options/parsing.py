"""The options of the source: declared in `declared`, parsed by `parse`."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from cdc.errors import BadOption
from cdc.model import quotable_name
from cdc.options.declared import OPTIONS, SourceOptions
from cdc.options.option import Option

_BY_NAME = {option.name: option for option in OPTIONS}
_TRUTH = {"true": True, "false": False}


def parse(given: Mapping[str, str]) -> SourceOptions:
    """Check the options of a source and convert them to their types.

    Names are case-insensitive. Raises BadOption, or BadToken for a malformed token.
    """
    values = {name.lower(): value for name, value in given.items()}
    unknown = sorted(set(values) - set(_BY_NAME))
    if unknown:
        name = quotable_name(unknown[0])
        raise BadOption(f"There is no option '{name}'.", nearest(name, list(_BY_NAME)))
    return SourceOptions(
        **{option.attribute: _parse_value(option, values.get(option.name)) for option in OPTIONS}
    )


def table() -> str:
    """Return the options as a Markdown table, for the README."""
    rows = ["| option | default | meaning |", "| --- | --- | --- |"]
    for option in OPTIONS:
        default = "required" if option.required else _format_default(option.default)
        rows.append(f"| `{option.name}` | {default} | {option.description} |")
    return "\n".join(rows)


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
    if option.kind is int:
        return _parse_number(option, text)
    if option.choices and text not in option.choices:
        raise BadOption(
            f"Option '{option.name}' cannot be '{text}'.",
            f"Use one of {', '.join(option.choices)}.",
        )
    return text


def _parse_number(option: Option, text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        raise BadOption(
            f"Option '{option.name}' is not a whole number.", "Write it in digits only."
        ) from None
    if option.least is not None and number < option.least:
        raise BadOption(
            f"Option '{option.name}' is below {option.least}.",
            f"Set it to {option.least} or more.",
        )
    return number
