"""Columns of many documents at once: the bytes of all cells, and the end of each cell.

Each function starts at document `at` and stops when it refuses a document, when the output is
full, or at the end. It returns the number of the document where it stopped, and DOUBTFUL, FULL,
CHANGED or DONE. A negative start means that there is no document; its cell is empty. The cell of
document n is `out[ends[n]:ends[n + 1]]`.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from cdc.kernel.bson import change_events
from cdc.kernel.bson.elements import documents
from cdc.kernel.compiled import entry
from cdc.kernel.event_columns import COUNT
from cdc.kernel.numbers import Bytes, copy
from cdc.kernel.text import extended_json, merge_keys
from cdc.kernel.variant import shapes, variant
from cdc.kernel.variant.shapes import tables as learn_nothing
from cdc.kernel.variant.variant_bytes import Table

Places = np.ndarray[tuple[int], np.dtype[np.int64]]
Ends = np.ndarray[tuple[int], np.dtype[np.int32]]

DONE: Final = 0
FULL: Final = 1
DOUBTFUL: Final = 2
CHANGED: Final = 3
_LARGE: Final = 2**20


@entry
def write_variants(
    data: Bytes,
    starts: Places,
    stops: Places,
    at: int,
    values: Bytes,
    value_ends: Ends,
    nodes: Table,
    lists: Table,
    names: Bytes,
) -> tuple[int, int]:
    """Encode documents as VARIANTs whose names are in one dictionary, see `shapes.tables`.

    Stops with CHANGED before a document that needs a new dictionary. The caller takes the current
    one with `write_dictionary` and goes on.
    """
    while at < len(starts):
        place, size = np.int64(value_ends[at]), stops[at] - starts[at]
        if starts[at] >= 0:
            if shapes.must_forget(size, nodes, lists, names):
                return at, CHANGED
            if place + variant.room(size) > len(values):
                return at, FULL
            place = variant.write(data, starts[at], stops[at], nodes, lists, names, values, place)
            if place < 0:
                return at, DOUBTFUL
            shapes.end_document(lists)
        at += 1
        value_ends[at] = place
    return at, DONE


@entry
def write_dictionary(nodes: Table, lists: Table, names: Bytes, out: Bytes) -> int:
    """Write the dictionary and begin a new one; return its size, which may be above the room."""
    size = shapes.metadata_size(lists)
    if size <= len(out):
        shapes.write_metadata(lists, names, out, 0)
        shapes.forget(nodes, lists)
    return size


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
    data: Bytes,
    starts: Places,
    stops: Places,
    at: int,
    out: Bytes,
    ends: Ends,
    nodes: Table,
    lists: Table,
    names: Bytes,
) -> tuple[int, int]:
    """Encode documents as relaxed Extended JSON.

    Documents above 1 MiB are refused: the output needs room for the longest possible text.
    """
    while at < len(starts):
        place, size = np.int64(ends[at]), stops[at] - starts[at]
        if starts[at] >= 0:
            if size > _LARGE:
                return at, DOUBTFUL
            if place + size * extended_json.ROOM > len(out):
                return at, FULL
            if shapes.must_forget(size, nodes, lists, names):
                shapes.forget(nodes, lists)
            place = extended_json.write(
                data, starts[at], stops[at], nodes, lists, names, out, place
            )
            if place < 0:
                return at, DOUBTFUL
            shapes.end_document(lists)
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
    learnt = learn_nothing(5)
    write_variants(document, begin, begin + 5, 0, np.empty(256, np.uint8), ends, *learnt)
    write_dictionary(*learnt, out)
    gather(document, begin, begin + 5, 0, out, ends)
    write_relaxed_json(document, begin, begin + 5, 0, np.empty(64, np.uint8), ends, *learnt)
    write_keys(document, begin, begin + 5, True, 0, out, ends, out.copy(), ends.copy())
    places(document, 0, 5, begin, begin.copy())
    change_events.locate(document, 0, 5, np.empty((1, COUNT), np.int64))
