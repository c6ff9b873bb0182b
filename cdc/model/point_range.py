"""The range of keys that contains the one `_id` with a given merge key."""

from __future__ import annotations

import base64
import json
from typing import Any

import bson
from bson.binary import Binary
from bson.datetime_ms import DatetimeMS
from bson.errors import BSONError
from bson.int64 import Int64
from bson.objectid import ObjectId

from cdc.errors import UnmappableValue
from cdc.model.merge_key import merge_key
from cdc.model.split import KeyRange

_LONGEST = 2**63
# Of this subtype the bytes repeat their length.
_OLD_BINARY = 2


def point_range(key: str) -> KeyRange | None:
    """Return a range that contains each `_id` with the merge key `key`, and hardly any other.

    Its lower end has the value that the server holds equal to them. The ranges of different keys do
    not overlap. None for a text that is no merge key, for numbers that are not whole or exceed 64
    bits, for documents, booleans and null, and for rare types. The order is that of a collection
    without a default collation.
    """
    try:
        value = _parse(json.loads(key))
        if value is None or merge_key(bson.encode({"_id": value})) != key:
            return None
        upper = _next(value)
    except (LookupError, TypeError, ValueError, RecursionError, BSONError, UnmappableValue):
        return None
    if upper is None:
        return None
    return KeyRange(bson.encode({"_id": value}), bson.encode({"_id": upper}))


def _parse(item: Any) -> Any:
    """Return the value of a parsed key; None if there is none or it is not supported."""
    if isinstance(item, str):
        return item
    if type(item) is int:  # and not a boolean
        return Int64(item) if -_LONGEST <= item < _LONGEST else None
    if not isinstance(item, dict) or len(item) != 1:
        return None
    [(kind, content)] = item.items()
    if kind == "$oid":
        return ObjectId(content)
    if kind == "$date":
        return DatetimeMS(int(content["$numberLong"]))
    if kind == "$binary" and int(content["subType"], 16) != _OLD_BINARY:
        payload = base64.b64decode(content["base64"], validate=True)
        return Binary(payload, int(content["subType"], 16))
    return None


def _next(value: Any) -> Any:
    """Return a value after `value` with few or none between; None if there is no simple one."""
    if isinstance(value, str):
        return value + "\0"
    if isinstance(value, Int64):
        return Int64(value + 1) if value + 1 < _LONGEST else None
    if isinstance(value, ObjectId):
        following = _following(value.binary)
        return None if following is None else ObjectId(following)
    if isinstance(value, DatetimeMS):
        return DatetimeMS(int(value) + 1) if int(value) + 1 < _LONGEST else None
    # The server orders binaries by length, then by subtype, then by content.
    following = _following(bytes(value))
    return None if following is None else Binary(following, value.subtype)


def _following(data: bytes) -> bytes | None:
    """Return the next bytes of the same length; None after the last ones."""
    number = int.from_bytes(data, "big") + 1
    return number.to_bytes(len(data), "big") if number < 256 ** len(data) else None
