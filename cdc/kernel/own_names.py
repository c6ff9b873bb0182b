"""VARIANTs with names of their own, as `cdc.model.variant_bytes.with_own_names` makes them."""

from __future__ import annotations

import numpy as np

from cdc.kernel.columns import DONE, FULL, Ends
from cdc.kernel.compiled import entry, part
from cdc.kernel.measure import width_of
from cdc.kernel.numbers import Bytes, copy, put
from cdc.kernel.variant_bytes import (
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
