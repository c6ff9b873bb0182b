"""Columns of many documents at once: the bytes of all cells, and the end of each cell.

Each function starts at document `at` and stops when it refuses a document, when the output is
full, or at the end. It returns the number of the document where it stopped, and DOUBTFUL, FULL
or DONE. A negative start means that there is no document; its cell is empty. The cell of
document n is `out[ends[n]:ends[n + 1]]`.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from cdc.kernel.bson import change_events
from cdc.kernel.bson.elements import documents
from cdc.kernel.compiled import entry
from cdc.kernel.numbers import Bytes, copy
from cdc.kernel.text import extended_json, merge_keys
from cdc.kernel.variant import names as dictionary
from cdc.kernel.variant import shapes, tables, variant
from cdc.kernel.variant.variant_bytes import Table

# What callers use from here.
__all__ = [
    "DONE",
    "DOUBTFUL",
    "FULL",
    "change_events",
    "end_dictionary",
    "gather",
    "places",
    "tables",
    "variant",
    "write_keys",
    "write_relaxed_json",
    "write_variants",
]

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
    dictionaries: Ends,
    metadata: Bytes,
    metadata_ends: Ends,
    nodes: Table,
    lists: Table,
    names: Bytes,
) -> tuple[int, int]:
    """Encode documents as VARIANTs. `dictionaries` gets the number of each one's dictionary.

    `metadata` gets the dictionaries, each when the next one begins; `end_dictionary` adds the last.
    `nodes`, `lists` and `names` are those of `tables.learn_nothing`.
    """
    while at < len(starts):
        place, size = np.int64(value_ends[at]), stops[at] - starts[at]
        if starts[at] >= 0:
            if place + variant.room(size) > len(values):
                return at, FULL
            if shapes.must_forget(size, nodes, lists, names):
                if not dictionary.put_dictionary(lists, names, metadata, metadata_ends):
                    return at, FULL
                shapes.forget(nodes, lists)
            place = variant.write(data, starts[at], stops[at], nodes, lists, names, values, place)
            if place < 0:
                return at, DOUBTFUL
            dictionaries[at] = lists[tables.STATE, tables.WRITTEN]
        at += 1
        value_ends[at] = place
    return at, DONE


@entry
def end_dictionary(
    lists: Table, names: Bytes, metadata: Bytes, metadata_ends: Ends
) -> tuple[int, int]:
    """Write the last dictionary; return the number of all, and FULL or DONE."""
    is_written = dictionary.put_dictionary(lists, names, metadata, metadata_ends)
    return lists[tables.STATE, tables.WRITTEN], DONE if is_written else FULL


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
