"""The options of the source: `declared` says which there are; here they are checked and typed."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from cdc.errors import BadOption
from cdc.model import timestamp, token
from cdc.model.excerpt import Excerpt
from cdc.model.selection import Selection
from cdc.model.uri import not_quoting, require_given
from cdc.options.declared import MODES, OPTIONS, Option

__all__ = ["MODES", "OPTIONS", "Option", "nearest", "parse", "table"]

_BY_NAME = {option.name: option for option in OPTIONS}
_TRUTH = {"true": True, "false": False}


def parse(given: Mapping[str, str]) -> dict[str, Any]:
    """All options by name, checked and typed. Names are case-insensitive. Raises BadOption."""
    values = {name.lower(): value for name, value in given.items()}
    unknown = sorted(set(values) - set(_BY_NAME))
    if unknown:
        name = not_quoting(unknown[0])
        raise BadOption(f"There is no option '{name}'.", nearest(name, list(_BY_NAME)))
    parsed = {option.name: _value(option, values.get(option.name)) for option in OPTIONS}
    require_given(parsed["uri"])
    _check_rate(parsed)
    _check_start(parsed["mode"], parsed["start"])
    _check_window(parsed)
    Selection.parse(parsed["collections"]).require_possible()
    Excerpt.of(parsed["filter"], parsed["fields"])
    return parsed


_STARTS = {"timestamp": timestamp.parse, "token": token.parse}


def _check_start(mode: str, start: str | None) -> None:
    if mode in _STARTS and start is None:
        raise BadOption(f"Option 'mode' is {mode}, but 'start' is not set.", "Set 'start'.")
    if mode not in _STARTS and start is not None:
        raise BadOption(
            f"Option 'start' is set, but 'mode' is {mode}.", "Set mode to timestamp or token."
        )
    if start is not None:
        _STARTS[mode](start)


def _check_rate(parsed: Mapping[str, Any]) -> None:
    if parsed["max.mb.per.second"] is not None and parsed["max.cursors"] is None:
        raise BadOption(
            "Option 'max.mb.per.second' is set, but 'max.cursors' is not: of many splits each would"
            " be read at a share of that rate, and only some of them at once.",
            "Set max.cursors to the number of cores that Spark has for the job.",
        )


def _check_window(parsed: Mapping[str, Any]) -> None:
    given = {name: timestamp.parse(parsed[name]) for name in ("from", "to") if parsed[name]}
    if "to" in given and "from" not in given:
        raise BadOption("Option 'to' is set, but 'from' is not.", "Set both.")
    if "to" in given and given["to"] <= given["from"]:
        raise BadOption("Option 'to' is not later than 'from'.", "Correct one of them.")
    for name in ("snapshot.at", "snapshot.from", "snapshot.below"):
        if "from" in given and parsed[name] is not None:
            raise BadOption(f"Options 'from' and '{name}' exclude each other.", "Remove one.")


def table() -> str:
    """The options as a Markdown table, for the README."""
    rows = ["| option | default | meaning |", "| --- | --- | --- |"]
    for option in OPTIONS:
        default = "required" if option.required else _shown(option.default)
        rows.append(f"| `{option.name}` | {default} | {option.says} |")
    return "\n".join(rows)


def _shown(default: Any) -> str:
    if default is None:
        return "–"
    return f"`{str(default).lower()}`"


def nearest(name: str, known: list[str]) -> str:
    """A remedy that names the option that was probably meant."""
    close = difflib.get_close_matches(name, known, n=1)
    return f"Did you mean '{close[0]}'?" if close else f"Known are: {', '.join(sorted(known))}."


def _value(option: Option, text: str | None) -> Any:
    if text is None:
        if option.required:
            raise BadOption(f"Option '{option.name}' is not set.", f"Set it: {option.says}")
        return option.default
    if option.kind is bool:
        if text.lower() not in _TRUTH:
            raise BadOption(
                f"Option '{option.name}' is neither true nor false.", "Set it to one of them."
            )
        return _TRUTH[text.lower()]
    if option.kind is int:
        return _number(option, text)
    if option.choices and text not in option.choices:
        raise BadOption(
            f"Option '{option.name}' cannot be '{text}'.",
            f"Use one of {', '.join(option.choices)}.",
        )
    return text


def _number(option: Option, text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        raise BadOption(
            f"Option '{option.name}' is not a whole number.", "Write it in digits alone."
        ) from None
    if option.least is not None and number < option.least:
        raise BadOption(
            f"Option '{option.name}' is below {option.least}.",
            f"Set it to {option.least} or more.",
        )
    return number
