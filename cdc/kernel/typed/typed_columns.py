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
from cdc.kernel.numbers import Bytes, is_text
from cdc.kernel.places import MISFIT, MISSING, TAKEN
from cdc.kernel.typed import casts, rescued
from cdc.kernel.variant import variant_dictionary
from cdc.kernel.variant.variant_bytes import (
    DICTIONARY,
    Numbers,
    Table,
    array_size,
    compare,
    dictionary,
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
    found: Found,
    sizes: Numbers,
) -> None:
    """Find fields by name in each object, and count the fields of each object.

    `wanted` are the names one after the other, sorted; `ends` are their ends. The positions go to
    `found`, from place `first` on. `sizes` is negative for a value that is no object.
    """
    for place in range(len(starts)):
        for index in range(len(ends) - 1):
            found[START, first + index, place] = -1
        sizes[place] = REFUSED
        if starts[place] >= 0:
            start, stop, row = starts[place], stops[place], rows[place]
            sizes[place] = object_size(data, start, stop, metadata, names, row)
            if sizes[place] > 0:
                _find(data, start, stop, row, metadata, names, wanted, ends, first, found, place)


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
