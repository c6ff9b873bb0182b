"""What typed columns leave of a VARIANT, as `cdc.model.typed` does; and VARIANTs on their own."""

from __future__ import annotations

from typing import Final

import numpy as np

from cdc.kernel.columns import DONE, FULL, Ends
from cdc.kernel.compiled import entry, part
from cdc.kernel.measure import count_width, width_of
from cdc.kernel.numbers import Bytes, copy, put
from cdc.kernel.outcomes import MISFIT
from cdc.kernel.variant_bytes import (
    DICTIONARY,
    NAMES,
    Numbers,
    Table,
    array_size,
    layout,
    name_of,
    number,
    object_size,
    stop_of,
)
from cdc.model import variant_bytes as v

# Columns of the tree of places: its fields, which are behind it, and what `Place` tells.
FIRST: Final = 0
LAST: Final = 1
KEPT: Final = 2
TYPED: Final = 3
TREE: Final = 4

# What is left of the value in a place: its size (0 for nothing), whether that is the value itself,
# and where it is written; of an object that is made, its fields, their sizes, and the last name.
SIZE: Final = 0
WHOLE: Final = 1
WHERE: Final = 2
COUNT: Final = 3
TOTAL: Final = 4
LARGEST: Final = 5
LEFT: Final = 6

_START, _STOP, _INDEX = 0, 1, 2

Found = np.ndarray[tuple[int, int, int], np.dtype[np.int64]]
Statuses = np.ndarray[tuple[int, int], np.dtype[np.uint8]]


@entry
def rests(
    data: Bytes,
    starts: Numbers,
    stops: Numbers,
    tree: Table,
    found: Found,
    sizes: Table,
    status: Statuses,
    at: int,
    left: Table,
    out: Bytes,
    ends: Ends,
) -> tuple[int, int]:
    """What is left of each document, nothing if that is empty; its names are as they were.

    Of each place and row: `found`, where the value is; `sizes`, how many fields it has, less than 0
    if it is no object; `status`, what became of it in its column. A document that is not found
    where it should be is left as it is.
    """
    while at < len(starts):
        place = np.int64(ends[at])
        if starts[at] >= 0:
            if found[_START, 0, at] < 0:
                size = stops[at] - starts[at]
            else:
                size = _measured(data, tree, found, sizes, status, at, left)
            if place + size > len(out):
                return at, FULL
            if found[_START, 0, at] < 0:
                copy(data, starts[at], stops[at], out, place)
            elif size:
                left[0, WHERE] = place
                _write(data, tree, found, sizes, at, left, out)
            place += size
        at += 1
        ends[at] = place
    return at, DONE


@part
def _measured(
    data: Bytes,
    tree: Table,
    found: Found,
    sizes: Table,
    status: Statuses,
    row: int,
    left: Table,
) -> int:
    for node in range(len(tree) - 1, -1, -1):
        left[node, SIZE], left[node, WHOLE] = 0, 1
        start, stop = found[_START, node, row], found[_STOP, node, row]
        if start < 0:
            continue
        if tree[node, TYPED]:
            left[node, SIZE] = stop - start if status[node, row] == MISFIT else 0
        elif tree[node, LAST] > tree[node, FIRST]:
            count = sizes[node, row]
            # An empty object would be gone without a trace; a document is there by its key.
            if count < 0 or (count == 0 and node > 0 and not tree[node, KEPT]):
                left[node, SIZE] = stop - start
            else:
                left[node, WHOLE] = 0
                _measure(data, tree, found, row, node, left)
    return left[0, SIZE]


@part
def _measure(data: Bytes, tree: Table, found: Found, row: int, node: int, left: Table) -> None:
    start, stop = found[_START, node, row], found[_STOP, node, row]
    count, ids, id_width, offsets, width, begin = layout(data, start, stop)
    kept, total, largest, inner = 0, 0, 0, tree[node, FIRST]
    for index in range(count):
        inner = _inner(tree, found, row, node, inner, index)
        if inner < tree[node, LAST] and found[_INDEX, inner, row] == index:
            size = left[inner, SIZE]
        elif tree[node, KEPT]:
            size = 0
        else:
            at = begin + number(data, offsets + index * width, width)
            size = stop_of(data, at, stop) - at
        if size:
            kept += 1
            total += size
            largest = max(largest, number(data, ids + index * id_width, id_width))
    left[node, COUNT], left[node, TOTAL], left[node, LARGEST] = kept, total, largest
    if kept:
        head = 1 + count_width(kept) + kept * width_of(largest)
        left[node, SIZE] = head + (kept + 1) * width_of(total) + total


