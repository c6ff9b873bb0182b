"""BSON to relaxed Extended JSON text, as `cdc.model.bson.extended_json` and `json.dumps` write
it."""

from __future__ import annotations

from typing import Final

import numpy as np

from cdc.kernel.bson import names
from cdc.kernel.bson.bson_table import CLOSED, KIND, NAME, NAME_END, PARENT, START, STOP, Rows
from cdc.kernel.bson.elements import REFUSED
from cdc.kernel.compiled import part
from cdc.kernel.numbers import Bytes, copy, int32, int64, is_text, put, put_digits
from cdc.kernel.text.json_values import (
    put_base64,
    put_date,
    put_decimal,
    put_double,
    put_object_id,
    put_quoted,
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
    NULL,
    OBJECT_ID,
    STRING,
)

_NULL, _TRUE, _FALSE = (np.frombuffer(text, np.uint8) for text in (b"null", b"true", b"false"))
_COMMA, _COLON, _QUOTE = 0x2C, 0x3A, 0x22
_OBJECT, _OBJECT_END, _LIST, _LIST_END = 0x7B, 0x7D, 0x5B, 0x5D
# A text has at most this many times the bytes of its document: 11 bytes of a date become 48, one
# control character 6; commas and quotes are added.
ROOM: Final = 12


@part
def is_valid(data: Bytes, count: int, rows: Rows) -> bool:
    """Whether all names are UTF-8, and no name occurs twice in a document."""
    for row in range(count):
        if rows[row, KIND] == DOCUMENT and names.sort(data, row, 0, rows) < 0:
            return False
    return True


@part
def write(data: Bytes, count: int, rows: Rows, out: Bytes, at: int) -> int:
    """Write the document of `count` rows; return the position after it, or REFUSED."""
    container = -1
    for row in range(count + 1):
        while container >= 0 and rows[container, CLOSED] == row:
            at = put(out, at, _OBJECT_END if rows[container, KIND] == DOCUMENT else _LIST_END, 1)
            container = rows[container, PARENT]
        if row == count or at < 0:
            return at
        if row > 0:
            at = _write_name(data, row, container, rows, out, at)
        kind = rows[row, KIND]
        if kind in (DOCUMENT, ARRAY):
            at = put(out, at, _OBJECT if kind == DOCUMENT else _LIST, 1)
            container = row
        else:
            at = _write_leaf(data, kind, rows[row, START], rows[row, STOP], out, at)
            if at < 0:
                return REFUSED
    return at


@part
def _write_name(data: Bytes, row: int, container: int, rows: Rows, out: Bytes, at: int) -> int:
    if row > container + 1:
        at = put(out, at, _COMMA, 1)
    if rows[container, KIND] == DOCUMENT:
        at = put_quoted(data, rows[row, NAME], rows[row, NAME_END], out, at)
        at = put(out, at, _COLON, 1)
    return at


@part
def _write_leaf(data: Bytes, kind: int, start: int, stop: int, out: Bytes, at: int) -> int:
    if kind == STRING:
        if not is_text(data, start + 4, stop - 1):
            return REFUSED
        return put_quoted(data, start + 4, stop - 1, out, at)
    if kind == NULL:
        return copy(_NULL, 0, 4, out, at)
    if kind == BOOL:
        return _write_bool(data[start], out, at)
    if kind == INT32:
        return put_digits(out, at, int32(data, start))
    if kind == DOUBLE:
        return put_double(data, start, out, at)
    if kind == DATE:
        return put_date(out, at, int64(data, start))
    if kind == DECIMAL128:
        return put_decimal(data, start, out, at)
    if kind == BINARY:
        return put_base64(data, start + 5, stop, out, at)
    if kind == OBJECT_ID:
        return put_object_id(data, start, out, at)
    return put_digits(out, at, int64(data, start))


@part
def _write_bool(stored: int, out: Bytes, at: int) -> int:
    if stored == 1:
        return copy(_TRUE, 0, 4, out, at)
    return copy(_FALSE, 0, 5, out, at) if stored == 0 else REFUSED
