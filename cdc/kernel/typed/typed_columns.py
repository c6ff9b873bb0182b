"""Positions of the values of typed columns in VARIANTs, as `cdc.model.typed.typed_columns` finds
them.

The positions of many values are arrays of numbers: `starts`, negative if there is no value, and
`stops`. `rows` gives the row whose dictionary contains the names of a value.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from cdc.kernel.bson.elements import REFUSED
from cdc.kernel.columns import FULL, gather
from cdc.kernel.compiled import entry, hot, part
from cdc.kernel.numbers import Bytes, uint64
from cdc.kernel.typed import casts, lists, rescued
from cdc.kernel.typed.lists import START, STOP
from cdc.kernel.variant import variant_dictionary
from cdc.kernel.variant.names import slot_of
from cdc.kernel.variant.variant_bytes import (
    DICTIONARY,
    Numbers,
    Table,
    compare,
    dictionary,
    has_names,
    layout,
    name_of,
    number,
    stop_of,
)
from cdc.model.encoding import variant_bytes as v

# What callers use from here.
__all__ = [
    "ABSENT",
    "DICTIONARY",
    "FULL",
    "casts",
    "find_fields",
    "gather",
    "lists",
    "locate_whole",
    "read_dictionaries",
    "rescued",
    "variant_dictionary",
]

# Of a field of an object besides START and STOP: its index in the object.
INDEX: Final = 2

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
    last, after = REFUSED, first + len(ends) - 1
    for place in range(len(starts)):
        for name in range(first, after):
            found[START, name, place] = -1
        start, stop, row = starts[place], stops[place], rows[place]
        sizes[place] = ABSENT if start < 0 or data[start] == v.NULL else REFUSED
        if start < 0 or start >= stop or np.int64(data[start]) & 3 != v.OBJECT:
            continue
        count, ids, _, offsets, width, begin = layout(data, start, stop)
        if count < 0:
            continue
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
            values = offsets, width, begin, stop
            if _locate_fields(data, count, *values, first, after, found, last, place):
                sizes[place] = count
            elif last == place:
                last = alike[slot] = REFUSED


@hot
def _locate_fields(
    data: Bytes,
    count: int,
    offsets: int,
    width: int,
    begin: int,
    stop: int,
    first: int,
    after: int,
    found: Found,
    last: int,
    place: int,
) -> bool:
    """Locate the fields that an object like that of place `last` has, by their indices there.

    Returns whether the values fill the object exactly. If not, no field is found.
    """
    name, filled = first, begin
    fits = begin + number(data, offsets + count * width, width) == stop
    index = 0
    while fits and index < count:
        at = begin + number(data, offsets + index * width, width)
        end = stop_of(data, at, stop)
        fits = end >= 0
        filled += end - at
        while name < after and found[START, name, last] < 0:
            name += 1
        if name < after and found[INDEX, name, last] == index:
            found[START, name, place], found[STOP, name, place] = at, end
            found[INDEX, name, place] = index
            name += 1
        index += 1
    if fits and filled == stop:
        return True
    for name in range(first, after):
        found[START, name, place] = -1
    return False


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
