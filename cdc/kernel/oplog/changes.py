"""The changes that a diff describes at one level: see `cdc.model.oplog.diff`."""

from __future__ import annotations

from typing import Final

import numpy as np

from cdc.kernel.bson.elements import REFUSED, is_framed, next_element, size_of
from cdc.kernel.compiled import part
from cdc.kernel.numbers import Bytes, int32
from cdc.kernel.variant.variant_bytes import Table
from cdc.model.bson import BOOL, DOCUMENT, INT32
from cdc.model.bson.element import (
    CODE,
    CODE_WITH_SCOPE,
    DBPOINTER,
    MAX_KEY,
    MIN_KEY,
    REGEX,
    STRING,
    SYMBOL,
    UNDEFINED,
)

# Columns of a change. NAME, SIZE: the place of the field's name and its length; in an array, SIZE
# is the index. AT, VALUE, END: the element in the diff, its value and its end. USED: not 0 if the
# changed document has such a field.
NAME: Final = 0
SIZE: Final = 1
ACTION: Final = 2
AT: Final = 3
VALUE: Final = 4
END: Final = 5
USED: Final = 6
COLUMNS: Final = 7

# Actions. In a diff, they have this order.
DELETED: Final = 0
UPDATED: Final = 1
INSERTED: Final = 2
NESTED: Final = 3

# The least size of the diff of an array: a length, `a: true`, and a zero byte.
_ARRAY_DIFF: Final = 9
# Changes at one level, and levels. With more of them, plain Python applies the diff.
MOST: Final = 64
DEPTH: Final = 32

_D, _U, _I, _S, _A, _L = map(ord, "duisal")
# Of an index or a length: no document is long enough for more.
_DIGITS: Final = 7
_ZERO, _NINE = ord("0"), ord("9")


@part
def any_element(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """The start and end of the value of the element at `at`, of any type; REFUSED if invalid."""
    value, stop = next_element(data, at, end)
    if value >= 0:
        return value, stop
    value = at + 1
    while value < end and data[value] != 0:
        value += 1
    if value >= end:
        return REFUSED, REFUSED
    value += 1
    size = _rare_size(data[at], data, value, end)
    return (value, value + size) if size >= 0 and value + size <= end else (REFUSED, REFUSED)


@part
def _rare_size(kind: int, data: Bytes, at: int, end: int) -> int:
    if kind in (UNDEFINED, MIN_KEY, MAX_KEY):
        return 0
    if kind in (CODE, SYMBOL):
        return size_of(STRING, data, at, end)
    if kind == DBPOINTER:
        size = size_of(STRING, data, at, end)
        return size + 12 if size >= 0 else REFUSED
    if kind == CODE_WITH_SCOPE:
        return int32(data, at) if at + 4 <= end else REFUSED
    if kind == REGEX:
        stop, zeros = at, 0
        while stop < end and zeros < 2:
            zeros += data[stop] == 0
            stop += 1
        return stop - at if zeros == 2 else REFUSED
    return REFUSED


@part
def is_of_array(data: Bytes, start: int, stop: int) -> bool:
    """Whether a nested diff is that of an array."""
    if stop - start < _ARRAY_DIFF or data[start + 4] != BOOL:
        return False
    return data[start + 5] == _A and data[start + 6] == 0


@part
def read(
    data: Bytes, start: int, stop: int, is_array: bool, changes: Table, first: int
) -> tuple[int, int]:
    """Fill a row for each change of a document or an array, from row `first` on.

    Returns the row after them, or REFUSED, and the new length of an array, negative if it is kept.
    """
    if is_array:
        return _read_array(data, start, stop, changes, first)
    return _read_document(data, start, stop, changes, first), -1


@part
def _read_document(data: Bytes, start: int, stop: int, changes: Table, first: int) -> int:
    at, row, least = start + 4, first, DELETED
    if not is_framed(data, start, stop):
        return REFUSED
    while at < stop - 1:
        value, end = next_element(data, at, stop - 1)
        if value < 0 or data[at] != DOCUMENT:
            return REFUSED
        head, size = data[at + 1], value - at - 2
        if head == _S and size > 0:
            action = NESTED
            row = _put(changes, first, row, at + 2, size - 1, action, at, value, end)
        else:
            action = _action(head, size)
            row = _read_section(data, value, end, action, changes, first, row)
        if row < 0 or action < least:
            return REFUSED
        least, at = action, end
    return row


@part
def _action(head: int, size: int) -> int:
    """What the section of that name does with its fields."""
    if size != 1:
        return REFUSED
    return DELETED if head == _D else UPDATED if head == _U else INSERTED if head == _I else REFUSED


@part
def _read_section(
    data: Bytes, start: int, stop: int, action: int, changes: Table, first: int, row: int
) -> int:
    if action < 0:
        return REFUSED
    at = start + 4
    while at < stop - 1 and row >= 0:
        value, end = any_element(data, at, stop - 1)
        if value < 0:
            return REFUSED
        row = _put(changes, first, row, at + 1, value - at - 2, action, at, value, end)
        at = end
    return row


@part
def _put(
    changes: Table,
    first: int,
    row: int,
    name: int,
    size: int,
    action: int,
    at: int,
    value: int,
    end: int,
) -> int:
    if row - first >= MOST or row >= len(changes):
        return REFUSED
    change = changes[row]
    change[NAME], change[SIZE], change[ACTION] = name, size, action
    change[AT], change[VALUE], change[END], change[USED] = at, value, end, 0
    return row + 1


@part
def _read_array(data: Bytes, start: int, stop: int, changes: Table, first: int) -> tuple[int, int]:
    if not is_framed(data, start, stop) or not is_of_array(data, start, stop):
        return REFUSED, REFUSED
    at, row, length, last = start + 8, first, -1, -1
    while at < stop - 1:
        value, end = any_element(data, at, stop - 1)
        if value < 0:
            return REFUSED, REFUSED
        head, size = data[at + 1], value - at - 2
        if head == _L and size == 1 and data[at] == INT32 and row == first:
            length = int32(data, value)
            if length < 0 or length >= 10**_DIGITS:
                return REFUSED, REFUSED
        else:
            index = _number(data, at + 2, value - 1)
            is_nested = head == _S and data[at] == DOCUMENT
            if index <= last or not (is_nested or head == _U):
                return REFUSED, REFUSED
            action = NESTED if is_nested else UPDATED
            row = _put(changes, first, row, at + 2, index, action, at, value, end)
            if row < 0:
                return REFUSED, REFUSED
            last = index
        at = end
    return row, length


@part
def _number(data: Bytes, start: int, stop: int) -> int:
    """The decimal number that fills those bytes; REFUSED if it is none."""
    number = 0
    if stop <= start or stop - start > _DIGITS:
        return REFUSED
    for at in range(start, stop):
        if data[at] < _ZERO or data[at] > _NINE:
            return REFUSED
        number = number * 10 + np.int64(data[at]) - _ZERO
    return number
