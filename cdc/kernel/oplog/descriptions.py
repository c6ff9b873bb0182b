"""The `updateDescription` of an event: `cdc.model.oplog.describe_diff` in compiled form."""

from __future__ import annotations

from typing import Final

import numpy as np

from cdc.kernel.bson.elements import REFUSED
from cdc.kernel.compiled import part
from cdc.kernel.numbers import Bytes, copy, put, put_digits
from cdc.kernel.oplog.changes import (
    ACTION,
    AT,
    DELETED,
    DEPTH,
    END,
    NAME,
    NESTED,
    SIZE,
    VALUE,
    is_of_array,
    read,
)
from cdc.kernel.oplog.images import CHANGE, IS_ARRAY, LAST, LENGTH, NO_ROOM, VALUE_AT
from cdc.kernel.variant.variant_bytes import Table
from cdc.model.bson import ARRAY, DOCUMENT, INT32, STRING

_UPDATED_FIELDS, _REMOVED_FIELDS, _TRUNCATED_ARRAYS = range(3)
_NAMES = tuple(
    np.frombuffer(name + b"\0", np.uint8)
    for name in (b"updatedFields", b"removedFields", b"truncatedArrays")
)
_FIELD, _NEW_SIZE = (np.frombuffer(name, np.uint8) for name in (b"field\0", b"newSize\0"))
_DOT: Final = ord(".")
# More than the bytes of a list, or of an element of it, besides its path and its value.
_ENTRY: Final = 64
# Column of a frame: the length of the path that precedes the names at its level.
_PATH: Final = VALUE_AT


@part
def describe(
    data: Bytes,
    diff: int,
    diff_end: int,
    changes: Table,
    frames: Table,
    path: Bytes,
    out: Bytes,
    to: int,
) -> int:
    """Write the description; return the position after it, REFUSED or NO_ROOM.

    `path` is room for the path of a field. The other arguments are those of `images.apply`.
    """
    begin, to = to, to + 4
    for which in range(3):
        if to + _ENTRY > len(out):
            return NO_ROOM
        to = put(out, to, DOCUMENT if which == _UPDATED_FIELDS else ARRAY, 1)
        name = _NAMES[which]
        to = copy(name, 0, len(name), out, to)
        to = _put_list(which, data, diff, diff_end, changes, frames, path, out, to)
        if to < 0:
            return to
    to = put(out, to, 0, 1)
    put(out, begin, to - begin, 4)
    return to


@part
def _put_list(
    which: int,
    data: Bytes,
    diff: int,
    diff_end: int,
    changes: Table,
    frames: Table,
    path: Bytes,
    out: Bytes,
    to: int,
) -> int:
    """Write one of the three lists; return the position after it, with room for one more byte."""
    begin, to, count, level = to, to + 4, 0, 0
    if not _open(data, diff, diff_end, False, 0, 0, changes, frames[0]):
        return REFUSED
    while True:
        frame = frames[level]
        row = frame[CHANGE]
        if row == frame[LAST]:
            if level == 0:
                break
            level -= 1
            continue
        frame[CHANGE] = row + 1
        action = changes[row, ACTION]
        end = _put_name(data, changes[row], frame, path)
        if end < 0:
            return REFUSED
        if to + end + _ENTRY + changes[row, END] - changes[row, VALUE] > len(out):
            return NO_ROOM
        if action == NESTED:
            level += 1
            if level == DEPTH or level >= len(frames):
                return REFUSED
            start, stop, first = changes[row, VALUE], changes[row, END], frame[LAST]
            is_array = is_of_array(data, start, stop)
            path[end] = _DOT
            if not _open(data, start, stop, is_array, first, end + 1, changes, frames[level]):
                return REFUSED
            if which == _TRUNCATED_ARRAYS and is_array and frames[level, LENGTH] >= 0:
                to = _put_truncated(path, end, frames[level, LENGTH], count, out, to)
                count += 1
        elif which == _UPDATED_FIELDS and action != DELETED:
            to = put(out, to, np.int64(data[changes[row, AT]]), 1)
            to = put(out, copy(path, 0, end, out, to), 0, 1)
            to = copy(data, changes[row, VALUE], changes[row, END], out, to)
        elif which == _REMOVED_FIELDS and action == DELETED:
            to = put(out, to, STRING, 1)
            to = put(out, put_digits(out, to, count), 0, 1)
            to = _put_text(path, end, out, to)
            count += 1
    to = put(out, to, 0, 1)
    put(out, begin, to - begin, 4)
    return to


@part
def _open(
    data: Bytes,
    start: int,
    stop: int,
    is_array: bool,
    first: int,
    path: int,
    changes: Table,
    frame: Bytes,
) -> bool:
    last, length = read(data, start, stop, is_array, changes, first)
    frame[CHANGE], frame[LAST], frame[IS_ARRAY] = first, last, is_array
    frame[LENGTH], frame[_PATH] = length, path
    return last >= 0


@part
def _put_name(data: Bytes, change: Bytes, frame: Bytes, path: Bytes) -> int:
    """Append the name or the index of a change to the path; return its length, or REFUSED."""
    end = frame[_PATH]
    if frame[IS_ARRAY]:
        return put_digits(path, end, change[SIZE]) if end + _ENTRY <= len(path) else REFUSED
    if end + change[SIZE] + _ENTRY > len(path):
        return REFUSED
    return copy(data, change[NAME], change[NAME] + change[SIZE], path, end)


@part
def _put_text(path: Bytes, end: int, out: Bytes, to: int) -> int:
    to = put(out, to, end + 1, 4)
    return put(out, copy(path, 0, end, out, to), 0, 1)


@part
def _put_truncated(path: Bytes, end: int, length: int, count: int, out: Bytes, to: int) -> int:
    to = put(out, to, DOCUMENT, 1)
    to = put(out, put_digits(out, to, count), 0, 1)
    begin, to = to, to + 4
    to = copy(_FIELD, 0, len(_FIELD), out, put(out, to, STRING, 1))
    to = _put_text(path, end, out, to)
    to = copy(_NEW_SIZE, 0, len(_NEW_SIZE), out, put(out, to, INT32, 1))
    to = put(out, put(out, to, length, 4), 0, 1)
    put(out, begin, to - begin, 4)
    return to
