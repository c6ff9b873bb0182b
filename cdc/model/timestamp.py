"""Cluster time: its text, and the next and the previous time.

A cluster time is a `bson.Timestamp` (seconds `t`, increment `i`, both unsigned 32 bits), totally
ordered. Its text is `"t:i"`, the form used in offsets, table metadata and on the command line.
"""

from __future__ import annotations

from datetime import UTC, datetime

from bson.timestamp import Timestamp

from cdc.errors import BadToken

__all__ = ["Timestamp", "after", "before", "parse", "text"]

_MAX = 2**32 - 1


def text(time: Timestamp) -> str:
    """The text `t:i`. Its text order is not the order of times."""
    return f"{time.time}:{time.inc}"


def parse(value: str) -> Timestamp:
    """Parse a cluster time from `t:i` or from ISO-8601 (a time without zone is UTC).

    ISO-8601 gives increment 0, which is before every event of that second. Fractions of a second
    are cut off, so no event at or after the given moment is left out.
    Raises BadToken for other text, and for a time that does not fit into 32 bits.
    """
    seconds, colon, increment = value.partition(":")
    if colon and seconds.isdecimal() and increment.isdecimal():
        # Check the length first: Python raises its own error for thousands of digits.
        fits = max(len(seconds), len(increment)) <= len(str(_MAX))
        if fits and int(seconds) <= _MAX and int(increment) <= _MAX:
            return Timestamp(int(seconds), int(increment))
        raise BadToken(f"'{value}' is no cluster time: both numbers must fit into 32 bits.")
    try:
        moment = datetime.fromisoformat(value)
    except ValueError as error:
        raise BadToken(
            f"'{value}' is neither a time in ISO-8601 nor a cluster time.",
            "Write it as 2026-01-31T12:00:00Z or as seconds:increment.",
        ) from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    whole = int(moment.timestamp() // 1)
    if not 0 < whole <= _MAX:
        raise BadToken(f"'{value}' is outside the range of a cluster time.")
    return Timestamp(whole, 0)


def after(time: Timestamp) -> Timestamp:
    """The smallest time after `time`."""
    if time.inc < _MAX:
        return Timestamp(time.time, time.inc + 1)
    return Timestamp(time.time + 1, 0)


def before(time: Timestamp) -> Timestamp:
    """The greatest time before `time`. A read of everything after the result includes `time`.

    For 0:0 the result is 0:0; no event has that time.
    """
    if time.inc:
        return Timestamp(time.time, time.inc - 1)
    return Timestamp(time.time - 1, _MAX) if time.time else time
