"""The document after an update: `cdc.model.oplog.apply_diff` in compiled form."""

from __future__ import annotations

from typing import Final

import numpy as np

from cdc.kernel.bson.elements import REFUSED, is_framed
from cdc.kernel.compiled import part
from cdc.kernel.numbers import Bytes, copy, put, put_digits
from cdc.kernel.oplog.changes import (
    ACTION,
    AT,
    DEPTH,
    END,
    INSERTED,
    NAME,
    NESTED,
    SIZE,
    UPDATED,
    USED,
    VALUE,
    any_element,
    is_of_array,
    read,
)
from cdc.kernel.variant.variant_bytes import Table
from cdc.model.bson import ARRAY, DOCUMENT, NULL

# The output has no room for the result.
NO_ROOM: Final = -2
_AT_END: Final = -3
# An element of an array without its value: its type, its index and a zero byte.
_ITEM: Final = 16

# Columns of a frame, the state at one level. IMAGE_AT, IMAGE_END: the rest of the image there. OUT:
# where the output begins. FIRST, LAST: the rows of its changes. CHANGE: in an array, the row of the
# next change. IS_ARRAY, INDEX, LENGTH: in an array, the next index and the new length. VALUE_AT,
# VALUE_END: the value with a nested change.
IMAGE_AT: Final = 0
IMAGE_END: Final = 1
OUT: Final = 2
FIRST: Final = 3
LAST: Final = 4
CHANGE: Final = 5
IS_ARRAY: Final = 6
INDEX: Final = 7
LENGTH: Final = 8
VALUE_AT: Final = 9
VALUE_END: Final = 10
COLUMNS: Final = 11


@part
def apply(
    data: Bytes,
    diff: int,
    diff_end: int,
    images: Bytes,
    start: int,
    stop: int,
    changes: Table,
    frames: Table,
    out: Bytes,
    to: int,
) -> int:
    """Write the changed document; return the position after it, REFUSED or NO_ROOM.

    Args:
        data: the bytes that contain the diff, from `diff` to `diff_end`.
        diff: where the diff starts.
        diff_end: where it ends.
        images: the bytes that contain the document before, from `start` to `stop`.
        start: where the document starts.
        stop: where it ends.
        changes: room for changes, see `cdc.kernel.oplog.changes`.
        frames: room for a row per level.
        out: the output.
        to: where to write.
    """
    level = 0
    to = _open(data, diff, diff_end, images, start, stop, False, 0, changes, frames[0], to)
    while to >= 0:
        frame = frames[level]
        # A step in a document writes each of its fields and each change at most once.
        if to + frame[IMAGE_END] - frame[IMAGE_AT] + diff_end - diff + _ITEM > len(out):
            return NO_ROOM
        if frame[IS_ARRAY]:
            to, row = _step_in_array(data, images, changes, frame, out, to)
        else:
            to, row = _step_in_document(data, images, changes, frame, out, to)
        if to < 0:
            return to
        if row == _AT_END:
            to = put(out, to, 0, 1)
            put(out, frame[OUT], to - frame[OUT], 4)
            if level == 0:
                return to
            level -= 1
        else:
            level += 1
            if level == DEPTH or level >= len(frames):
                return REFUSED
            to = _open(
                data,
                changes[row, VALUE],
                changes[row, END],
                images,
                frame[VALUE_AT],
                frame[VALUE_END],
                is_of_array(data, changes[row, VALUE], changes[row, END]),
                frame[LAST],
                changes,
                frames[level],
                to,
            )
    return to


@part
def _open(
    data: Bytes,
    diff: int,
    diff_end: int,
    images: Bytes,
    start: int,
    stop: int,
    is_array: bool,
    first: int,
    changes: Table,
    frame: Bytes,
    to: int,
) -> int:
    """Begin a document or an array; return the position of its first element, or REFUSED."""
    last, length = read(data, diff, diff_end, is_array, changes, first)
    if last < 0 or not is_framed(images, start, stop):
        return REFUSED
    frame[IMAGE_AT], frame[IMAGE_END], frame[OUT] = start + 4, stop - 1, to
    frame[FIRST], frame[LAST], frame[CHANGE] = first, last, first
    frame[IS_ARRAY], frame[INDEX], frame[LENGTH] = is_array, 0, length
    return to + 4


