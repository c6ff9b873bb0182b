"""A BSON document as a table with one row per value, in the order of their bytes.

A document that may be invalid, or that contains a rare type, is refused here; the caller encodes
it with `cdc.model.encoding.document`. All bounds are checked here: for each row the bytes from
START to STOP may be read, and the parts that its type has.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from cdc.kernel.bson.elements import REFUSED, is_framed, size_of
from cdc.kernel.compiled import part
from cdc.kernel.numbers import Bytes
from cdc.model.bson import ARRAY, DOCUMENT, MAX_DEPTH, TIMESTAMP

# Columns. CLOSED: the row after the last one inside this value. PARENT: the container's row.
KIND: Final = 0
NAME: Final = 1
NAME_END: Final = 2
START: Final = 3
STOP: Final = 4
PARENT: Final = 5
CLOSED: Final = 6
DEPTH: Final = 7
# PREFIX: the first 8 bytes of the name, as a number with the same order.
PREFIX: Final = 8
# For a VARIANT. SIZE: the encoded size. WHERE: the position in the output. ID: the id of the name.
# COUNT: the number of fields. FIRST: the index in ORDER of the first of a document's fields.
SIZE: Final = 9
WHERE: Final = 10
ID: Final = 11
COUNT: Final = 12
FIRST: Final = 13
# These columns are lists, unrelated to the row. ORDER: rows of fields, sorted by name. NAMED: for
# each id, a row with that name. SLOT: ids by a hash of their names, see `names`. TURN, only in the
# first row: the number of the current document.
ORDER: Final = 14
NAMED: Final = 15
SLOT: Final = 16
TURN: Final = 17
_COLUMNS: Final = 18

_MOST_ROWS: Final = 2**17
# The maximum number of different names in one document. SLOTS is a power of two.
NAMES: Final = 1024
SLOTS: Final = 4096

# One array, not a tuple of arrays: numba would count references to each array at each access.
Rows = np.ndarray[tuple[int, int], np.dtype[np.int64]]


def table(longest: int) -> Rows:
    """Rows for one document at a time, of at most `longest` bytes; a value takes at least two."""
    return np.zeros((max(min(longest // 2 + 1, _MOST_ROWS), SLOTS), _COLUMNS), np.int64)


_EIGHT, _SIGN = np.uint64(8), np.uint64(2**63)


@part
def parse(data: Bytes, start: int, stop: int, rows: Rows) -> int:
    """Fill the table; return the number of rows, or REFUSED."""
    if not is_framed(data, start, stop):
        return REFUSED
    _add_row(rows, 0, DOCUMENT, start, stop, -1)
    container, at, count = 0, start + 4, 1
    while True:
        end = rows[container, STOP] - 1
        if at == end:
            rows[container, CLOSED] = count
            if container == 0:
                return count
            at, container = end + 1, rows[container, PARENT]
            continue
        if count == len(rows):
            return REFUSED
        value = _add_name(data, at + 1, end, rows, count)
        kind = np.int64(data[at])
        size = size_of(kind, data, value, end) if value else REFUSED
        if size < 0 or kind == TIMESTAMP:
            return REFUSED
        _add_row(rows, count, kind, value, value + size, container)
        at = value + size
        if kind in (DOCUMENT, ARRAY):
            if rows[count, DEPTH] > MAX_DEPTH:
                return REFUSED
            container, at = count, value + 4
        count += 1


@part
def _add_row(rows: Rows, row: int, kind: int, start: int, stop: int, parent: int) -> None:
    rows[row, KIND] = kind
    rows[row, START] = start
    rows[row, STOP] = stop
    rows[row, PARENT] = parent
    rows[row, CLOSED] = row + 1
    rows[row, DEPTH] = 0 if parent < 0 else rows[parent, DEPTH] + 1


@part
def _add_name(data: Bytes, at: int, end: int, rows: Rows, row: int) -> int:
    """Store the name that begins at `at`; return the position after it, 0 if it has no end."""
    prefix, stop = np.uint64(0), at
    while stop < end and data[np.uint64(stop)] != 0:
        if stop - at < 8:
            prefix = prefix << _EIGHT | np.uint64(data[np.uint64(stop)])
        stop += 1
    if stop >= end:
        return 0
    if at < stop < at + 8:
        prefix = prefix << np.uint64(8 * (at + 8 - stop))
    rows[row, PREFIX] = np.int64(prefix ^ _SIGN)
    rows[row, NAME] = at
    rows[row, NAME_END] = stop
    return stop + 1
