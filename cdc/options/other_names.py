"""Other names of options: those of similar tools, and those of the release before."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TypeVar

from cdc.errors import BadOption, CdcError
from cdc.model import timestamp

_log = logging.getLogger(__name__)
T = TypeVar("T")
# One option for `mode` and `start`, as Spark's own sources have it.
STARTING_POSITION = "startingPosition"
_WITHOUT_START = ("initial", "snapshot", "latest", "earliest")


def current_names(
    given: Mapping[str, T], others: Mapping[str, str], are_old: bool = False
) -> dict[str, T]:
    """Return options by their current names.

    Args:
        given: The options.
        others: The current name of each other name.
        are_old: Whether the other names end with this release; their use is logged.

    Raises BadOption if an option is given by two names.
    """
    named = dict[str, T]()
    for name, value in given.items():
        current = others.get(name, name)
        if current != name and current in given:
            raise BadOption(
                f"Options '{name}' and '{current}' are the same option.", f"Remove '{name}'."
            )
        if current in named:
            raise BadOption(f"Option '{current}' is set by two other names.", "Remove one.")
        if current != name and are_old:
            _log.warning("option '%s' is '%s' now; the next release refuses it", name, current)
        named[current] = value
    return named


def split_starting_position(given: Mapping[str, str]) -> dict[str, str]:
    """Return options with `mode` and `start` in place of `startingPosition`.

    Its value is a mode that needs no start, a time, or else a token. Raises BadOption if `mode` or
    `start` is set too.
    """
    options = dict(given)
    position = options.pop(STARTING_POSITION.lower(), None)
    if position is None:
        return options
    for name in ("mode", "start"):
        if name in options:
            raise BadOption(
                f"Options '{STARTING_POSITION}' and '{name}' exclude each other.", "Remove one."
            )
    if position in _WITHOUT_START:
        return {**options, "mode": position}
    mode = "timestamp" if _is_time(position) else "token"
    return {**options, "mode": mode, "start": position}


def _is_time(text: str) -> bool:
    try:
        timestamp.parse(text)
    except CdcError:
        return False
    return True