@part
def _step_in_document(
    data: Bytes, images: Bytes, changes: Table, frame: Bytes, out: Bytes, to: int
) -> tuple[int, int]:
    """Write fields up to the value of one with a nested change; return its row, or _AT_END."""
    begin = at = frame[IMAGE_AT]
    while at < frame[IMAGE_END]:
        value, end = any_element(images, at, frame[IMAGE_END])
        if value < 0:
            return REFUSED, REFUSED
        row = _find(data, images, at + 1, value - at - 2, changes, frame[FIRST], frame[LAST])
        if row >= 0:
            if changes[row, USED] != 0:  # a name that occurs twice
                return REFUSED, REFUSED
            to = copy(images, begin, at, out, to)
            begin, changes[row, USED] = end, 1
            if changes[row, ACTION] == UPDATED:
                to = copy(data, changes[row, AT], changes[row, END], out, to)
            elif changes[row, ACTION] == NESTED:
                if not _fits(data, changes[row], images[at]):
                    return REFUSED, REFUSED
                to = copy(images, at, value, out, to)
                frame[IMAGE_AT], frame[VALUE_AT], frame[VALUE_END] = end, value, end
                return to, row
        at = end
    to = copy(images, begin, at, out, to)
    frame[IMAGE_AT] = at
    for row in range(frame[FIRST], frame[LAST]):
        action = changes[row, ACTION]
        if action == INSERTED:
            to = copy(data, changes[row, AT], changes[row, END], out, to)
        elif changes[row, USED] == 0 and action in (UPDATED, NESTED):
            return REFUSED, REFUSED
    return to, _AT_END


@part
def _find(
    data: Bytes, images: Bytes, name: int, size: int, changes: Table, first: int, last: int
) -> int:
    """The row of the change of a field; REFUSED if the field is not changed."""
    for row in range(first, last):
        if changes[row, SIZE] == size:
            same, other = 0, changes[row, NAME]
            while same < size and data[other + same] == images[name + same]:
                same += 1
            if same == size:
                return row
    return REFUSED


@part
def _fits(data: Bytes, change: Bytes, kind: int) -> bool:
    """Whether a nested change is one of a value of that type."""
    return kind == (ARRAY if is_of_array(data, change[VALUE], change[END]) else DOCUMENT)


@part
def _step_in_array(
    data: Bytes, images: Bytes, changes: Table, frame: Bytes, out: Bytes, to: int
) -> tuple[int, int]:
    """Write elements up to the value of one with a nested change; return its row, or _AT_END."""
    while True:
        index, row = frame[INDEX], frame[CHANGE]
        is_kept = frame[LENGTH] < 0 or index < frame[LENGTH]
        has_value = frame[IMAGE_AT] < frame[IMAGE_END] and is_kept
        if not has_value and index >= frame[LENGTH] and row == frame[LAST]:
            return to, _AT_END
        if to + _ITEM > len(out):
            return NO_ROOM, NO_ROOM
        kind, value, end = NULL, 0, 0
        if has_value:
            kind = np.int64(images[frame[IMAGE_AT]])
            value, end = any_element(images, frame[IMAGE_AT], frame[IMAGE_END])
            if value < 0:
                return REFUSED, REFUSED
            frame[IMAGE_AT] = end
        frame[INDEX] = index + 1
        is_changed = row < frame[LAST] and changes[row, SIZE] == index
        if is_changed:
            frame[CHANGE] = row + 1
            if changes[row, ACTION] == NESTED:
                if not has_value or not _fits(data, changes[row], kind):
                    return REFUSED, REFUSED
                frame[VALUE_AT], frame[VALUE_END] = value, end
                return _begin_item(kind, index, out, to), row
            kind = np.int64(data[changes[row, AT]])
            value, end = changes[row, VALUE], changes[row, END]
        if to + _ITEM + end - value > len(out):
            return NO_ROOM, NO_ROOM
        to = _begin_item(kind, index, out, to)
        to = copy(data if is_changed else images, value, end, out, to)


@part
def _begin_item(kind: int, index: int, out: Bytes, to: int) -> int:
    """Write an element of an array without its value."""
    to = put_digits(out, put(out, to, kind, 1), index)
    return put(out, to, 0, 1)
