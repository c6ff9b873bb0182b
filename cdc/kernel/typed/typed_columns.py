"""Positions of the values of typed columns in VARIANTs, as `cdc.model.typed.typed_columns` finds
them.

The positions of many values are arrays of numbers: `starts`, negative if there is no value, and
`stops`. `rows` gives the row whose dictionary contains the names of a value.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from cdc.kernel.bson.elements import REFUSED
from cdc.kernel.columns import FULL, Ends, gather
from cdc.kernel.compiled import entry, hot, part
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
    "ABSENT",
    "DICTIONARY",
    "ELEMENT",
    "ENTRY",
    "FULL",
    "casts",
    "count_elements",
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
# A value in an array or map: START and STOP, its row, and in a map the position of its name.
ROW: Final = 2
ELEMENT: Final = 3
NAME: Final = 3
NAME_STOP: Final = 4
ENTRY: Final = 5

# In place of a number of fields: there is no value, or null.
ABSENT: Final = -2

_HASH: Final = 2**32 - 1
# In the header of an object: the width of its ids, and of its number of fields.
_ID_BITS: Final = 0b111 << 4

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
        sizes: the number of fields of each object, ABSENT for none, REFUSED for other values.
    """
    last = REFUSED
    for place in range(len(starts)):
        for index in range(len(ends) - 1):
            found[START, first + index, place] = -1
        start, stop, row = starts[place], stops[place], rows[place]
        sizes[place] = ABSENT if start < 0 or data[start] == v.NULL else REFUSED
        count = REFUSED if start < 0 else filled_object(data, start, stop)
        if count < 0:
            continue
        _, ids, _, offsets, width, begin = layout(data, start, stop)
        if not _is_alike(data, starts, rows, place, last, offsets):
            slot = _slot_of_ids(data, ids, offsets, len(alike) - 1)
            last = alike[slot]
            if not _is_alike(data, starts, rows, place, last, offsets):
                last = REFUSED
                if has_names(data, start, stop, metadata, names, row):
                    _find(
                        data, start, stop, row, metadata, names, wanted, ends, first, found, place
                    )
                    last = alike[slot] = place
        if last >= 0:
            sizes[place] = count
            if last != place:
                for name in range(first, first + len(ends) - 1):
                    if found[START, name, last] >= 0:
                        index = found[INDEX, name, last]
                        at = begin + number(data, offsets + index * width, width)
                        found[START, name, place] = at
                        found[STOP, name, place] = stop_of(data, at, stop)
                        found[INDEX, name, place] = index


@part
def _slot_of_ids(data: Bytes, ids: int, offsets: int, mask: int) -> int:
    hashed = 0
    while ids + 8 <= offsets:
        hashed = slot_of(np.uint64(hashed) ^ uint64(data, ids), _HASH)
        ids += 8
    while ids < offsets:
        hashed = slot_of(np.uint64(hashed) ^ np.uint64(data[np.uint64(ids)]), _HASH)
        ids += 1
    return hashed & mask


@hot
def _is_alike(
    data: Bytes, starts: Numbers, rows: Numbers, place: int, other: int, offsets: int
) -> bool:
    """Whether an object, whose offsets are at `offsets`, has the same ids and dictionary as that of
    place `other`, which has been searched."""
    if other < 0 or rows[other] != rows[place]:
        return False
    at, same = starts[place], starts[other]
    if (data[at] ^ data[same]) & _ID_BITS or same + offsets - at > len(data):
        return False
    # The number of fields, then their ids.
    at, same = at + 1, same + 1
    while at + 8 <= offsets:
        if uint64(data, at) != uint64(data, same):
            return False
        at, same = at + 8, same + 8
    while at < offsets and data[np.uint64(at)] == data[np.uint64(same)]:
        at, same = at + 1, same + 1
    return at == offsets


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
def count_elements(data: Bytes, starts: Numbers, stops: Numbers) -> int:
    """The number of values that the arrays and objects state; at most one for each byte of them."""
    count = 0
    for place in range(len(starts)):
        if starts[place] >= 0 and np.int64(data[starts[place]]) & 3 >= v.OBJECT:
            count += max(layout(data, starts[place], stops[place])[0], 0)
    return count


@entry
def list_elements(
    data: Bytes,
    starts: Numbers,
    stops: Numbers,
    rows: Numbers,
    metadata: Bytes,
    names: Table,
    is_map: bool,
    out: Table,
    ends: Ends,
    status: Bytes,
) -> None:
    """List the elements of arrays or, with `is_map`, the fields of objects and their names.

    `out` must have room for `count_elements`.
    """
    place = 0
    for at in range(len(starts)):
        start, stop, row = starts[at], stops[at], rows[at]
        status[at] = MISSING if start < 0 or data[start] == v.NULL else MISFIT
        if status[at] == MISFIT:
            if is_map:
                count = object_size(data, start, stop, metadata, names, row)
            else:
                count = array_size(data, start, stop)
            if count >= 0 and _list_values(data, start, stop, row, metadata, names, out, place):
                status[at] = TAKEN
                place += count
        ends[at + 1] = place


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
