"""The rescued rest of VARIANTs, without the values of typed columns, as in
`cdc.model.typed.typed_columns`."""

from __future__ import annotations

from typing import Final

import numpy as np

from cdc.kernel.columns import DONE, FULL, Ends
from cdc.kernel.compiled import entry, part
from cdc.kernel.numbers import Bytes, copy, put
from cdc.kernel.places import MISFIT
from cdc.kernel.variant.variant_bytes import (
    Numbers,
    Table,
    count_width,
    layout,
    number,
    stop_of,
    width_of,
)
from cdc.model.encoding import variant_bytes as v

# Columns of the tree of places, see `Place`. FIRST and LAST: the range of its fields, which come
# later in the tree.
FIRST: Final = 0
LAST: Final = 1
IN_VARIANT: Final = 2
TYPED: Final = 3
TREE: Final = 4

# The rest of the value at a place. SIZE: its size, 0 for nothing. WHOLE: whether it is the whole
# value. WHERE: its position in the output. If it is a new object, COUNT: its number of fields,
# TOTAL: their size, LARGEST: the largest id of a name.
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
def write_rests(
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
    """Write the rest of each document, nothing if it is empty; the ids of names do not change.

    Args, for each place and row:
        found: the position of the value.
        sizes: its number of fields, negative if it is no object.
        status: the result of the cast to its column.

    A damaged document, one without a position at the root, is copied whole.
    """
    while at < len(starts):
        place = np.int64(ends[at])
        if starts[at] >= 0:
            if found[_START, 0, at] < 0:
                size = stops[at] - starts[at]
            else:
                size = _measure_document(data, tree, found, sizes, status, at, left)
            if place + size > len(out):
                return at, FULL
            if found[_START, 0, at] < 0:
                copy(data, starts[at], stops[at], out, place)
            elif size:
                left[0, WHERE] = place
                _write(data, tree, found, at, left, out)
            place += size
        at += 1
        ends[at] = place
    return at, DONE


@part
def _measure_document(
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
            # Rescue an empty object, or it would be lost. An empty document still has its key.
            if count < 0 or (count == 0 and node > 0 and not tree[node, IN_VARIANT]):
                left[node, SIZE] = stop - start
            else:
                left[node, WHOLE] = 0
                _measure_object(data, tree, found, row, node, left)
    return left[0, SIZE]


@part
def _measure_object(
    data: Bytes, tree: Table, found: Found, row: int, node: int, left: Table
) -> None:
    start, stop = found[_START, node, row], found[_STOP, node, row]
    count, ids, id_width, offsets, width, begin = layout(data, start, stop)
    left_count, total, largest, inner = 0, 0, 0, tree[node, FIRST]
    for index in range(count):
        inner = _next_field(tree, found, row, node, inner, index)
        if inner < tree[node, LAST] and found[_INDEX, inner, row] == index:
            size = left[inner, SIZE]
        elif tree[node, IN_VARIANT]:
            size = 0
        else:
            at = begin + number(data, offsets + index * width, width)
            size = stop_of(data, at, stop) - at
        if size:
            left_count += 1
            total += size
            largest = max(largest, number(data, ids + index * id_width, id_width))
    left[node, COUNT], left[node, TOTAL], left[node, LARGEST] = left_count, total, largest
    if left_count:
        head = 1 + count_width(left_count) + left_count * width_of(largest)
        left[node, SIZE] = head + (left_count + 1) * width_of(total) + total


@part
def _next_field(tree: Table, found: Found, row: int, node: int, inner: int, index: int) -> int:
    """The first of the place's fields from `inner` on that exists and is not before `index`."""
    while inner < tree[node, LAST]:
        if found[_START, inner, row] >= 0 and found[_INDEX, inner, row] >= index:
            break
        inner += 1
    return inner


@part
def _write(data: Bytes, tree: Table, found: Found, row: int, left: Table, out: Bytes) -> None:
    """Write all places; each comes after the enclosing one, which sets its position."""
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
    left_count, new_width = left[node, COUNT], width_of(left[node, TOTAL])
    wide = width_of(left[node, LARGEST])
    header = (left_count > 255) << 6 | (wide - 1) << 4 | (new_width - 1) << 2 | v.OBJECT
    at = put(out, left[node, WHERE], header, 1)
    id_at = put(out, at, left_count, count_width(left_count))
    offset_at = id_at + left_count * wide
    first, offset, inner = offset_at + (left_count + 1) * new_width, 0, tree[node, FIRST]
    for index in range(count):
        inner = _next_field(tree, found, row, node, inner, index)
        size = 0
        if inner < tree[node, LAST] and found[_INDEX, inner, row] == index:
            size = left[inner, SIZE]
            left[inner, WHERE] = first + offset
        elif not tree[node, IN_VARIANT]:
            value = begin + number(data, offsets + index * width, width)
            size = copy(data, value, stop_of(data, value, stop), out, first + offset)
            size -= first + offset
        if size:
            id_at = put(out, id_at, number(data, ids + index * id_width, id_width), wide)
            offset_at = put(out, offset_at, offset, new_width)
            offset += size
    put(out, offset_at, offset, new_width)
