"""Reader of VARIANT bytes with the checks of `cdc.model.encoding.variant_bytes`.

A value is given by its start and its end; a negative start means that there is no value.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from cdc.kernel.bson.elements import REFUSED
from cdc.kernel.compiled import hot, part
from cdc.kernel.numbers import Bytes
from cdc.model.encoding import ARRAY, BINARY, OBJECT, PRIMITIVE, SHORT_STRING, STRING
from cdc.model.encoding import SIZES as _SIZES_OF
from cdc.model.encoding import UTF16 as _UTF16_OF

Numbers = np.ndarray[tuple[int], np.dtype[np.int64]]
Table = np.ndarray[tuple[int, int], np.dtype[np.int64]]

_SIZES, UTF16 = np.array(_SIZES_OF, np.int64), np.frombuffer(_UTF16_OF, np.uint8).astype(np.int64)

# Columns of a table of dictionaries: the number of names, the position of the offsets, their width,
# and the position of the first name.
NAMES: Final = 0
OFFSETS: Final = 1
WIDTH: Final = 2
FIRST: Final = 3
DICTIONARY: Final = 4


@hot
def number(data: Bytes, at: int, width: int) -> int:
    if width == 1:
        return np.int64(data[np.uint64(at)])
    if width == 2:
        return np.int64(data[np.uint64(at)]) | np.int64(data[np.uint64(at + 1)]) << 8
    found = np.int64(0)
    for index in range(width):
        found |= np.int64(data[np.uint64(at + index)]) << (8 * index)
    return found


@part
def width_of(largest: int) -> int:
    return 1 if largest < 1 << 8 else 2 if largest < 1 << 16 else 3 if largest < 1 << 24 else 4


@part
def count_width(count: int) -> int:
    return 4 if count > 255 else 1


@part
def dictionary(metadata: Bytes, start: int, stop: int, out: Table, row: int) -> None:
    """Read a dictionary into that row of `out`; its number of names is REFUSED if it is damaged."""
    out[row, NAMES] = REFUSED
    if start < 0 or start >= stop or metadata[start] & 15 != 1:
        return
    width = (np.int64(metadata[start]) >> 6) + 1
    if start + 1 + 2 * width > stop:
        return
    count = number(metadata, start + 1, width)
    offsets = start + 1 + width
    first = offsets + (count + 1) * width
    if first > stop or number(metadata, offsets, width) != 0:
        return
    last = 0
    for index in range(1, count + 1):
        end = number(metadata, offsets + index * width, width)
        if end < last:
            return
        last = end
    if first + last > stop:
        return
    out[row, OFFSETS], out[row, WIDTH], out[row, FIRST] = offsets, width, first
    out[row, NAMES] = count


@hot
def name_of(metadata: Bytes, names: Table, row: int, id: int) -> tuple[int, int]:
    """The start and end of the name with that id, which must be in the dictionary."""
    at, width = names[row, OFFSETS] + id * names[row, WIDTH], names[row, WIDTH]
    first = names[row, FIRST]
    return first + number(metadata, at, width), first + number(metadata, at + width, width)


@hot
def compare(
    one: Bytes, start: int, stop: int, other: Bytes, other_start: int, other_stop: int
) -> int:
    """Negative, 0 or positive if the first name is before, equal to or after the other.

    The order is that of UTF-16 units.
    """
    length = min(stop - start, other_stop - other_start)
    for index in range(length):
        a, b = one[np.uint64(start + index)], other[np.uint64(other_start + index)]
        if a != b:
            return UTF16[a] - UTF16[b]
    return (stop - start) - (other_stop - other_start)


@hot
def stop_of(data: Bytes, at: int, end: int) -> int:
    """The end of the value that begins at `at`; REFUSED if it would be after `end`."""
    if at >= end:
        return REFUSED
    basic, kind = np.int64(data[np.uint64(at)]) & 3, np.int64(data[np.uint64(at)]) >> 2
    if basic == SHORT_STRING:
        stop = at + 1 + kind
    elif basic == PRIMITIVE:
        if kind >= len(_SIZES):
            return REFUSED
        stop = at + _SIZES[kind]
        if kind in (BINARY, STRING) and stop <= end:
            stop += number(data, at + 1, 4)
    else:
        count, _, _, offsets, width, begin = layout(data, at, end)
        if count < 0:
            return REFUSED
        stop = begin + number(data, offsets + count * width, width)
    return stop if stop <= end else REFUSED


@hot
def layout(data: Bytes, at: int, end: int) -> tuple[int, int, int, int, int, int]:
    """The layout of an object or array, as six numbers.

    They are its number of values, the position of the ids of names and the width of an id, the
    position of the offsets and the width of an offset, and the position of the values. The first is
    REFUSED if the values would begin after `end`.
    """
    header = np.int64(data[at])
    is_object = header & 3 == OBJECT
    is_large = header >> (6 if is_object else 4) & 1
    ids = at + (5 if is_large else 2)
    if ids > end:
        return REFUSED, 0, 0, 0, 0, 0
    count = number(data, at + 1, ids - at - 1)
    id_width = (header >> 4 & 3) + 1 if is_object else 0
    width = (header >> 2 & 3) + 1
    offsets = ids + count * id_width
    begin = offsets + (count + 1) * width
    return (count if begin <= end else REFUSED), ids, id_width, offsets, width, begin


@part
def object_size(data: Bytes, start: int, stop: int, metadata: Bytes, names: Table, row: int) -> int:
    """The number of fields of the object that fills those bytes; REFUSED for any other value."""
    count = _count_values(data, start, stop, OBJECT)
    return count if count < 0 or has_names(data, start, stop, metadata, names, row) else REFUSED


@part
def has_names(data: Bytes, start: int, stop: int, metadata: Bytes, names: Table, row: int) -> bool:
    """Whether the names of an object are in its dictionary and in order."""
    if names[row, NAMES] < 0:
        return False
    count, ids, id_width, _, _, _ = layout(data, start, stop)
    last, last_stop = 0, 0
    for index in range(count):
        id = number(data, ids + index * id_width, id_width)
        if id >= names[row, NAMES]:
            return False
        name, name_stop = name_of(metadata, names, row, id)
        if index and compare(metadata, last, last_stop, metadata, name, name_stop) >= 0:
            return False
        last, last_stop = name, name_stop
    return True


@part
def array_size(data: Bytes, start: int, stop: int) -> int:
    """The number of elements of the array that fills those bytes; REFUSED for any other value."""
    return _count_values(data, start, stop, ARRAY)


@part
def _count_values(data: Bytes, start: int, stop: int, kind: int) -> int:
    if start >= stop or np.int64(data[start]) & 3 != kind:
        return REFUSED
    count, _, _, offsets, width, begin = layout(data, start, stop)
    if count < 0 or begin + number(data, offsets + count * width, width) != stop:
        return REFUSED
    filled = begin
    for index in range(count):
        at = begin + number(data, offsets + index * width, width)
        end = stop_of(data, at, stop)
        if end < 0:
            return REFUSED
        filled += end - at
    return count if filled == stop else REFUSED
