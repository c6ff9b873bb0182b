"""Columns of many documents at once: the bytes of all cells, and the end of each cell.

Each function starts at document `at` and stops when it refuses a document, when the output is
full, or at the end. It returns the number of the document where it stopped, and DOUBTFUL, FULL or
DONE. A negative start means that there is no document; its cell is empty. The cell of document n
is `out[ends[n]:ends[n + 1]]`.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from cdc.kernel.bson import change_events
from cdc.kernel.bson.bson_table import SIZE, Rows, parse, table
from cdc.kernel.bson.elements import REFUSED, documents
from cdc.kernel.compiled import entry
from cdc.kernel.event_columns import COUNT
from cdc.kernel.numbers import Bytes, copy
from cdc.kernel.text import extended_json, merge_keys
from cdc.kernel.variant import variant, variant_size

Places = np.ndarray[tuple[int], np.dtype[np.int64]]
Ends = np.ndarray[tuple[int], np.dtype[np.int32]]

DONE: Final = 0
FULL: Final = 1
DOUBTFUL: Final = 2
_LARGE: Final = 2**20


@entry
def write_variants(
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
    """Encode documents as VARIANTs, in two columns: value and metadata."""
    while at < len(starts):
        value_at, metadata_at = np.int64(value_ends[at]), np.int64(metadata_ends[at])
        if starts[at] >= 0:
            count = parse(data, starts[at], stops[at], rows)
            known = variant_size.measure(data, count, rows) if count > 0 else -1
            if known < 0:
                return at, DOUBTFUL
            size = variant_size.metadata_size(known, rows)
            if value_at + rows[0, SIZE] > len(values) or metadata_at + size > len(metadata):
                return at, FULL
            value_at = variant.write(data, count, rows, values, value_at)
            metadata_at = variant.write_metadata(data, known, rows, metadata, metadata_at)
        at += 1
        value_ends[at] = value_at
        metadata_ends[at] = metadata_at
    return at, DONE


@entry
def gather(
    data: Bytes, starts: Places, stops: Places, at: int, out: Bytes, ends: Ends
) -> tuple[int, int]:
    """Copy the bytes of documents unchanged."""
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
def write_relaxed_json(
    data: Bytes, starts: Places, stops: Places, at: int, out: Bytes, ends: Ends, rows: Rows
) -> tuple[int, int]:
    """Encode documents as relaxed Extended JSON.

    Documents above 1 MiB are refused: the output needs room for the longest possible text.
    """
    while at < len(starts):
        place, size = np.int64(ends[at]), stops[at] - starts[at]
        if starts[at] >= 0:
            count = parse(data, starts[at], stops[at], rows) if size <= _LARGE else REFUSED
            if count < 0 or not extended_json.is_valid(data, count, rows):
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
def write_keys(
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
    """Write `key` and `document_key` of documents; with `alone`, of `_id`-only documents."""
    while at < len(starts):
        element = merge_keys.locate(data, starts[at], stops[at], alone)
        if element < 0:
            return at, DOUBTFUL
        room, place, whole_place = merge_keys.room(data, element), ends[at], whole_ends[at]
        if place + room > len(out) or whole_place + room > len(whole_out):
            return at, FULL
        at += 1
        ends[at] = merge_keys.write_key(data, element, out, place)
        whole_ends[at] = merge_keys.write_document_key(data, element, whole_out, whole_place)
    return at, DONE


@entry
def places(data: Bytes, start: int, stop: int, starts: Places, stops: Places) -> int:
    """Locate the documents of an array, see `elements.documents`."""
    return documents(data, start, stop, starts, stops)


def compile_all() -> None:
    """Compile or load all of these functions by calling each of them."""
    document = np.frombuffer(b"\x05\0\0\0\0", np.uint8)
    begin, out, ends = np.array([0]), np.empty(16, np.uint8), np.zeros(2, np.int32)
    write_variants(document, begin, begin + 5, 0, out, ends, out.copy(), ends.copy(), table(5))
    gather(document, begin, begin + 5, 0, out, ends)
    write_relaxed_json(document, begin, begin + 5, 0, np.empty(64, np.uint8), ends, table(5))
    write_keys(document, begin, begin + 5, True, 0, out, ends, out.copy(), ends.copy())
    places(document, 0, 5, begin, begin.copy())
    change_events.locate(document, 0, 5, np.empty((1, COUNT), np.int64))
