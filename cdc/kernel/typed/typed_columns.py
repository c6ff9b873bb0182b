"""Positions of the values of typed columns in VARIANTs, as `cdc.model.typed.typed_columns` finds
them.

The positions of many values are arrays of numbers: `starts`, negative if there is no value, and
`stops`. `rows` gives the row whose dictionary contains the names of a value.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from cdc.kernel.bson.elements import REFUSED
from cdc.kernel.columns import DONE, FULL, Ends, gather
from cdc.kernel.compiled import entry, part
from cdc.kernel.numbers import Bytes, is_text, uint64
from cdc.kernel.places import MISFIT, MISSING, TAKEN
from cdc.kernel.typed import casts, rescued
from cdc.kernel.variant import variant_dictionary
from cdc.kernel.variant.names import slot_of
from cdc.kernel.variant.variant_bytes import (
    DICTIONARY,
    Numbers,
    Table,
    array_size,
    compare,
    dictionary,
    filled_object,
    has_names,
    layout,
    name_of,
    number,
    object_size,
    stop_of,
)
from cdc.model.encoding import variant_bytes as v

# What callers use from here.
__all__ = [
    "DICTIONARY",
    "ELEMENT",
    "FULL",
    "casts",
    "find_fields",
    "gather",
    "list_elements",
    "locate_whole",
    "read_dictionaries",
    "rescued",
    "variant_dictionary",
]

# A field of an object: its position, and its index in the object.
START: Final = 0
STOP: Final = 1
INDEX: Final = 2
# A value in an array or map: START and STOP, its row, and the position of its name.
ROW: Final = 2
NAME: Final = 3
NAME_STOP: Final = 4
ELEMENT: Final = 5

_HASH: Final = 2**32 - 1

Found = np.ndarray[tuple[int, int, int], np.dtype[np.int64]]


@entry
def locate_whole(data: Bytes, starts: Numbers, stops: Numbers, out: Numbers) -> None:
    """Write the start of each value that fills its bytes exactly; -1 for the others."""
    for row in range(len(starts)):
        is_sound = starts[row] >= 0 and stop_of(data, starts[row], stops[row]) == stops[row]
        out[row] = starts[row] if is_sound else -1


@entry
def read_dictionaries(metadata: Bytes, starts: Numbers, stops: Numbers, names: Table) -> None:
    """Read the dictionary of each row into `names`, see `variant_bytes.dictionary`."""
    for row in range(len(starts)):
        dictionary(metadata, starts[row], stops[row], names, row)


@entry
def find_fields(
    data: Bytes,
    starts: Numbers,
    stops: Numbers,
    rows: Numbers,
    metadata: Bytes,
    names: Table,
    wanted: Bytes,
    ends: Numbers,
    first: int,
    alike: Numbers,
    found: Found,
    sizes: Numbers,
) -> None:
    """Find fields by name in each object, and count the fields of each object.

    Objects with the same ids and the same dictionary have the same names in the same order: only
    the first of them is searched.

    Args:
        wanted: the names one after the other, sorted.
        ends: the ends of the names in `wanted`.
        first: the place in `found` of the first name.
        alike: for the hash of ids, the last object that was searched; -1 for none. Its size is a
            power of two.
        found: the positions.
        sizes: the number of fields of each object, negative for a value that is no object.
    """
    for place in range(len(starts)):
        for index in range(len(ends) - 1):
            found[START, first + index, place] = -1
        sizes[place] = REFUSED
        if starts[place] < 0:
            continue
        start, stop, row = starts[place], stops[place], rows[place]
        count = filled_object(data, start, stop)
        if count < 0:
            continue
        slot = _slot_of_ids(data, start, stop, len(alike) - 1)
        other = alike[slot]
        if other >= 0 and rows[other] == row and _has_ids(data, start, stop, starts[other]):
            _take_places(data, start, stop, other, len(ends) - 1, first, found, place)
            sizes[place] = count
        else:
            sizes[place] = count if has_names(data, start, stop, metadata, names, row) else REFUSED
            if sizes[place] >= 0:
                _find(data, start, stop, row, metadata, names, wanted, ends, first, found, place)
                alike[slot] = place


@part
def _slot_of_ids(data: Bytes, start: int, stop: int, mask: int) -> int:
    count, ids, id_width, _, _, _ = layout(data, start, stop)
    end, hashed = ids + count * id_width, count
    while ids + 8 <= end:
        hashed = slot_of(np.uint64(hashed) ^ uint64(data, ids), _HASH)
        ids += 8
    while ids < end:
        hashed = slot_of(np.uint64(hashed) ^ np.uint64(data[np.uint64(ids)]), _HASH)
        ids += 1
    return hashed & mask


@part
def _has_ids(data: Bytes, start: int, stop: int, other: int) -> bool:
    """Whether the object has the same ids as the one at `other`, which has been searched."""
    count, ids, id_width, _, _, _ = layout(data, start, stop)
    other_count, other_ids, other_width, _, _, _ = layout(data, other, len(data))
    if count != other_count or id_width != other_width:
        return False
    end = ids + count * id_width
    while ids + 8 <= end:
        if uint64(data, ids) != uint64(data, other_ids):
            return False
        ids, other_ids = ids + 8, other_ids + 8
    while ids < end and data[np.uint64(ids)] == data[np.uint64(other_ids)]:
        ids, other_ids = ids + 1, other_ids + 1
    return ids == end


@part
def _take_places(
    data: Bytes,
    start: int,
    stop: int,
    other: int,
    wanted: int,
    first: int,
    found: Found,
    place: int,
) -> None:
    """Find the fields at the indices that they have in the object of place `other`."""
    _, _, _, offsets, width, begin = layout(data, start, stop)
    for name in range(first, first + wanted):
        if found[START, name, other] >= 0:
            index = found[INDEX, name, other]
            at = begin + number(data, offsets + index * width, width)
            found[START, name, place] = at
            found[STOP, name, place] = stop_of(data, at, stop)
            found[INDEX, name, place] = index


@part
def _find(
    data: Bytes,
    start: int,
    stop: int,
    row: int,
    metadata: Bytes,
    names: Table,
    wanted: Bytes,
    ends: Numbers,
    first: int,
    found: Found,
    place: int,
) -> None:
    count, ids, id_width, offsets, width, begin = layout(data, start, stop)
    next_one, last = 0, len(ends) - 1
    for index in range(count):
        id = number(data, ids + index * id_width, id_width)
        name, name_stop = name_of(metadata, names, row, id)
        relation = -1
        while next_one < last:
            a, b = ends[next_one], ends[next_one + 1]
            relation = compare(wanted, a, b, metadata, name, name_stop)
            if relation >= 0:
                break
            next_one += 1
        if relation == 0:
            at = begin + number(data, offsets + index * width, width)
            found[START, first + next_one, place] = at
            found[STOP, first + next_one, place] = stop_of(data, at, stop)
            found[INDEX, first + next_one, place] = index
            next_one += 1


@entry
def list_elements(
    data: Bytes,
    starts: Numbers,
    stops: Numbers,
    rows: Numbers,
    metadata: Bytes,
    names: Table,
    is_map: bool,
    at: int,
    out: Table,
    ends: Ends,
    status: Bytes,
) -> tuple[int, int]:
    """List the elements of arrays or, with `is_map`, the fields of objects and their names."""
    while at < len(starts):
        start, stop, row, place = starts[at], stops[at], rows[at], np.int64(ends[at])
        status[at] = MISSING if start < 0 or data[start] == v.NULL else MISFIT
        if status[at] == MISFIT:
            if is_map:
                count = object_size(data, start, stop, metadata, names, row)
            else:
                count = array_size(data, start, stop)
            if place + count > out.shape[1]:
                return at, FULL
            if count >= 0 and _list_values(data, start, stop, row, metadata, names, out, place):
                status[at] = TAKEN
                place += count
        at += 1
        ends[at] = place
    return at, DONE


@part
def _list_values(
    data: Bytes,
    start: int,
    stop: int,
    row: int,
    metadata: Bytes,
    names: Table,
    out: Table,
    place: int,
) -> bool:
    """List the values of one array or object; return whether all names, if any, are UTF-8."""
    count, ids, id_width, offsets, width, begin = layout(data, start, stop)
    for index in range(count):
        at = begin + number(data, offsets + index * width, width)
        out[START, place + index], out[STOP, place + index] = at, stop_of(data, at, stop)
        out[ROW, place + index] = row
        if id_width:
            id = number(data, ids + index * id_width, id_width)
            name, name_stop = name_of(metadata, names, row, id)
            if not is_text(metadata, name, name_stop):
                return False
            out[NAME, place + index], out[NAME_STOP, place + index] = name, name_stop
    return True
