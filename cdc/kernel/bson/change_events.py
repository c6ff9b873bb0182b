"""Places of the fields of change events in a reply: one row of numbers per event.

The columns are those of `cdc.kernel.event_columns`.
"""

from __future__ import annotations

import numpy as np

from cdc.kernel.bson.elements import documents, find, is_named, next_element
from cdc.kernel.compiled import entry, part
from cdc.kernel.event_columns import (
    AFTER,
    BEFORE,
    COLL,
    DATABASE,
    KEY,
    NONE,
    OPERATION,
    POSITION,
    SESSION,
    START,
    STOP,
    TIME,
    TRANSACTION,
    TYPE,
    UNUSUAL,
    UPDATE,
    WALL,
    Events,
)
from cdc.kernel.numbers import Bytes, int64, is_text
from cdc.model.bson import DATE, DOCUMENT, INT64, NULL, STRING, TIMESTAMP


def _name(text: bytes) -> Bytes:
    return np.frombuffer(text, np.uint8)


_ID, _DATA, _NS, _DB, _COLL = map(_name, (b"_id", b"_data", b"ns", b"db", b"coll"))
_OPERATION, _TIME, _WALL = map(_name, (b"operationType", b"clusterTime", b"wallTime"))
_BEFORE, _AFTER = map(_name, (b"fullDocumentBeforeChange", b"fullDocument"))
_KEY, _UPDATE = map(_name, (b"documentKey", b"updateDescription"))
_SESSION, _NUMBER = map(_name, (b"lsid", b"txnNumber"))
# An event with one of these fields was changed by the pipeline or split by the server.
_SPLIT, _OVERSIZE, _PASSES, _WHOLE = map(_name, (b"splitEvent", b"oversize", b"passes", b"whole"))
_TO = _name(b"to")
_INSERT, _DELETE = _name(b"insert"), _name(b"delete")
_UPDATED, _REPLACED = _name(b"update"), _name(b"replace")


@entry
def locate(data: Bytes, start: int, stop: int, events: Events) -> int:
    """Fill a row for each event of the array that fills those bytes; return their number.

    The result is negative if the array contains anything but documents, or more than there are
    rows. An event whose fields are not of the usual form is marked in the column UNUSUAL.
    """
    count = documents(data, start, stop, events[:, START], events[:, STOP])
    for row in range(count):
        _locate(data, events[row, START], events[row, STOP], events[row])
    return count


@part
def _locate(data: Bytes, start: int, stop: int, event: Bytes) -> None:
    for column in range(len(event)):
        event[column] = NONE
    event[START], event[STOP], event[UNUSUAL] = start, stop, 0
    at = start + 4
    while at < stop - 1:
        value, end = next_element(data, at, stop - 1)
        if value < 0 or not _takes(data, at, value, end, event):
            event[UNUSUAL] = 1
            return
        at = end
    for column in (POSITION, TIME, OPERATION, DATABASE, COLL, KEY):
        if event[column] == NONE:
            event[UNUSUAL] = 1


@part
def _takes(data: Bytes, at: int, value: int, end: int, event: Bytes) -> bool:
    """Record the place of one field; return False if the field makes the event unusual.

    The size of a value depends on its type. Its bytes must not be read before the type is checked.
    """
    kind = data[at]
    if is_named(data, at, value, _ID):
        return kind == DOCUMENT and _takes_text(data, value, end, _DATA, POSITION, event)
    if is_named(data, at, value, _NS):
        is_whole = kind == DOCUMENT and _takes_text(data, value, end, _DB, DATABASE, event)
        return is_whole and _takes_text(data, value, end, _COLL, COLL, event)
    if is_named(data, at, value, _OPERATION):
        return kind == STRING and _takes_operation(data, value + 4, end - 1, event)
    if is_named(data, at, value, _TIME):
        return kind == TIMESTAMP and _takes_number(data, value, TIME, event)
    if is_named(data, at, value, _WALL):
        return kind == DATE and _takes_number(data, value, WALL, event)
    return _takes_document(data, at, value, end, event)


@part
def _takes_document(data: Bytes, at: int, value: int, end: int, event: Bytes) -> bool:
    kind = data[at]
    if is_named(data, at, value, _KEY):
        return _note(kind == DOCUMENT, value, end, KEY, event)
    if is_named(data, at, value, _BEFORE):
        return kind == NULL or _note(kind == DOCUMENT, value, end, BEFORE, event)
    if is_named(data, at, value, _AFTER):
        return kind == NULL or _note(kind == DOCUMENT, value, end, AFTER, event)
    if is_named(data, at, value, _UPDATE):
        return _note(kind == DOCUMENT, value, end, UPDATE, event)
    if is_named(data, at, value, _SESSION):
        return _note(kind == DOCUMENT, value, end, SESSION, event)
    if is_named(data, at, value, _NUMBER):
        return _note(kind == INT64, value, end, TRANSACTION, event)
    return not _is_unusual(data, at, value)


@part
def _is_unusual(data: Bytes, at: int, value: int) -> bool:
    if is_named(data, at, value, _SPLIT) or is_named(data, at, value, _OVERSIZE):
        return True
    if is_named(data, at, value, _PASSES) or is_named(data, at, value, _WHOLE):
        return True
    return is_named(data, at, value, _TO)


@part
def _note(is_right: bool, start: int, stop: int, column: int, event: Bytes) -> bool:
    event[column], event[column + 1] = start, stop
    return is_right


@part
def _takes_number(data: Bytes, at: int, column: int, event: Bytes) -> bool:
    """Record the 64 bits of a value; its type must have that size."""
    event[column] = int64(data, at)
    return True


@part
def _takes_text(data: Bytes, start: int, stop: int, name: Bytes, column: int, event: Bytes) -> bool:
    """Record the place of a string in a document; return False if it is missing or invalid."""
    at, value, end = find(data, start, stop, name)
    if at < 0 or data[at] != STRING or not is_text(data, value + 4, end - 1):
        return False
    return _note(True, value + 4, end - 1, column, event)


@part
def _takes_operation(data: Bytes, start: int, stop: int, event: Bytes) -> bool:
    for number, name in enumerate((_INSERT, _UPDATED, _REPLACED, _DELETE)):
        if is_named(data, start - 1, stop + 1, name):
            event[TYPE] = number
            return _note(True, start, stop, OPERATION, event)
    return False