@part
def _inner(tree: Table, found: Found, row: int, node: int, inner: int, index: int) -> int:
    """From that one on, the first of the place's fields that is there, and not before `index`."""
    while inner < tree[node, LAST]:
        if found[_START, inner, row] >= 0 and found[_INDEX, inner, row] >= index:
            break
        inner += 1
    return inner


@part
def _write(
    data: Bytes, tree: Table, found: Found, sizes: Table, row: int, left: Table, out: Bytes
) -> None:
    """Each place after the one that it is in, which says where."""
    for node in range(len(tree)):
        if left[node, SIZE]:
            if left[node, WHOLE]:
                start, stop = found[_START, node, row], found[_STOP, node, row]
                copy(data, start, stop, out, left[node, WHERE])
            else:
                _write_object(data, tree, found, row, node, left, out)


@part
def _write_object(
    data: Bytes, tree: Table, found: Found, row: int, node: int, left: Table, out: Bytes
) -> None:
    start, stop = found[_START, node, row], found[_STOP, node, row]
    count, ids, id_width, offsets, width, begin = layout(data, start, stop)
    kept, new_width = left[node, COUNT], width_of(left[node, TOTAL])
    wide = width_of(left[node, LARGEST])
    header = (kept > 255) << 6 | (wide - 1) << 4 | (new_width - 1) << 2 | v.OBJECT
    at = put(out, left[node, WHERE], header, 1)
    id_at = put(out, at, kept, count_width(kept))
    offset_at = id_at + kept * wide
    first, offset, inner = offset_at + (kept + 1) * new_width, 0, tree[node, FIRST]
    for index in range(count):
        inner = _inner(tree, found, row, node, inner, index)
        size = 0
        if inner < tree[node, LAST] and found[_INDEX, inner, row] == index:
            size = left[inner, SIZE]
            left[inner, WHERE] = first + offset
        elif not tree[node, KEPT]:
            value = begin + number(data, offsets + index * width, width)
            size = copy(data, value, stop_of(data, value, stop), out, first + offset)
            size -= first + offset
        if size:
            id_at = put(out, id_at, number(data, ids + index * id_width, id_width), wide)
            offset_at = put(out, offset_at, offset, new_width)
            offset += size
    put(out, offset_at, offset, new_width)


@entry
def own(
    data: Bytes,
    starts: Numbers,
    stops: Numbers,
    rows: Numbers,
    metadata: Bytes,
    metadata_starts: Numbers,
    metadata_stops: Numbers,
    names: Table,
    within: Table,
    numbers: Numbers,
    at: int,
    values: Bytes,
    value_ends: Ends,
    out: Bytes,
    ends: Ends,
) -> tuple[int, int]:
    """(value, metadata) of VARIANTs with a dictionary of just the names that they use; those that
    are damaged as they are. `within` and `numbers` have room for what lies in one of them, and for
    the names of its dictionary."""
    while at < len(starts):
        place, out_place = np.int64(value_ends[at]), np.int64(ends[at])
        start, stop, row = starts[at], stops[at], rows[at]
        if start >= 0:
            count = _containers(data, start, stop, row, metadata, names, within)
            used, size = -1, metadata_stops[row] - metadata_starts[row]
            if count >= 0:
                used = _numbered(data, count, row, names, within, numbers)
                size = _metadata_size(metadata, row, names, used, numbers)
            if place + stop - start > len(values) or out_place + size > len(out):
                return at, FULL
            if used < 0:
                copy(metadata, metadata_starts[row], metadata_stops[row], out, out_place)
            else:
                _write_metadata(metadata, row, names, used, numbers, out, out_place)
            copy(data, start, stop, values, place)
            for index in range(max(count, 0)):
                _renumber(data, within[index, 0], within[index, 1], numbers, values, place - start)
            place += stop - start
            out_place += size
        at += 1
        value_ends[at] = place
        ends[at] = out_place
    return at, DONE


