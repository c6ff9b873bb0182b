"""BSON to VARIANT for measured documents, byte for byte as `cdc.model.encoding.variant` encodes
it."""

from __future__ import annotations

import numpy as np

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
    SIZE,
    START,
    STOP,
    WHERE,
    Rows,
)
from cdc.kernel.bson.decimals import is_negative, unscaled, width
from cdc.kernel.compiled import part
from cdc.kernel.numbers import Bytes, copy, int32, int64, negate, put, put_hex
from cdc.kernel.variant.variant_size import (
    SHORT,
    UUID_TEXT,
    count_width,
    integer_width,
    names_size,
    width_of,
)
from cdc.model.bson import (
    ARRAY,
    BINARY,
    BOOL,
    DATE,
    DECIMAL128,
    DOCUMENT,
    DOUBLE,
    INT32,
    INT64,
    NULL,
    OBJECT_ID,
    STRING,
)

# A hyphen precedes these bytes of a UUID.
_HYPHENS = np.array([index in (4, 6, 8, 10) for index in range(16)])


@part
def write(data: Bytes, count: int, rows: Rows, out: Bytes, at: int) -> int:
    """Write the measured document; return the position after it."""
    rows[0, WHERE] = at
    for row in range(count):
        kind = rows[row, KIND]
        if kind == DOCUMENT:
            _write_document(row, rows, out)
        elif kind == ARRAY:
            _write_array(row, rows, out)
        else:
            start, stop = rows[row, START], rows[row, STOP]
            _write_leaf(data, kind, start, stop, out, rows[row, WHERE])
    return at + rows[0, SIZE]


@part
def _write_document(document: int, rows: Rows, out: Bytes) -> None:
    first, count = rows[document, FIRST], rows[document, COUNT]
    total, largest = 0, 0
    for place in range(first, first + count):
        total += rows[rows[place, ORDER], SIZE]
        largest = max(largest, rows[rows[place, ORDER], ID])
    wide, size, large = width_of(largest), width_of(total), count > 255
    header = large << 6 | (wide - 1) << 4 | (size - 1) << 2 | 2
    at = put(out, rows[document, WHERE], header, 1)
    at = put(out, at, count, count_width(count))
    for place in range(first, first + count):
        at = put(out, at, rows[rows[place, ORDER], ID], wide)
    begin, offset = at + (count + 1) * size, 0
    for place in range(first, first + count):
        at = put(out, at, offset, size)
        rows[rows[place, ORDER], WHERE] = begin + offset
        offset += rows[rows[place, ORDER], SIZE]
    put(out, at, offset, size)


@part
def _write_array(array: int, rows: Rows, out: Bytes) -> None:
    count, total, row = rows[array, COUNT], 0, array + 1
    while row < rows[array, CLOSED]:
        total += rows[row, SIZE]
        row = rows[row, CLOSED]
    size, large = width_of(total), count > 255
    at = put(out, rows[array, WHERE], large << 4 | (size - 1) << 2 | 3, 1)
    at = put(out, at, count, count_width(count))
    begin, offset, row = at + (count + 1) * size, 0, array + 1
    while row < rows[array, CLOSED]:
        at = put(out, at, offset, size)
        rows[row, WHERE] = begin + offset
        offset += rows[row, SIZE]
        row = rows[row, CLOSED]
    put(out, at, offset, size)


@part
def _write_leaf(data: Bytes, kind: int, start: int, stop: int, out: Bytes, at: int) -> None:
    if kind == STRING:
        at = _write_text_header(out, at, stop - start - 5)
        copy(data, start + 4, stop - 1, out, at)
    elif kind == OBJECT_ID:
        put_hex(data, start, 12, out, _write_text_header(out, at, 24))
    elif kind == NULL:
        out[at] = 0
    elif kind == BOOL:
        out[at] = 4 if data[start] else 8
    elif kind == INT32:
        _write_integer(out, at, int32(data, start))
    elif kind == INT64:
        _write_integer(out, at, int64(data, start))
    elif kind == DATE:
        put(out, put(out, at, 12 << 2, 1), int64(data, start) * 1000, 8)
    elif kind == DECIMAL128:
        _write_decimal(data, start, out, at)
    elif kind == BINARY and data[start + 4] == 0:
        at = put(out, put(out, at, 15 << 2, 1), stop - start - 5, 4)
        copy(data, start + 5, stop, out, at)
    elif kind == BINARY:
        _write_uuid(data, start + 5, out, _write_text_header(out, at, UUID_TEXT))
    elif kind == DOUBLE:
        copy(data, start, stop, out, put(out, at, 7 << 2, 1))


@part
def _write_text_header(out: Bytes, at: int, length: int) -> int:
    if length < SHORT:
        return put(out, at, length << 2 | 1, 1)
    return put(out, put(out, at, 16 << 2, 1), length, 4)


@part
def _write_uuid(data: Bytes, start: int, out: Bytes, at: int) -> None:
    for index in range(16):
        if _HYPHENS[index]:
            at = put(out, at, 0x2D, 1)
        at = put_hex(data, start + index, 1, out, at)


@part
def _write_integer(out: Bytes, at: int, number: int) -> None:
    size = integer_width(number)
    kind = 3 if size == 1 else 4 if size == 2 else 5 if size == 4 else 6
    put(out, put(out, at, kind << 2, 1), number, size)


@part
def _write_decimal(data: Bytes, start: int, out: Bytes, at: int) -> None:
    high, low, scale = unscaled(data, start)
    size = width(high, low, scale)
    if is_negative(data, start):
        high, low = negate(high, low)
    out[at] = (8 if size == 4 else 9 if size == 8 else 10) << 2
    out[at + 1] = scale
    put(out, at + 2, np.int64(low), min(size, 8))
    if size == 16:
        put(out, at + 10, np.int64(high), 8)


@part
def write_metadata(data: Bytes, count: int, rows: Rows, out: Bytes, at: int) -> int:
    """Write the names in the order of their ids; return the position after them."""
    size = width_of(max(names_size(count, rows), count))
    at = put(out, put(out, at, (size - 1) << 6 | 1, 1), count, size)
    begin, offset = at + (count + 1) * size, 0
    for index in range(count):
        row = rows[index, NAMED]
        at = put(out, at, offset, size)
        start, stop = rows[row, NAME], rows[row, NAME_END]
        offset = copy(data, start, stop, out, begin + offset) - begin
    put(out, at, offset, size)
    return begin + offset
