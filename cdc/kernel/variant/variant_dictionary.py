"""VARIANTs with only the names that they use, as `variant_bytes.trim_dictionary` makes them."""

from __future__ import annotations

import numpy as np

from cdc.kernel.columns import DONE, FULL, Ends
from cdc.kernel.compiled import entry, part
from cdc.kernel.numbers import Bytes, copy, put
from cdc.kernel.variant.variant_bytes import (
    NAMES,
    Numbers,
    Table,
    array_size,
    layout,
    name_of,
    number,
    object_size,
    stop_of,
    width_of,
)
from cdc.model.encoding import variant_bytes as v


@entry
def trim_dictionaries(
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
    """Copy VARIANTs and give each a dictionary of only the names that it uses.

    Damaged VARIANTs are copied unchanged. `within` must have room for all values of one VARIANT,
    `numbers` for all names of its dictionary.
    """
    while at < len(starts):
        place, out_place = np.int64(value_ends[at]), np.int64(ends[at])
        start, stop, row = starts[at], stops[at], rows[at]
        if start >= 0:
            count = _list_containers(data, start, stop, row, metadata, names, within)
            used, size = -1, metadata_stops[row] - metadata_starts[row]
            if count >= 0:
                used = _assign_ids(data, count, row, names, within, numbers)
                size = _metadata_size(metadata, row, names, used, numbers)
            if place + stop - start > len(values) or out_place + size > len(out):
                return at, FULL
            if used < 0:
                copy(metadata, metadata_starts[row], metadata_stops[row], out, out_place)
            else:
                _write_metadata(metadata, row, names, used, numbers, out, out_place)
            copy(data, start, stop, values, place)
            for index in range(max(count, 0)):
                _write_ids(data, within[index, 0], within[index, 1], numbers, values, place - start)
            place += stop - start
            out_place += size
        at += 1
        value_ends[at] = place
        ends[at] = out_place
    return at, DONE


@part
def _list_containers(
    data: Bytes, start: int, stop: int, row: int, metadata: Bytes, names: Table, within: Table
) -> int:
    """List the objects and arrays; return their number, negative if any is damaged."""
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
def _assign_ids(
    data: Bytes, count: int, row: int, names: Table, within: Table, numbers: Numbers
) -> int:
    """Assign a new id to each used name, -1 to the others; return the number of used names."""
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
def _write_ids(
    data: Bytes, start: int, stop: int, numbers: Numbers, out: Bytes, shift: int
) -> None:
    """Write the new ids. Each fits in the bytes of the old one, because it is never greater."""
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
