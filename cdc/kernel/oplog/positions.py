"""Positions of row events, as `cdc.model.resume_token.event_position` writes them.

Only for keys of common types.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from cdc.kernel.bson.elements import REFUSED, next_element
from cdc.kernel.compiled import part
from cdc.kernel.numbers import Bytes, int32, int64
from cdc.model.bson import BINARY, BOOL, DATE, INT32, INT64, NULL, OBJECT_ID, STRING

_HEX = np.frombuffer(b"0123456789ABCDEF", np.uint8)
# After the time: version 1, an event. After the index: no invalidate event; a UUID follows.
_EVENT = np.frombuffer(bytes.fromhex("2B022C0100"), np.uint8)
_UUID = np.frombuffer(bytes.fromhex("6E5A1004"), np.uint8)
_TOKEN, _DOCUMENT, _DOCUMENT_END, _END = 0x82, 70, 0, 4
_NULL, _NUMBER, _STRING, _BINARY, _OBJECT_ID, _BOOL, _DATE = 20, 30, 60, 90, 100, 110, 120
_ZERO: Final = 41
_LONG: Final = 255
# The length of a position besides twice that of its key's value.
ROOM: Final = 160


@part
def write(
    data: Bytes, time: int, index: int, uuid: int, key: int, key_end: int, out: Bytes, to: int
) -> int:
    """Write a position in hex; return the position after it, REFUSED for a rare key.

    Args:
        data: the bytes of the collection's UUID and of the document key.
        time: the 64 bits of the cluster time.
        index: the index in the transaction.
        uuid: where the UUID starts.
        key: where the document key starts.
        key_end: where it ends.
        out: the output. It must have `ROOM` and five times the bytes of the key.
        to: where to write.
    """
    to = _put_bytes(_TOKEN, 1, out, to)
    to = _put_bytes(time, 8, out, to)
    to = _put_hex(_EVENT, 0, len(_EVENT), out, to)
    to = _put_number(index, out, to)
    to = _put_hex(_UUID, 0, len(_UUID), out, to)
    to = _put_hex(data, uuid, 16, out, to)
    to = _put_bytes(_DOCUMENT, 1, out, to)
    at = key + 4
    while at < key_end - 1:
        value, end = next_element(data, at, key_end - 1)
        code = _code(np.int64(data[at])) if value >= 0 else REFUSED
        if code < 0:
            return REFUSED
        to = _put_bytes(code, 1, out, to)
        to = _put_hex(data, at + 1, value - at - 1, out, to)  # the name and a zero byte
        to = _put_value(data, code, value, end, out, to)
        if to < 0:
            return to
        at = end
    return _put_bytes(_DOCUMENT_END << 8 | _END, 2, out, to)


@part
def _code(kind: int) -> int:
    """The first byte of a value of that type in KeyString; REFUSED for a rare type."""
    if kind == OBJECT_ID:
        return _OBJECT_ID
    if kind == STRING:
        return _STRING
    if kind in (INT32, INT64):
        return _NUMBER
    if kind == BINARY:
        return _BINARY
    if kind == DATE:
        return _DATE
    if kind == BOOL:
        return _BOOL
    return _NULL if kind == NULL else REFUSED


@part
def _put_value(data: Bytes, code: int, value: int, end: int, out: Bytes, to: int) -> int:
    if code == _NUMBER:
        number = int32(data, value) if end - value == 4 else int64(data, value)
        return _put_number(number, out, to)
    if code == _BOOL:
        return _put_bytes(code + (data[value] != 0), 1, out, to)
    to = _put_bytes(code, 1, out, to)
    if code == _OBJECT_ID:
        return _put_hex(data, value, 12, out, to)
    if code == _DATE:
        return _put_bytes(int64(data, value) ^ (-(2**63)), 8, out, to)
    if code == _BINARY:
        size = end - value - 5
        if size >= _LONG:
            return REFUSED
        return _put_hex(data, value + 4, 1 + size, out, _put_bytes(size, 1, out, to))
    if code == _STRING:
        for at in range(value + 4, end - 1):
            to = _put_byte(np.int64(data[at]), out, to)
            if data[at] == 0:
                to = _put_bytes(_LONG, 1, out, to)
        return _put_bytes(0, 1, out, to)
    return to


@part
def _put_number(number: int, out: Bytes, to: int) -> int:
    """Write an integer: a byte for its sign and length, then its magnitude, shifted by one bit."""
    if number == -(2**63):
        return REFUSED
    if number == 0:
        return _put_bytes(_ZERO, 1, out, to)
    magnitude = np.uint64(-number if number < 0 else number) << np.uint64(1)
    size = 1
    while size < 8 and magnitude >> np.uint64(8 * size) != 0:
        size += 1
    code, bits = _ZERO + 1 + size, np.int64(magnitude)
    if number < 0:
        code, bits = 2 * _ZERO - code, ~bits
    return _put_bytes(bits, size, out, _put_bytes(code, 1, out, to))


@part
def _put_bytes(number: int, size: int, out: Bytes, to: int) -> int:
    """Write the lowest `size` bytes of a number, the highest first."""
    for place in range(size - 1, -1, -1):
        to = _put_byte((number >> (8 * place)) & 0xFF, out, to)
    return to


@part
def _put_hex(data: Bytes, start: int, count: int, out: Bytes, to: int) -> int:
    for at in range(start, start + count):
        to = _put_byte(np.int64(data[at]), out, to)
    return to


@part
def _put_byte(byte: int, out: Bytes, to: int) -> int:
    out[to], out[to + 1] = _HEX[byte >> 4], _HEX[byte & 15]
    return to + 2
