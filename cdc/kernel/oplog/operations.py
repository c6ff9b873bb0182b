"""Operations of oplog entries and their pre-images, located in replies of the server."""

from __future__ import annotations

from typing import Final

import numpy as np

from cdc.kernel.bson.elements import REFUSED, find, is_framed, is_named, next_element
from cdc.kernel.compiled import entry, part
from cdc.kernel.numbers import Bytes, int32, int64
from cdc.kernel.variant.variant_bytes import Table
from cdc.model.bson import ARRAY, BINARY, DATE, DOCUMENT, INT32, INT64, STRING, TIMESTAMP

NONE: Final = -(2**63)

# Columns of an operation. A field of variable size has two columns: its start, and in the next one
# its end; its start is NONE if it is missing. KIND: the letter in `op`. TIME: the 64 bits of `ts`.
# INDEX: of the operation in its transaction. GROUP: the row of its collection in `groups`.
# IMAGE: the place of its pre-image. IN_TRANSACTION: not 0 if its session is that of a transaction.
KIND: Final = 0
TIME: Final = 1
WALL: Final = 2
INDEX: Final = 3
NAMESPACE: Final = 4
UUID: Final = 6
CHANGE: Final = 8
KEY: Final = 10
SESSION: Final = 12
NUMBER: Final = 14
PREVIOUS: Final = 16
GROUP: Final = 18
IMAGE: Final = 19
IN_TRANSACTION: Final = 21
COUNT: Final = 22

# Columns of a collection: the places of its name and of its UUID.
GROUP_NAME: Final = 0
GROUP_UUID: Final = 2
GROUP_COUNT: Final = 4

INSERT, UPDATE, DELETE, COMMAND = map(ord, "iudc")


def _name(text: bytes) -> Bytes:
    return np.frombuffer(text, np.uint8)


_OP, _NS, _UI, _O, _O2 = map(_name, (b"op", b"ns", b"ui", b"o", b"o2"))
_TS, _T, _V, _WALL, _PREVIOUS = map(_name, (b"ts", b"t", b"v", b"wall", b"prevOpTime"))
_LSID, _NUMBER, _STATEMENT = map(_name, (b"lsid", b"txnNumber", b"stmtId"))
_RETRY, _APPLY, _ADMIN = map(_name, (b"needsRetryImage", b"applyOps", b"admin.$cmd"))
_ID, _INDEX, _IMAGE = map(_name, (b"_id", b"applyOpsIndex", b"preImage"))


@entry
def locate(data: Bytes, start: int, stop: int, operations: Table, groups: Table) -> tuple[int, int]:
    """Fill a row for each operation of the entries in an array; return their number.

    The second number is that of the rows in `groups`. The first is negative if
    `cdc.model.oplog.unfold` may refuse an entry, or if there are more rows than the tables have.
    """
    count, group_count, at = 0, 0, start + 4
    if not is_framed(data, start, stop):
        return REFUSED, 0
    while at < stop - 1:
        value, end = next_element(data, at, stop - 1)
        if value < 0 or data[at] != DOCUMENT or count >= len(operations):
            return REFUSED, 0
        row = operations[count]
        if not _read(data, value, end, row) or row[TIME] == NONE or row[WALL] == NONE:
            return REFUSED, 0
        first = count
        count = _unfold(data, operations, count) if row[KIND] == COMMAND else count + 1
        if count < 0:
            return REFUSED, 0
        for number in range(first, count):
            group_count = _assign_group(data, operations[number], groups, group_count)
            if group_count < 0:
                return REFUSED, 0
        at = end
    return count, group_count


