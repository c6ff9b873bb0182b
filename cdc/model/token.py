"""Resume tokens, as far as order and time go.

A token's `_data` is the hex of a KeyString that begins with the cluster time: byte 0x82 (the type),
then seconds and increment as big-endian 32-bit numbers. Upper-case hex sorts as the bytes do, so
`_data` itself is the total order of all events: the column `position`. That holds for the tokens of
versions 1 (servers from 4.2) and 2 (from 7.0); version 0 (4.0) has its time at the same place.
Source: jstests and `resume_token.cpp` of the server; tried on 4.2, 5.0 and 6.0.
"""

from __future__ import annotations

import json

from bson.timestamp import Timestamp

from cdc.errors import BadToken
from cdc.model import timestamp

_TIMESTAMP_TYPE = "82"
# A version 1 token of type "high-water mark" behind the time. It sorts before every event of it.
_HIGH_WATER_MARK = "2B0229296E04"


def high_water_mark(time: Timestamp) -> str:
    """The position that lies after every event before `time` and before every event at `time`."""
    return f"{_TIMESTAMP_TYPE}{time.time:08X}{time.inc:08X}{_HIGH_WATER_MARK}"


def behind(time: Timestamp) -> str:
    """The position behind every event at `time` and before any later one: where a document read as
    of `time` stands, which has seen all of those events. It is the next time's high-water mark."""
    return high_water_mark(timestamp.after(time))


def parse(text: str) -> str:
    """The position that a user names: a token's `_data`, or the token as a change stream gives it
    (`{"_data": …}`). Raises BadToken."""
    data = text.strip()
    try:
        if data.startswith("{"):
            data = str(json.loads(data)["_data"])
        time_of(data)
    except (BadToken, ValueError, KeyError) as error:
        raise BadToken(
            "What is given is no resume token.",
            'Write it as {"_data": "82…"}, as 82… alone, or as the position of a row.',
        ) from error
    return data.upper()


def time_of(data: str) -> Timestamp:
    """The cluster time at the head of a token's `_data`. Raises BadToken."""
    try:
        head = bytes.fromhex(data[:18])
    except ValueError as error:
        raise BadToken("A resume token is not hexadecimal.") from error
    if len(head) != 9 or head[0] != 0x82:
        raise BadToken("A resume token does not begin with a cluster time.")
    return Timestamp(int.from_bytes(head[1:5]), int.from_bytes(head[5:9]))