@part
def _containers(
    data: Bytes, start: int, stop: int, row: int, metadata: Bytes, names: Table, within: Table
) -> int:
    """Lists the objects and arrays; returns how many there are, less than 0 if any is damaged."""
    if stop_of(data, start, stop) != stop:
        return -1
    count, done = 0, 0
    if data[start] & 3 >= v.OBJECT:
        within[0, 0], within[0, 1] = start, stop
        count = 1
    while done < count:
        at, end = within[done, 0], within[done, 1]
        if data[at] & 3 == v.OBJECT:
            size = object_size(data, at, end, metadata, names, row)
        else:
            size = array_size(data, at, end)
        if size < 0:
            return -1
        _, _, _, offsets, width, begin = layout(data, at, end)
        for index in range(size):
            inner = begin + number(data, offsets + index * width, width)
            if data[inner] & 3 >= v.OBJECT:
                within[count, 0], within[count, 1] = inner, stop_of(data, inner, end)
                count += 1
        done += 1
    return count


@part
def _numbered(
    data: Bytes, count: int, row: int, names: Table, within: Table, numbers: Numbers
) -> int:
    """Gives each name that is used a new number, -1 to all others; returns how many those are."""
    if count == 0:
        return 0
    for id in range(names[row, NAMES]):
        numbers[id] = -1
    for index in range(count):
        at, end = within[index, 0], within[index, 1]
        if data[at] & 3 == v.OBJECT:
            size, ids, id_width, _, _, _ = layout(data, at, end)
            for field in range(size):
                numbers[number(data, ids + field * id_width, id_width)] = 0
    used = 0
    for id in range(names[row, NAMES]):
        if numbers[id] == 0:
            numbers[id] = used
            used += 1
    return used


@part
def _renumber(data: Bytes, start: int, stop: int, numbers: Numbers, out: Bytes, shift: int) -> None:
    """The new number has room where the old one stands: it is not greater."""
    if data[start] & 3 == v.OBJECT:
        count, ids, id_width, _, _, _ = layout(data, start, stop)
        for index in range(count):
            at = ids + index * id_width
            put(out, at + shift, numbers[number(data, at, id_width)], id_width)


@part
def _metadata_size(metadata: Bytes, row: int, names: Table, used: int, numbers: Numbers) -> int:
    total = _names_size(metadata, row, names, used, numbers)
    return 1 + (used + 2) * width_of(max(total, used)) + total


@part
def _names_size(metadata: Bytes, row: int, names: Table, used: int, numbers: Numbers) -> int:
    total = 0
    for id in range(names[row, NAMES] if used else 0):
        if numbers[id] >= 0:
            start, stop = name_of(metadata, names, row, id)
            total += stop - start
    return total


@part
def _write_metadata(
    metadata: Bytes, row: int, names: Table, used: int, numbers: Numbers, out: Bytes, at: int
) -> None:
    width = width_of(max(_names_size(metadata, row, names, used, numbers), used))
    at = put(out, put(out, at, (width - 1) << 6 | 1, 1), used, width)
    begin, offset = at + (used + 1) * width, 0
    for id in range(names[row, NAMES] if used else 0):
        if numbers[id] >= 0:
            start, stop = name_of(metadata, names, row, id)
            at = put(out, at, offset, width)
            offset = copy(metadata, start, stop, out, begin + offset) - begin
    put(out, at, offset, width)


def compiled() -> None:
    data, one, ends = np.zeros(1, np.uint8), np.array([0]), np.zeros(2, np.int32)
    tree, found = np.zeros((1, TREE), np.int64), np.full((3, 1, 1), -1)
    sizes, status, left = found[0], np.zeros((1, 1), np.uint8), np.zeros((1, LEFT), np.int64)
    names, within = np.full((1, DICTIONARY), -1), np.zeros((1, 2), np.int64)
    out, both = np.zeros(8, np.uint8), (ends.copy(), ends.copy())
    rests(data, one, one + 1, tree, found, sizes, status, 0, left, out, ends)
    places = (one, one + 1, one)
    own(data, *places, data, *places[:2], names, within, one, 0, out, both[0], out.copy(), both[1])
