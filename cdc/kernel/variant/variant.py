"""BSON to VARIANT in one pass over the bytes.

The result has the values of `cdc.model.encoding.variant`, with two differences: an object has its
values in the order of the document, and a dictionary has the names of many documents. Documents
with values that are written there as Extended JSON, and invalid ones, are refused here.

The header of a container precedes its values, and its size depends on them. So room is left for a
header of the last one's size, and the values are moved if it is another one.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from cdc.kernel.bson.decimals import is_negative, unscaled, width
from cdc.kernel.bson.elements import REFUSED, is_framed, size_of
from cdc.kernel.compiled import hot, part
from cdc.kernel.numbers import Bytes, copy, int32, int64, is_text, negate, put, put_hex, uint64
from cdc.kernel.variant.shapes import end_object, inner_node, next_node, skip_name
from cdc.kernel.variant.tables import (
    BEGINS,
    END,
    FIRST_NODE,
    HEADER,
    IDS,
    IS_ARRAY,
    LENGTH,
    MORE,
    NODE,
    ORDER,
    ROOT,
    SORTED,
    WIDE,
)
from cdc.kernel.variant.variant_bytes import Table, count_width, width_of
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
    MAX_DEPTH,
    NULL,
    OBJECT_ID,
    STRING,
)
from cdc.model.encoding import FIRST_MILLI, LAST_MILLI

_SHORT: Final = 64  # from this size on, the header of a string has a length of four bytes
_UUID_TEXT: Final = 36
# A hyphen precedes these bytes of a UUID.
_HYPHENS = np.array([index in (4, 6, 8, 10) for index in range(16)])
_HIGH_BITS, _ZERO = np.uint64(0x8080808080808080), np.uint64(0)

# Of an open container: where its header and its values begin, where its values begin in BEGINS, and
# their number.
_HEAD: Final = MORE
_BODY: Final = MORE + 1
_BASE: Final = MORE + 2
_COUNT: Final = MORE + 3


@part
def room(size: int) -> int:
    """The bytes that `write` may touch for a document of that size.

    A value with its id and its offset takes at most four times the bytes of its element; headers
    that are guessed too large, see `_guess`, at most as much again.
    """
    return 8 * size + 64


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
    level, at, end, is_array, budget = 0, start + 4, stop - 1, False, 4 * (stop - start)
    first, node, base, count = ROOT, ROOT, 0, 0
    head, guess = to, _guess(nodes[ROOT, HEADER], budget)
    budget -= guess
    to = body = head + guess
    while True:
        if at == end:
            if not is_array and not end_object(node, nodes, lists, names):
                return REFUSED
            to = _close(is_array, first, node, base, count, head, body, to, nodes, lists, out)
            if level == 0:
                return to
            level -= 1
            at, end, is_array = end + 1, lists[END, level], lists[IS_ARRAY, level] != 0
            first, node = lists[FIRST_NODE, level], lists[NODE, level]
            head, body = lists[_HEAD, level], lists[_BODY, level]
            base, count = lists[_BASE, level], lists[_COUNT, level]
            continue
        kind = np.int64(data[np.uint64(at)])
        if is_array:
            at = skip_name(data, at + 1, end)
            if at < 0:
                return REFUSED
        else:
            node = next_node(data, at + 1, end, node, nodes, lists, names)
            if node < 0:
                return REFUSED
            at += 1 + nodes[node, LENGTH]
        if base + count >= len(nodes):
            return REFUSED
        lists[BEGINS, base + count] = to
        count += 1
        size = size_of(kind, data, at, end)
        if size < 0:
            return REFUSED
        if kind in (DOCUMENT, ARRAY):
            if level == MAX_DEPTH:
                return REFUSED
            lists[END, level], lists[IS_ARRAY, level] = end, is_array
            lists[FIRST_NODE, level], lists[NODE, level] = first, node
            lists[_HEAD, level], lists[_BODY, level] = head, body
            lists[_BASE, level], lists[_COUNT, level] = base, count
            level += 1
            first = node = inner_node(first if is_array else node, nodes, lists)
            if first < 0:
                return REFUSED
            end, is_array = at + size - 1, kind == ARRAY
            base, count = base + count, 0
            head, guess = to, _guess(nodes[first, HEADER], budget)
            budget -= guess
            to = body = head + guess
            at += 4
        else:
            to = _write_leaf(data, kind, at, at + size, out, to)
            if to < 0:
                return REFUSED
            at += size


@part
def _guess(header: int, budget: int) -> int:
    return header if header <= budget else 0


@hot
def _close(
    is_array: bool,
    first: int,
    node: int,
    base: int,
    count: int,
    head: int,
    body: int,
    to: int,
    nodes: Table,
    lists: Table,
    out: Bytes,
) -> int:
    """Write the header of a container; return the position after the container."""
    total = to - body
    size, wide = width_of(total), 0 if is_array else nodes[node, WIDE]
    header = 1 + count_width(count) + count * wide + (count + 1) * size
    if head + header != body:
        _move(out, body, to, head + header)
    nodes[first, HEADER] = header
    if is_array:
        at = put(out, head, (count > 255) << 4 | (size - 1) << 2 | 3, 1)
        at = put(out, at, count, count_width(count))
        for number in range(count):
            at = _put_number(out, at, lists[BEGINS, base + number] - body, size)
    else:
        kind = (count > 255) << 6 | (wide - 1) << 4 | (size - 1) << 2 | 2
        at = put(out, put(out, head, kind, 1), count, count_width(count))
        place = nodes[node, ORDER]
        for number in range(place, place + count):
            at = _put_number(out, at, lists[IDS, number], wide)
        for number in range(place, place + count):
            begin = lists[BEGINS, base + lists[SORTED, number]]
            at = _put_number(out, at, begin - body, size)
    put(out, at, total, size)
    return head + header + total


@hot
def _put_number(out: Bytes, at: int, number: int, size: int) -> int:
    """`put`, faster for the usual sizes."""
    if size == 1:
        return put(out, at, number, 1)
    return put(out, at, number, 2) if size == 2 else put(out, at, number, size)


@part
def _move(out: Bytes, start: int, stop: int, to: int) -> None:
    """Move bytes to a place that may overlap them."""
    if to < start:
        copy(out, start, stop, out, to)
    else:
        to += stop - start
        while stop - start >= 8:
            to, stop = to - 8, stop - 8
            put(out, to, int64(out, stop), 8)
        while stop > start:
            to, stop = to - 1, stop - 1
            out[np.uint64(to)] = out[np.uint64(stop)]


@hot
def _write_leaf(data: Bytes, kind: int, start: int, stop: int, out: Bytes, at: int) -> int:
    if kind == STRING:
        return _write_text(data, start + 4, stop - 1, out, at)
    if kind == INT32:
        return _write_integer(out, at, int32(data, start))
    if kind == DOUBLE:
        return copy(data, start, start + 8, out, put(out, at, 7 << 2, 1))
    if kind == DATE:
        millis = int64(data, start)
        if not FIRST_MILLI <= millis <= LAST_MILLI:
            return REFUSED
        return put(out, put(out, at, 12 << 2, 1), millis * 1000, 8)
    if kind == OBJECT_ID:
        return put_hex(data, start, 12, out, _write_text_header(out, at, 24))
    if kind == INT64:
        return _write_integer(out, at, int64(data, start))
    if kind == BOOL:
        return put(out, at, 4 if data[start] else 8, 1) if data[start] <= 1 else REFUSED
    if kind == NULL:
        return put(out, at, 0, 1)
    if kind == DECIMAL128:
        return _write_decimal(data, start, out, at)
    if kind == BINARY:
        return _write_binary(data, start, stop, out, at)
    return REFUSED


@hot
def _write_text(data: Bytes, start: int, stop: int, out: Bytes, at: int) -> int:
    at = _write_text_header(out, at, stop - start)
    seen, index = _ZERO, start
    while index + 8 <= stop:
        seen |= uint64(data, index)
        at, index = put(out, at, int64(data, index), 8), index + 8
    while index < stop:
        seen |= np.uint64(data[np.uint64(index)])
        at, index = put(out, at, np.int64(data[np.uint64(index)]), 1), index + 1
    if seen & _HIGH_BITS != _ZERO and not is_text(data, start, stop):
        return REFUSED
    return at


@part
def _write_text_header(out: Bytes, at: int, length: int) -> int:
    if length < _SHORT:
        return put(out, at, length << 2 | 1, 1)
    return put(out, put(out, at, 16 << 2, 1), length, 4)


@part
def _write_integer(out: Bytes, at: int, number: int) -> int:
    if -0x80 <= number < 0x80:
        return put(out, put(out, at, 3 << 2, 1), number, 1)
    if -0x8000 <= number < 0x8000:
        return put(out, put(out, at, 4 << 2, 1), number, 2)
    if -0x80000000 <= number < 0x80000000:
        return put(out, put(out, at, 5 << 2, 1), number, 4)
    return put(out, put(out, at, 6 << 2, 1), number, 8)


@part
def _write_binary(data: Bytes, start: int, stop: int, out: Bytes, at: int) -> int:
    if data[start + 4] == 0:
        at = put(out, put(out, at, 15 << 2, 1), stop - start - 5, 4)
        return copy(data, start + 5, stop, out, at)
    if data[start + 4] != 4 or stop - start != 5 + 16:
        return REFUSED
    at = _write_text_header(out, at, _UUID_TEXT)
    for index in range(16):
        if _HYPHENS[index]:
            at = put(out, at, 0x2D, 1)
        at = put_hex(data, start + 5 + index, 1, out, at)
    return at


@part
def _write_decimal(data: Bytes, start: int, out: Bytes, at: int) -> int:
    high, low, scale = unscaled(data, start)
    if scale < 0:
        return REFUSED
    size = width(high, low, scale)
    if is_negative(data, start):
        high, low = negate(high, low)
    at = put(out, at, (8 if size == 4 else 9 if size == 8 else 10) << 2, 1)
    at = put(out, put(out, at, scale, 1), np.int64(low), min(size, 8))
    return put(out, at, np.int64(high), 8) if size == 16 else at
