"""Fields of a document located in its bytes; embedded documents are not parsed."""

from __future__ import annotations

import numpy as np

from cdc.kernel.compiled import part
from cdc.kernel.numbers import Bytes, int32
from cdc.model.bson import (
    ARRAY,
    BINARY,
    BOOL,
    DATE,
    DECIMAL128,
    DOCUMENT,
    DOUBLE,
    INT32,
    INT64,
    NULL,
    OBJECT_ID,
    STRING,
    TIMESTAMP,
)

Numbers = np.ndarray[tuple[int], np.dtype[np.int64]]

REFUSED = -1
_VARIABLE, _RARE = -1, -2
_SIZES = np.full(256, _RARE, np.int64)
for _kind, _size in {DOUBLE: 8, OBJECT_ID: 12, BOOL: 1, DATE: 8, NULL: 0, INT32: 4}.items():
    _SIZES[_kind] = _size
for _kind, _size in {INT64: 8, DECIMAL128: 16, TIMESTAMP: 8}.items():
    _SIZES[_kind] = _size
for _kind in (STRING, DOCUMENT, ARRAY, BINARY):
    _SIZES[_kind] = _VARIABLE


@part
def size_of(kind: int, data: Bytes, at: int, end: int) -> int:
    """Bytes of the value at `at`; negative if it would exceed `end` or is of a rare type."""
    size = _SIZES[kind]
    if size == _VARIABLE:
        size = _variable_size(kind, data, at, end)
    return size if at + size <= end else REFUSED


@part
def _variable_size(kind: int, data: Bytes, at: int, end: int) -> int:
    if at + 4 > end:
        return REFUSED
    length = int32(data, at)
    if kind == BINARY:
        return 5 + length if length >= 0 else REFUSED
    size = 4 + length if kind == STRING else length
    if size < 5 or at + size > end or data[at + size - 1] != 0:
        return REFUSED
    return size


@part
def is_framed(data: Bytes, start: int, stop: int) -> bool:
    """Whether the first four bytes and the last byte are those of a document of this size."""
    return stop - start >= 5 and _variable_size(DOCUMENT, data, start, stop) == stop - start


@part
def next_element(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """The start and end of the value of the element at `at`; REFUSED if it is invalid."""
    value = at + 1
    while value < end and data[np.uint64(value)] != 0:
        value += 1
    if value >= end:
        return REFUSED, REFUSED
    size = size_of(np.int64(data[at]), data, value + 1, end)
    return (value + 1, value + 1 + size) if size >= 0 else (REFUSED, REFUSED)


@part
def documents(data: Bytes, start: int, stop: int, starts: Numbers, stops: Numbers) -> int:
    """Locate the documents of the array that fills those bytes; return their number.

    The result is negative if the array contains anything else, or more documents than fit in
    `starts`.
    """
    count, at = 0, start + 4
    if not is_framed(data, start, stop):
        return REFUSED
    while at < stop - 1:
        value, end = next_element(data, at, stop - 1)
        if value < 0 or data[at] != DOCUMENT or count == len(starts):
            return REFUSED
        starts[count], stops[count] = value, end
        at = end
        count += 1
    return count


@part
def find(data: Bytes, start: int, stop: int, name: Bytes) -> tuple[int, int, int]:
    """The first field of that name: the start of its element, the start and end of its value.

    All are negative if there is no such field, or if any field of the document is invalid.
    """
    found, found_value, found_end = REFUSED, REFUSED, REFUSED
    if not is_framed(data, start, stop):
        return REFUSED, REFUSED, REFUSED
    at = start + 4
    while at < stop - 1:
        value, end = next_element(data, at, stop - 1)
        if value < 0:
            return REFUSED, REFUSED, REFUSED
        if found < 0 and is_named(data, at, value, name):
            found, found_value, found_end = at, value, end
        at = end
    return found, found_value, found_end


@part
def is_named(data: Bytes, at: int, value: int, name: Bytes) -> bool:
    """Whether the element at `at`, whose value begins at `value`, has that name."""
    if value - at != len(name) + 2:
        return False
    same = 0
    while same < len(name) and data[at + 1 + same] == name[same]:
        same += 1
    return same == len(name)


@part
def is_only(start: int, stop: int, at: int, end: int) -> bool:
    """Whether an element from `at` to `end` is the only one of its document."""
    return at == start + 4 and end == stop - 1
