"""Columns of many documents at once: their bytes one behind the other, and where each one ends.

Each of these goes on with the document `at` until one is refused, or does not fit any more, and
returns its number and why it ended there. A document that begins before 0 is none; its cell is
empty. What is written: `out[ends[n]:ends[n + 1]]` for document n.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from cdc.kernel import events, extended_json, keys, measure, variant
from cdc.kernel.compiled import entry
from cdc.kernel.elements import REFUSED, documents
from cdc.kernel.event_columns import COUNT
from cdc.kernel.nodes import SIZE, Rows, parse, table
from cdc.kernel.numbers import Bytes, copy

Places = np.ndarray[tuple[int], np.dtype[np.int64]]
Ends = np.ndarray[tuple[int], np.dtype[np.int32]]

DONE: Final = 0
FULL: Final = 1
DOUBTFUL: Final = 2
_LARGE: Final = 2**20


@entry
def variants(
    data: Bytes,
    starts: Places,
    stops: Places,
    at: int,
    values: Bytes,
    value_ends: Ends,
    metadata: Bytes,
    metadata_ends: Ends,
    rows: Rows,
) -> tuple[int, int]:
    """(value, metadata) of VARIANTs."""
    while at < len(starts):
        value_at, metadata_at = np.int64(value_ends[at]), np.int64(metadata_ends[at])
        if starts[at] >= 0:
            count = parse(data, starts[at], stops[at], rows)
            known = measure.measure(data, count, rows) if count > 0 else -1
            if known < 0:
                return at, DOUBTFUL
            size = measure.metadata_size(known, rows)
            if value_at + rows[0, SIZE] > len(values) or metadata_at + size > len(metadata):
                return at, FULL
            value_at = variant.write(data, count, rows, values, value_at)
            metadata_at = variant.write_metadata(data, known, rows, metadata, metadata_at)
        at += 1
        value_ends[at] = value_at
        metadata_ends[at] = metadata_at
    return at, DONE


@entry
def gathered(
    data: Bytes, starts: Places, stops: Places, at: int, out: Bytes, ends: Ends
) -> tuple[int, int]:
    """The bytes as they are."""
    while at < len(starts):
        place, size = np.int64(ends[at]), stops[at] - starts[at]
        if starts[at] >= 0:
            if place + size > len(out):
                return at, FULL
            place = copy(data, starts[at], stops[at], out, place)
        at += 1
        ends[at] = place
    return at, DONE


@entry
def relaxed_json(
    data: Bytes, starts: Places, stops: Places, at: int, out: Bytes, ends: Ends, rows: Rows
) -> tuple[int, int]:
    """Relaxed Extended JSON. Large documents are refused: room is kept for the longest text."""
    while at < len(starts):
        place, size = np.int64(ends[at]), stops[at] - starts[at]
        if starts[at] >= 0:
            count = parse(data, starts[at], stops[at], rows) if size <= _LARGE else REFUSED
            if count < 0 or not extended_json.is_told(data, count, rows):
                return at, DOUBTFUL
            if place + size * extended_json.ROOM > len(out):
                return at, FULL
            place = extended_json.write(data, count, rows, out, place)
            if place < 0:
                return at, DOUBTFUL
        at += 1
        ends[at] = place
    return at, DONE


@entry
def key_texts(
    data: Bytes,
    starts: Places,
    stops: Places,
    alone: bool,
    at: int,
    out: Bytes,
    ends: Ends,
    whole_out: Bytes,
    whole_ends: Ends,
) -> tuple[int, int]:
    """`key` and `document_key` of documents; with `alone`, of those that hold only an `_id`."""
    while at < len(starts):
        element = keys.locate(data, starts[at], stops[at], alone)
        if element < 0:
            return at, DOUBTFUL
        room, place, whole_place = keys.room(data, element), ends[at], whole_ends[at]
        if place + room > len(out) or whole_place + room > len(whole_out):
            return at, FULL
        at += 1
        ends[at] = keys.write_key(data, element, out, place)
        whole_ends[at] = keys.write_document_key(data, element, whole_out, whole_place)
    return at, DONE


@entry
def places(data: Bytes, start: int, stop: int, starts: Places, stops: Places) -> int:
    """As `elements.documents`."""
    return documents(data, start, stop, starts, stops)


def compiled() -> None:
    """Compiles, or loads, all of the above, by using it."""
    document = np.frombuffer(b"\x05\0\0\0\0", np.uint8)
    begin, out, ends = np.array([0]), np.empty(16, np.uint8), np.zeros(2, np.int32)
    variants(document, begin, begin + 5, 0, out, ends, out.copy(), ends.copy(), table(5))
    gathered(document, begin, begin + 5, 0, out, ends)
    relaxed_json(document, begin, begin + 5, 0, np.empty(64, np.uint8), ends, table(5))
    key_texts(document, begin, begin + 5, True, 0, out, ends, out.copy(), ends.copy())
    places(document, 0, 5, begin, begin.copy())
    events.locate(document, 0, 5, np.empty((1, COUNT), np.int64))
