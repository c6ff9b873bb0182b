"""The values in arrays, and the fields of objects that are maps, as `cdc.model.typed.typed_columns`
reads them."""

from __future__ import annotations

from typing import Final

import numpy as np

from cdc.kernel.bson.elements import REFUSED
from cdc.kernel.columns import Ends
from cdc.kernel.compiled import entry, part
from cdc.kernel.numbers import Bytes, is_text
from cdc.kernel.places import MISFIT, MISSING, TAKEN
from cdc.kernel.variant.variant_bytes import (
    Numbers,
    Table,
    has_names,
    layout,
    name_of,
    number,
    stop_of,
)
from cdc.model.encoding import variant_bytes as v

# The position of a value.
START: Final = 0
STOP: Final = 1
# In an array or map there is also its row, and in a map the position of its name.
ROW: Final = 2
ELEMENT: Final = 3
NAME: Final = 3
NAME_STOP: Final = 4
ENTRY: Final = 5


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
            kind = v.OBJECT if is_map else v.ARRAY
            count = _list_values(data, start, stop, kind, row, metadata, names, out, place)
            if count >= 0:
                status[at] = TAKEN
                place += count
        ends[at + 1] = place


@part
def _list_values(
    data: Bytes,
    start: int,
    stop: int,
    kind: int,
    row: int,
    metadata: Bytes,
    names: Table,
    out: Table,
    place: int,
) -> int:
    """List the values of one array or object; return their number.

    REFUSED if the bytes are no sound value of that kind, or if a name is not UTF-8.
    """
    if start >= stop or np.int64(data[start]) & 3 != kind:
        return REFUSED
    count, ids, id_width, offsets, width, begin = layout(data, start, stop)
    if count < 0 or begin + number(data, offsets + count * width, width) != stop:
        return REFUSED
    if id_width and not has_names(data, start, stop, metadata, names, row):
        return REFUSED
    filled = begin
    for index in range(count):
        at = begin + number(data, offsets + index * width, width)
        end = stop_of(data, at, stop)
        if end < 0:
            return REFUSED
        filled += end - at
        out[START, place + index], out[STOP, place + index] = at, end
        out[ROW, place + index] = row
        if id_width:
            id = number(data, ids + index * id_width, id_width)
            name, name_stop = name_of(metadata, names, row, id)
            if not is_text(metadata, name, name_stop):
                return REFUSED
            out[NAME, place + index], out[NAME_STOP, place + index] = name, name_stop
    return count if filled == stop else REFUSED