@part
def _read(data: Bytes, start: int, stop: int, row: Bytes) -> bool:
    """Read the fields of an entry, or of an operation in a transaction; False if one is unknown."""
    for column in range(COUNT):
        row[column] = NONE
    row[INDEX] = row[IN_TRANSACTION] = 0
    at = start + 4
    while at < stop - 1:
        value, end = next_element(data, at, stop - 1)
        if value < 0 or not _take(data, at, value, end, row):
            return False
        at = end
    if row[KIND] == COMMAND:
        return row[NAMESPACE] != NONE and row[CHANGE] != NONE
    has_key = row[KEY] != NONE or row[KIND] == DELETE
    is_known = row[KIND] == INSERT or row[KIND] == UPDATE or row[KIND] == DELETE
    return (
        is_known
        and has_key
        and row[UUID] != NONE
        and row[NAMESPACE] != NONE
        and (row[CHANGE] != NONE)
    )


@part
def _take(data: Bytes, at: int, value: int, end: int, row: Bytes) -> bool:
    """Record one field; False if it is unknown or of another type than usual."""
    kind = data[at]
    if is_named(data, at, value, _OP):
        row[KIND] = np.int64(data[value + 4]) if kind == STRING else NONE
        return kind == STRING and end - value == 6
    if is_named(data, at, value, _NS):
        return _note(kind == STRING, value + 4, end - 1, NAMESPACE, row)
    if is_named(data, at, value, _UI):
        is_uuid = kind == BINARY and end - value == 21 and data[value + 4] == 4
        return _note(is_uuid, value + 5, end, UUID, row)
    if is_named(data, at, value, _O):
        return _note(kind == DOCUMENT, value, end, CHANGE, row)
    if is_named(data, at, value, _O2):
        return _note(kind == DOCUMENT, value, end, KEY, row)
    return _take_of_entry(data, at, value, end, row)


@part
def _take_of_entry(data: Bytes, at: int, value: int, end: int, row: Bytes) -> bool:
    kind = data[at]
    if is_named(data, at, value, _TS):
        row[TIME] = int64(data, value) if kind == TIMESTAMP else NONE
        return kind == TIMESTAMP
    if is_named(data, at, value, _WALL):
        row[WALL] = int64(data, value) if kind == DATE else NONE
        return kind == DATE
    if is_named(data, at, value, _LSID):
        return _note(kind == DOCUMENT, value, end, SESSION, row)
    if is_named(data, at, value, _NUMBER):
        return _note(kind == INT64, value, end, NUMBER, row)
    if is_named(data, at, value, _PREVIOUS):
        return _note(kind == DOCUMENT, value, end, PREVIOUS, row)
    is_plain = is_named(data, at, value, _T) or is_named(data, at, value, _V)
    return is_plain or is_named(data, at, value, _STATEMENT) or is_named(data, at, value, _RETRY)


@part
def _note(is_right: bool, start: int, stop: int, column: int, row: Bytes) -> bool:
    row[column], row[column + 1] = start, stop
    return is_right


@part
def _unfold(data: Bytes, operations: Table, count: int) -> int:
    """Replace the row of a transaction by those of its operations; return the row after them."""
    row = operations[count]
    time, wall, session, session_end = row[TIME], row[WALL], row[SESSION], row[SESSION + 1]
    number, change, change_end = row[NUMBER], row[CHANGE], row[CHANGE + 1]
    is_admin = is_named(data, row[NAMESPACE] - 1, row[NAMESPACE + 1] + 1, _ADMIN)
    if not is_admin or session == NONE or number == NONE or row[PREVIOUS] == NONE:
        return REFUSED
    at, before, _ = find(data, row[PREVIOUS], row[PREVIOUS + 1], _TS)
    if at < 0 or data[at] != TIMESTAMP or int64(data, before) != 0:
        return REFUSED
    at, value, end = find(data, change, change_end, _APPLY)
    if at != change + 4 or end != change_end - 1 or data[at] != ARRAY:
        return REFUSED
    at, index = value + 4, 0
    while at < end - 1:
        value, stop = next_element(data, at, end - 1)
        if value < 0 or data[at] != DOCUMENT or count >= len(operations):
            return REFUSED
        row = operations[count]
        if not _read(data, value, stop, row) or row[KIND] == COMMAND or not _is_inner(row):
            return REFUSED
        row[TIME], row[WALL], row[INDEX] = time, wall, index
        row[SESSION], row[SESSION + 1], row[NUMBER] = session, session_end, number
        row[IN_TRANSACTION] = 1
        at, count, index = stop, count + 1, index + 1
    return count


