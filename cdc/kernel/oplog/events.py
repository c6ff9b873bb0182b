"""Change events from operations: `cdc.model.oplog.change_event` in compiled form."""

from __future__ import annotations

from typing import Final

import numpy as np

from cdc.kernel.bson.elements import REFUSED, find
from cdc.kernel.compiled import entry, part
from cdc.kernel.numbers import Bytes, copy, int32, put
from cdc.kernel.oplog import descriptions, images, operations, positions
from cdc.kernel.oplog.changes import COLUMNS as CHANGE_COLUMNS
from cdc.kernel.oplog.changes import DEPTH, MOST
from cdc.kernel.oplog.images import COLUMNS as FRAME_COLUMNS
from cdc.kernel.oplog.images import NO_ROOM
from cdc.kernel.oplog.operations import (
    CHANGE,
    DELETE,
    IMAGE,
    INDEX,
    INSERT,
    KEY,
    KIND,
    NAMESPACE,
    NONE,
    NUMBER,
    SESSION,
    TIME,
    UPDATE,
    UUID,
    WALL,
)
from cdc.kernel.variant.variant_bytes import Table
from cdc.model.bson import DATE, DOCUMENT, INT32, INT64, STRING, TIMESTAMP

# What callers use from here.
__all__ = [
    "CHANGE_COLUMNS",
    "DEPTH",
    "DONE",
    "DOUBTFUL",
    "FRAME_COLUMNS",
    "FULL",
    "MOST",
    "operations",
    "write",
]

DONE: Final = 0
FULL: Final = 1
DOUBTFUL: Final = 2

# More than the bytes of an event besides its documents, its key and its names.
_EVENT: Final = 768


def _field(kind: int, name: bytes) -> Bytes:
    """An element without its value."""
    return np.frombuffer(bytes([kind]) + name + b"\0", np.uint8)


_ELEMENT = _field(DOCUMENT, b"")
_LSID, _TXN = _field(DOCUMENT, b"lsid"), _field(INT64, b"txnNumber")
_ID, _DATA = _field(DOCUMENT, b"_id"), _field(STRING, b"_data")
_TYPE, _TIME = _field(STRING, b"operationType"), _field(TIMESTAMP, b"clusterTime")
_WALL, _AFTER = _field(DATE, b"wallTime"), _field(DOCUMENT, b"fullDocument")
_NS, _DB, _COLL = _field(DOCUMENT, b"ns"), _field(STRING, b"db"), _field(STRING, b"coll")
_KEY, _UPDATE = _field(DOCUMENT, b"documentKey"), _field(DOCUMENT, b"updateDescription")
_BEFORE = _field(DOCUMENT, b"fullDocumentBeforeChange")
_INSERT_TYPE, _UPDATE_TYPE, _REPLACE_TYPE, _DELETE_TYPE = (
    np.frombuffer(text, np.uint8) for text in (b"insert", b"update", b"replace", b"delete")
)
_VERSION, _DIFF, _OWN_ID = (np.frombuffer(text, np.uint8) for text in (b"$v", b"diff", b"_id"))
_DOT: Final = ord(".")
_KIND_OF_VERSION: Final = 2


@entry
def write(
    data: Bytes,
    table: Table,
    before: Bytes,
    changes: Table,
    frames: Table,
    path: Bytes,
    out: Bytes,
    state: np.ndarray[tuple[int], np.dtype[np.int64]],
) -> int:
    """Write a change event for each operation, as the elements of an array.

    Args:
        data: the reply with the entries.
        table: the operations, see `operations.locate`.
        before: the replies with the pre-images.
        changes: room for `DEPTH * MOST` changes.
        frames: room for `DEPTH` frames.
        path: room for the path of a field.
        out: the output.
        state: the number of the operation, and the position in the output, to begin with; at the
            end those where it stopped.

    Returns DONE; FULL if the output has no room for the operation; DOUBTFUL if `change_event` may
    refuse it, or if it is rare.
    """
    row, to = state[0], state[1]
    while row < len(table):
        end = _write_event(data, table[row], before, changes, frames, path, out, to)
        if end < 0:
            state[0], state[1] = row, to
            return FULL if end == NO_ROOM else DOUBTFUL
        row, to = row + 1, end
    state[0], state[1] = row, to
    return DONE


