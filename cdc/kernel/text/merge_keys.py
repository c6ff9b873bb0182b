"""Text of `key` and `document_key` for the common types of `_id`, as `cdc.model.merge_key` writes
it."""

from __future__ import annotations

from typing import Final

import numpy as np

from cdc.kernel.bson.elements import REFUSED, find, is_only
from cdc.kernel.compiled import part
from cdc.kernel.numbers import Bytes, copy, int32, int64, is_text, put, put_digits
from cdc.kernel.text.json_values import put_base64, put_object_id, put_quoted
from cdc.model.bson import BINARY, INT32, INT64, OBJECT_ID, STRING

_ID = np.frombuffer(b"_id", np.uint8)
_BEGIN = np.frombuffer(b'{"_id":', np.uint8)
_INT = np.frombuffer(b'{"$numberInt":"', np.uint8)
_LONG = np.frombuffer(b'{"$numberLong":"', np.uint8)
_END = np.frombuffer(b'"}', np.uint8)
_QUOTE, _BACKSLASH, _SPACE, _BRACE = 0x22, 0x5C, 0x20, 0x7D
# `put_base64` refuses binaries of this subtype.
_OLD_BINARY: Final = 2
# Room for the text around an `_id` of any type, and for a number.
ROOM: Final = 64


@part
def locate(data: Bytes, start: int, stop: int, alone: bool) -> int:
    """The start of the `_id` element in a document; REFUSED if its type is rare.

    With `alone`, also REFUSED if it is not the only field.
    """
    at, value, end = find(data, start, stop, _ID)
    if at < 0 or (alone and not is_only(start, stop, at, end)):
        return REFUSED
    kind = data[at]
    if kind == STRING:
        return at if _is_plain(data, value + 4, end - 1) else REFUSED
    if kind == BINARY:
        return at if data[value + 4] != _OLD_BINARY else REFUSED
    return at if kind in (OBJECT_ID, INT32, INT64) else REFUSED


@part
def _is_plain(data: Bytes, start: int, stop: int) -> bool:
    """Whether JSON writes the text without escapes."""
    for at in range(start, stop):
        if data[at] < _SPACE or data[at] == _QUOTE or data[at] == _BACKSLASH:
            return False
    return is_text(data, start, stop)


@part
def room(data: Bytes, at: int) -> int:
    """The maximum size of each of the two texts in bytes."""
    if data[at] == STRING:
        return ROOM + int32(data, at + 5)
    # Base64 has four characters for three bytes.
    return ROOM + (2 * int32(data, at + 5) if data[at] == BINARY else 0)


@part
def write_key(data: Bytes, at: int, out: Bytes, place: int) -> int:
    """Write the merge key of the `_id` element at `at`; return the position after it."""
    kind, value = data[at], at + 5
    if kind == INT32:
        return put_digits(out, place, int32(data, value))
    if kind == INT64:
        return put_digits(out, place, int64(data, value))
    return _write_text(data, kind, value, out, place)


@part
def write_document_key(data: Bytes, at: int, out: Bytes, place: int) -> int:
    """Write canonical Extended JSON of `{_id: …}`; return the position after it."""
    kind, value = data[at], at + 5
    place = copy(_BEGIN, 0, len(_BEGIN), out, place)
    if kind == INT32:
        place = copy(_INT, 0, len(_INT), out, place)
        place = copy(_END, 0, 2, out, put_digits(out, place, int32(data, value)))
    elif kind == INT64:
        place = copy(_LONG, 0, len(_LONG), out, place)
        place = copy(_END, 0, 2, out, put_digits(out, place, int64(data, value)))
    else:
        place = _write_text(data, kind, value, out, place)
    return put(out, place, _BRACE, 1)


@part
def _write_text(data: Bytes, kind: int, value: int, out: Bytes, place: int) -> int:
    if kind == OBJECT_ID:
        return put_object_id(data, value, out, place)
    if kind == BINARY:
        return put_base64(data, value + 5, value + 5 + int32(data, value), out, place)
    return put_quoted(data, value + 4, value + 3 + int32(data, value), out, place)