@part
def _is_inner(row: Bytes) -> bool:
    """Whether an operation in a transaction has only the usual fields."""
    is_timed = row[TIME] != NONE or row[WALL] != NONE or row[PREVIOUS] != NONE
    return not is_timed and row[SESSION] == NONE and row[NUMBER] == NONE


@part
def _assign_group(data: Bytes, row: Bytes, groups: Table, count: int) -> int:
    """Number the collection of an operation; return the number of collections, or REFUSED."""
    for group in range(count - 1, -1, -1):
        if _is_in_group(data, row, groups[group]):
            row[GROUP] = group
            return count
    if count == len(groups):
        return REFUSED
    row[GROUP] = count
    for column in range(2):
        groups[count, GROUP_NAME + column] = row[NAMESPACE + column]
        groups[count, GROUP_UUID + column] = row[UUID + column]
    return count + 1


@part
def _is_in_group(data: Bytes, row: Bytes, group: Bytes) -> bool:
    is_same = _are_same(data, row[UUID], row[UUID + 1], group[GROUP_UUID], group[GROUP_UUID + 1])
    return is_same and _are_same(
        data, row[NAMESPACE], row[NAMESPACE + 1], group[GROUP_NAME], group[GROUP_NAME + 1]
    )


@part
def _are_same(data: Bytes, start: int, stop: int, other: int, other_stop: int) -> bool:
    if stop - start != other_stop - other:
        return False
    same = 0
    while same < stop - start and data[start + same] == data[other + same]:
        same += 1
    return same == stop - start


@entry
def attach(
    data: Bytes, start: int, stop: int, operations: Table, group: int, row: int, base: int
) -> int:
    """Give operations of one collection their pre-images, which are in an array in their order.

    Args:
        data: the pre-images, as `config.system.preimages` has them.
        start: where the array starts.
        stop: where it ends.
        operations: the operations.
        group: the collection.
        row: the operation to begin with.
        base: added to the place of each image.

    Returns the operation after the last one that got an image; REFUSED if an image has an unusual
    form.
    """
    at = start + 4
    if not is_framed(data, start, stop):
        return REFUSED
    while at < stop - 1:
        value, end = next_element(data, at, stop - 1)
        if value < 0 or data[at] != DOCUMENT:
            return REFUSED
        key, key_start, key_end = find(data, value, end, _ID)
        image, image_start, image_end = find(data, value, end, _IMAGE)
        if key < 0 or data[key] != DOCUMENT or image < 0 or data[image] != DOCUMENT:
            return REFUSED
        time, time_value, _ = find(data, key_start, key_end, _TS)
        index, index_value, _ = find(data, key_start, key_end, _INDEX)
        if time < 0 or index < 0 or data[time] != TIMESTAMP:
            return REFUSED
        if data[index] != INT64 and data[index] != INT32:
            return REFUSED
        place = int64(data, index_value) if data[index] == INT64 else int32(data, index_value)
        row = _skip_to(operations, group, row, int64(data, time_value), place)
        if row < len(operations) and _is_at(operations[row], int64(data, time_value), place):
            operations[row, IMAGE] = base + image_start
            operations[row, IMAGE + 1] = base + image_end
            row += 1
        at = end
    return row


@part
def _skip_to(operations: Table, group: int, row: int, time: int, index: int) -> int:
    """The first operation of the collection from `row` on that is not before an image's place."""
    while row < len(operations):
        own, own_index = np.uint64(operations[row, TIME]), operations[row, INDEX]
        is_before = own < np.uint64(time) or (own == np.uint64(time) and own_index < index)
        is_other = operations[row, GROUP] != group or operations[row, KIND] == INSERT
        if not is_before and not is_other:
            return row
        row += 1
    return row


@part
def _is_at(operation: Bytes, time: int, index: int) -> bool:
    return operation[TIME] == time and operation[INDEX] == index
