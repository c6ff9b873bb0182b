"""The names of a document's fields: their order, and their ids in its dictionary.

The order is that of UTF-16 units; `cdc.model.encoding.variant` gives the reason. For names without
characters above U+FFFF it is the order of their bytes; other names are refused.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from cdc.kernel.bson.bson_table import (
    CLOSED,
    COUNT,
    FIRST,
    NAME,
    NAME_END,
    NAMED,
    NAMES,
    ORDER,
    PREFIX,
    SLOT,
    SLOTS,
    TURN,
    Rows,
)
from cdc.kernel.bson.elements import REFUSED
from cdc.kernel.compiled import part
from cdc.kernel.numbers import Bytes, is_ascii, is_text, uint64

# Names are sorted by insertion; documents with more fields are rare, and refused.
_MOST_FIELDS: Final = 512
_HASH_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(52)  # leaves 12 bits: one of SLOTS
_FOUR_BYTES: Final = 0xF0


@part
def sort(data: Bytes, document: int, used: int, rows: Rows) -> int:
    """Sort the rows of a document's fields by name into column ORDER, from row `used` on.

    Returns the number of used rows. REFUSED if a name occurs twice, is not UTF-8 or has a character
    above U+FFFF, or if there are too many fields.
    """
    rows[document, FIRST] = used
    row, stop = document + 1, used
    while row < rows[document, CLOSED]:
        name, end = rows[row, NAME], rows[row, NAME_END]
        if stop - used == _MOST_FIELDS or not _is_sortable(data, name, end):
            return REFUSED
        at = stop
        while at > used:
            left = rows[at - 1, ORDER]
            relation = _compare(data, rows, row, left)
            if relation == 0:
                return REFUSED
            if relation > 0:
                break
            rows[at, ORDER] = left
            at -= 1
        rows[at, ORDER] = row
        stop += 1
        row = rows[row, CLOSED]
    rows[document, COUNT] = stop - used
    return stop


@part
def _is_sortable(data: Bytes, start: int, stop: int) -> bool:
    if is_ascii(data, start, stop):
        return True
    for at in range(start, stop):
        if data[at] >= _FOUR_BYTES:
            return False
    return is_text(data, start, stop)


@part
def _compare(data: Bytes, rows: Rows, row: int, other: int) -> int:
    """Negative, 0 or positive if the first name is before, equal to or after the other."""
    left, right = rows[row, PREFIX], rows[other, PREFIX]
    if left != right:
        return -1 if left < right else 1
    longer = max(rows[row, NAME_END] - rows[row, NAME], rows[other, NAME_END] - rows[other, NAME])
    return 0 if longer <= 8 else _compare_after_prefix(data, rows, row, other)


@part
def _compare_after_prefix(data: Bytes, rows: Rows, row: int, other: int) -> int:
    """Compare two names that begin with the same 8 bytes."""
    a, a_end = rows[row, NAME] + 8, rows[row, NAME_END]
    b, b_end = rows[other, NAME] + 8, rows[other, NAME_END]
    while a < a_end and b < b_end:
        if data[a] != data[b]:
            return np.int64(data[a]) - np.int64(data[b])
        a += 1
        b += 1
    return max(a_end - a, 0) - max(b_end - b, 0)


@part
def name_id(data: Bytes, row: int, count: int, rows: Rows) -> int:
    """The id of a row's name in the dictionary of its document, which has `count` names so far.

    A new name gets the id `count`. Returns REFUSED if there are too many names.
    """
    slot, base = _slot(data, row, rows), rows[0, TURN] * NAMES
    while rows[slot, SLOT] >= base:
        known = rows[slot, SLOT] - base
        if _compare(data, rows, row, rows[known, NAMED]) == 0:
            return known
        slot = (slot + 1) % SLOTS
    if count == NAMES:
        return REFUSED
    rows[slot, SLOT] = base + count
    rows[count, NAMED] = row
    return count


@part
def _slot(data: Bytes, row: int, rows: Rows) -> int:
    mixed = np.uint64(rows[row, PREFIX])
    start, stop = rows[row, NAME], rows[row, NAME_END]
    if stop - start > 8:
        mixed = mixed * _HASH_FACTOR ^ uint64(data, stop - 8)
    return np.int64(mixed * _HASH_FACTOR >> _SHIFT)
