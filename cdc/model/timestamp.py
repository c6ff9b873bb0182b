"""Cluster time: arithmetic, text, and the neighbours of a time.

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
    """`t:i`. Does not sort as text."""
    return f"{time.time}:{time.inc}"


def parse(value: str) -> Timestamp:
    """A cluster time from `t:i`, or from ISO-8601 (a time without zone is UTC).

    ISO-8601 gives increment 0, which lies before every event of that second; fractions of a second
    are cut off, so that no event at or after the given moment is left out.
    Raises BadToken.
    """
    seconds, colon, increment = value.partition(":")
    if colon and seconds.isdecimal() and increment.isdecimal():
        # By length first: Python refuses to convert thousands of digits with an error of its own.
        fits = max(len(seconds), len(increment)) <= len(str(_MAX))
        if fits and int(seconds) <= _MAX and int(increment) <= _MAX:
            return Timestamp(int(seconds), int(increment))
        raise BadToken(f"'{value}' is no cluster time: both numbers are 32 bits.")
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
        raise BadToken(f"'{value}' lies outside of what a cluster time can express.")
    return Timestamp(whole, 0)


def after(time: Timestamp) -> Timestamp:
    """The least time above `time`."""
    if time.inc < _MAX:
        return Timestamp(time.time, time.inc + 1)
    return Timestamp(time.time + 1, 0)


def before(time: Timestamp) -> Timestamp:
    """The greatest time below `time`: a read of everything *after* it includes `time` itself.

    Before 0:0, at which nothing ever happened, comes 0:0.
    """
    if time.inc:
        return Timestamp(time.time, time.inc - 1)
    return Timestamp(time.time - 1, _MAX) if time.time else time
