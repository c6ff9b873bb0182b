"""The size of each value of a document as a VARIANT, and the id of each name.

Values that `cdc.model.encoding.variant` writes as Extended JSON, or refuses, are refused here; the
caller encodes such a document there.
"""

from __future__ import annotations

from typing import Final

from cdc.kernel.bson import names
from cdc.kernel.bson.bson_table import (
    CLOSED,
    COUNT,
    FIRST,
    ID,
    KIND,
    NAME,
    NAME_END,
    NAMED,
    ORDER,
    PARENT,
    SIZE,
    START,
    STOP,
    TURN,
    Rows,
)
from cdc.kernel.bson.decimals import unscaled, width
from cdc.kernel.bson.elements import REFUSED
from cdc.kernel.compiled import part
from cdc.kernel.numbers import Bytes, int32, int64, is_text
from cdc.model.bson import (
    ARRAY,
    BINARY,
    BOOL,
    DATE,
    DECIMAL128,
    DOCUMENT,
    INT32,
    INT64,
    NULL,
    OBJECT_ID,
    STRING,
)
from cdc.model.encoding import FIRST_MILLI, LAST_MILLI

SHORT: Final = 64  # from this size on, the header of a string has a length of four bytes
UUID_TEXT: Final = 36


@part
def measure(data: Bytes, count: int, rows: Rows) -> int:
    """Compute the sizes of `count` rows and the dictionary; return its number of names or REFUSED.

    Documents assign ids in the order in which they end, each to its names in their order.
    """
    rows[0, TURN] += 1
    container, used, known = 0, 0, 0
    for row in range(1, count + 1):
        while container >= 0 and rows[container, CLOSED] == row:
            if rows[container, KIND] == DOCUMENT:
                used = names.sort(data, container, used, rows)
                known = _measure_document(data, container, known, rows) if used >= 0 else REFUSED
                if known < 0:
                    return REFUSED
            else:
                _measure_array(rows, container)
            container = rows[container, PARENT]
        if row == count:
            return known
        kind = rows[row, KIND]
        if kind in (DOCUMENT, ARRAY):
            container = row
        else:
            size = _leaf_size(data, kind, rows[row, START], rows[row, STOP])
            if size < 0:
                return REFUSED
            rows[row, SIZE] = size
    return REFUSED


@part
def _measure_document(data: Bytes, document: int, known: int, rows: Rows) -> int:
    """Assign ids to a document's names and compute its size; return the number of names so far."""
    first, total, largest = rows[document, FIRST], 0, 0
    count = rows[document, COUNT]
    for place in range(first, first + count):
        row = rows[place, ORDER]
        id = names.name_id(data, row, known, rows)
        if id < 0:
            return REFUSED
        known = max(known, id + 1)
        rows[row, ID] = id
        largest = max(largest, id)
        total += rows[row, SIZE]
    wide, size = width_of(largest), width_of(total)
    rows[document, SIZE] = 1 + count_width(count) + count * wide + (count + 1) * size + total
    return known


@part
def _measure_array(rows: Rows, array: int) -> None:
    row, count, total = array + 1, 0, 0
    while row < rows[array, CLOSED]:
        count += 1
        total += rows[row, SIZE]
        row = rows[row, CLOSED]
    rows[array, COUNT] = count
    rows[array, SIZE] = 1 + count_width(count) + (count + 1) * width_of(total) + total


@part
def _leaf_size(data: Bytes, kind: int, start: int, stop: int) -> int:
    if kind == STRING:
        length = stop - start - 5
        if not is_text(data, start + 4, stop - 1):
            return REFUSED
        return 1 + length if length < SHORT else 5 + length
    if kind == OBJECT_ID:
        return 1 + 24
    if kind == NULL:
        return 1
    if kind == BOOL:
        return 1 if data[start] <= 1 else REFUSED
    if kind == INT32:
        return 1 + integer_width(int32(data, start))
    if kind == INT64:
        return 1 + integer_width(int64(data, start))
    if kind == DATE:
        return 9 if FIRST_MILLI <= int64(data, start) <= LAST_MILLI else REFUSED
    if kind == BINARY:
        return _binary_size(data, start, stop)
    if kind == DECIMAL128:
        high, low, scale = unscaled(data, start)
        return 2 + width(high, low, scale) if scale >= 0 else REFUSED
    return 9  # a double


@part
def _binary_size(data: Bytes, start: int, stop: int) -> int:
    if data[start + 4] == 0:
        return stop - start
    return 1 + UUID_TEXT if data[start + 4] == 4 and stop - start == 5 + 16 else REFUSED


@part
def integer_width(number: int) -> int:
    if -0x80 <= number < 0x80:
        return 1
    if -0x8000 <= number < 0x8000:
        return 2
    return 4 if -0x80000000 <= number < 0x80000000 else 8


@part
def width_of(largest: int) -> int:
    return 1 if largest < 1 << 8 else 2 if largest < 1 << 16 else 3 if largest < 1 << 24 else 4


@part
def count_width(count: int) -> int:
    return 4 if count > 255 else 1


@part
def metadata_size(count: int, rows: Rows) -> int:
    size = width_of(max(names_size(count, rows), count))
    return 1 + (count + 2) * size + names_size(count, rows)


@part
def names_size(count: int, rows: Rows) -> int:
    total = 0
    for index in range(count):
        row = rows[index, NAMED]
        total += rows[row, NAME_END] - rows[row, NAME]
    return total
