"""BSON to relaxed Extended JSON text, as `cdc.model.bson.extended_json` and `json.dumps` write
it."""

from __future__ import annotations

from typing import Final

import numpy as np

from cdc.kernel.bson.elements import REFUSED, is_framed, size_of
from cdc.kernel.compiled import hot, part
from cdc.kernel.numbers import Bytes, copy, int32, int64, is_text, put, put_digits
from cdc.kernel.text.json_values import (
    put_base64,
    put_date,
    put_decimal,
    put_double,
    put_object_id,
    put_quoted,
)
from cdc.kernel.variant.shapes import end_object, inner_node, next_node, skip_name
from cdc.kernel.variant.tables import (
    END,
    FIRST_NODE,
    IS_ARRAY,
    LENGTH,
    NAME,
    NODE,
    ROOT,
)
from cdc.kernel.variant.variant_bytes import Table
from cdc.model.bson import (
    ARRAY,
    BINARY,
    BOOL,
    DATE,
    DECIMAL128,
    DOCUMENT,
    DOUBLE,
    INT32,
    MAX_DEPTH,
    NULL,
    OBJECT_ID,
    STRING,
    TIMESTAMP,
)

_NULL, _TRUE, _FALSE = (np.frombuffer(text, np.uint8) for text in (b"null", b"true", b"false"))
_COMMA, _COLON, _QUOTE = 0x2C, 0x3A, 0x22
_OBJECT, _OBJECT_END, _LIST, _LIST_END = 0x7B, 0x7D, 0x5B, 0x5D
# A text has at most this many times the bytes of its document: 11 bytes of a date become 48, one
# control character 6; commas and quotes are added.
ROOM: Final = 12


@part
def write(
    data: Bytes,
    start: int,
    stop: int,
    nodes: Table,
    lists: Table,
    names: Bytes,
    out: Bytes,
    to: int,
) -> int:
    """Write a document; return the position after it, or REFUSED."""
    if not is_framed(data, start, stop):
        return REFUSED
    level, at, end, is_array, is_empty = 0, start + 4, stop - 1, False, True
    first, node = ROOT, ROOT
    to = put(out, to, _OBJECT, 1)
    while True:
        if at == end:
            if not is_array and not end_object(node, nodes, lists, names):
                return REFUSED
            to = put(out, to, _LIST_END if is_array else _OBJECT_END, 1)
            if level == 0:
                return to
            level -= 1
            at, end, is_array = end + 1, lists[END, level], lists[IS_ARRAY, level] != 0
            first, node, is_empty = lists[FIRST_NODE, level], lists[NODE, level], False
            continue
        kind = np.int64(data[np.uint64(at)])
        if not is_empty:
            to = put(out, to, _COMMA, 1)
        is_empty = False
        if is_array:
            at = skip_name(data, at + 1, end)
            if at < 0:
                return REFUSED
        else:
            node = next_node(data, at + 1, end, node, nodes, lists, names)
            if node < 0:
                return REFUSED
            place, length = nodes[node, NAME], nodes[node, LENGTH]
            to = put(out, put_quoted(names, place, place + length - 1, out, to), _COLON, 1)
            at += 1 + length
        size = size_of(kind, data, at, end)
        if size < 0 or kind == TIMESTAMP:
            return REFUSED
        if kind in (DOCUMENT, ARRAY):
            if level == MAX_DEPTH:
                return REFUSED
            lists[END, level], lists[IS_ARRAY, level] = end, is_array
            lists[FIRST_NODE, level], lists[NODE, level] = first, node
            level += 1
            first = node = inner_node(first if is_array else node, nodes, lists)
            if first < 0:
                return REFUSED
            end, is_array, is_empty = at + size - 1, kind == ARRAY, True
            to = put(out, to, _LIST if is_array else _OBJECT, 1)
            at += 4
        else:
            to = _write_leaf(data, kind, at, at + size, out, to)
            if to < 0:
                return REFUSED
            at += size


@hot
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