@part
def _write_event(
    data: Bytes,
    operation: Bytes,
    before: Bytes,
    changes: Table,
    frames: Table,
    path: Bytes,
    out: Bytes,
    to: int,
) -> int:
    change, change_end = operation[CHANGE], operation[CHANGE + 1]
    key, key_end = operation[KEY], operation[KEY + 1]
    kind, image, image_end = operation[KIND], operation[IMAGE], operation[IMAGE + 1]
    if kind == DELETE:
        key, key_end = change, change_end
    if kind == INSERT:
        image = image_end = 0
    elif image == NONE:
        return REFUSED
    name_size = operation[NAMESPACE + 1] - operation[NAMESPACE]
    room = 6 * (key_end - key) + (image_end - image) + (change_end - change) + name_size
    if operation[SESSION] != NONE:
        room += operation[SESSION + 1] - operation[SESSION]
    if to + _EVENT + room > len(out):
        return NO_ROOM
    diff, diff_end, is_replace = change, change_end, False
    if kind == UPDATE:
        diff, diff_end, is_replace = _read_change(data, change, change_end)
        if diff < 0:
            return REFUSED
    to = copy(_ELEMENT, 0, len(_ELEMENT), out, to)
    begin, to = to, to + 4
    to = _put_head(data, operation, key, key_end, is_replace, out, to)
    if to < 0:
        return to
    if kind == INSERT or is_replace:
        to = _put_document(_AFTER, data, change, change_end, out, to)
    elif kind == UPDATE:
        to = copy(_AFTER, 0, len(_AFTER), out, to)
        to = images.apply(data, diff, diff_end, before, image, image_end, changes, frames, out, to)
        if to < 0:
            return to
    # The room for the rest must not depend on what the diff added.
    if to + _EVENT + (key_end - key) + (image_end - image) + name_size > len(out):
        return NO_ROOM
    to = _put_namespace(data, operation[NAMESPACE], operation[NAMESPACE + 1], out, to)
    if to < 0:
        return to
    to = _put_document(_KEY, data, key, key_end, out, to)
    if kind == UPDATE and not is_replace:
        to = copy(_UPDATE, 0, len(_UPDATE), out, to)
        to = descriptions.describe(data, diff, diff_end, changes, frames, path, out, to)
        if to < 0:
            return to
        if to + _EVENT + (image_end - image) > len(out):
            return NO_ROOM
    if kind != INSERT:
        to = _put_document(_BEFORE, before, image, image_end, out, to)
    to = put(out, to, 0, 1)
    put(out, begin, to - begin, 4)
    return to


@part
def _read_change(data: Bytes, start: int, stop: int) -> tuple[int, int, bool]:
    """Where the diff of an update is, and whether there is none, because it is a replacement."""
    own, _, _ = find(data, start, stop, _OWN_ID)
    if own >= 0:
        return start, stop, True
    version, version_value, version_end = find(data, start, stop, _VERSION)
    diff, value, end = find(data, start, stop, _DIFF)
    if version != start + 4 or diff != version_end or end != stop - 1:
        return REFUSED, REFUSED, False
    is_known = data[version] == INT32 and int32(data, version_value) == _KIND_OF_VERSION
    if not is_known or data[diff] != DOCUMENT:
        return REFUSED, REFUSED, False
    return value, end, False


@part
def _put_head(
    data: Bytes, operation: Bytes, key: int, key_end: int, is_replace: bool, out: Bytes, to: int
) -> int:
    """Write the fields before the documents."""
    if operation[SESSION] != NONE and operation[operations.IN_TRANSACTION] != 0:
        to = _put_document(_LSID, data, operation[SESSION], operation[SESSION + 1], out, to)
        to = copy(_TXN, 0, len(_TXN), out, to)
        to = copy(data, operation[NUMBER], operation[NUMBER] + 8, out, to)
    to = copy(_ID, 0, len(_ID), out, to)
    token, to = to, copy(_DATA, 0, len(_DATA), out, to + 4)
    text, to = to, to + 4
    to = positions.write(
        data, operation[TIME], operation[INDEX], operation[UUID], key, key_end, out, to
    )
    if to < 0:
        return to
    to = put(out, to, 0, 1)
    put(out, text, to - text - 4, 4)
    to = put(out, to, 0, 1)
    put(out, token, to - token, 4)
    to = copy(_TYPE, 0, len(_TYPE), out, to)
    if operation[KIND] == INSERT:
        to = _put_text(_INSERT_TYPE, 0, len(_INSERT_TYPE), out, to)
    elif operation[KIND] == DELETE:
        to = _put_text(_DELETE_TYPE, 0, len(_DELETE_TYPE), out, to)
    elif is_replace:
        to = _put_text(_REPLACE_TYPE, 0, len(_REPLACE_TYPE), out, to)
    else:
        to = _put_text(_UPDATE_TYPE, 0, len(_UPDATE_TYPE), out, to)
    to = put(out, copy(_TIME, 0, len(_TIME), out, to), operation[TIME], 8)
    return put(out, copy(_WALL, 0, len(_WALL), out, to), operation[WALL], 8)


@part
def _put_namespace(data: Bytes, start: int, stop: int, out: Bytes, to: int) -> int:
    dot = start
    while dot < stop and data[dot] != _DOT:
        dot += 1
    if dot == stop:
        return REFUSED
    to = copy(_NS, 0, len(_NS), out, to)
    begin, to = to, to + 4
    to = _put_text(data, start, dot, out, copy(_DB, 0, len(_DB), out, to))
    to = _put_text(data, dot + 1, stop, out, copy(_COLL, 0, len(_COLL), out, to))
    to = put(out, to, 0, 1)
    put(out, begin, to - begin, 4)
    return to


@part
def _put_document(name: Bytes, data: Bytes, start: int, stop: int, out: Bytes, to: int) -> int:
    return copy(data, start, stop, out, copy(name, 0, len(name), out, to))


@part
def _put_text(data: Bytes, start: int, stop: int, out: Bytes, to: int) -> int:
    to = put(out, to, stop - start + 1, 4)
    return put(out, copy(data, start, stop, out, to), 0, 1)
