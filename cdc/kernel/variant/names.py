"""The dictionary of names that documents share: the id of each name, and their order."""

from __future__ import annotations

from typing import Final

import numpy as np

from cdc.kernel.bson.elements import REFUSED
from cdc.kernel.compiled import part
from cdc.kernel.numbers import Bytes, copy, is_text, put, uint64
from cdc.kernel.variant.tables import (
    FILLED,
    KNOWN,
    LENGTHS,
    NAME_SLOTS,
    NAMES,
    PREFIXES,
    STATE,
    TURN,
    WRITTEN,
)
from cdc.kernel.variant.variant_bytes import UTF16, Numbers, Table, compare, width_of

# Half of the slots are free. More probes than this find only names that were made to collide.
_MOST_PROBES: Final = 64
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_SIGN, _HALF, _EIGHT = np.uint64(2**63), np.uint64(32), np.uint64(8)


@part
def find_name(data: Bytes, at: int, end: int, nodes: Table, lists: Table, names: Bytes) -> int:
    """Return the id of the name at `at`, which may be new; REFUSED if it is invalid."""
    stop, prefix = at, np.uint64(0)
    while stop < end and data[np.uint64(stop)] != 0:
        if stop < at + 8:
            prefix = prefix << _EIGHT | np.uint64(UTF16[data[np.uint64(stop)]])
        stop += 1
    if stop >= end:
        return REFUSED
    if at < stop < at + 8:
        prefix = prefix << np.uint64(8 * (at + 8 - stop))
    key, length = np.int64(prefix ^ _SIGN), stop + 1 - at
    mask, base = 2 * len(nodes) - 1, lists[STATE, TURN] * len(nodes) + 1
    slot, probes = slot_of(_mix(data, at, stop, prefix), mask), 0
    while lists[NAME_SLOTS, slot] >= base:
        probes += 1
        if probes == _MOST_PROBES:
            return REFUSED
        id = lists[NAME_SLOTS, slot] - base
        is_alike = lists[PREFIXES, id] == key and lists[LENGTHS, id] == length
        if is_alike and _is_same(data, at + 8, stop, names, lists[NAMES, id] + 8):
            return id
        slot = (slot + 1) & mask
    id, filled = lists[STATE, KNOWN], lists[STATE, FILLED]
    if id + 1 >= len(nodes) or filled + length > len(names) or not is_text(data, at, stop):
        return REFUSED
    lists[NAME_SLOTS, slot] = base + id
    lists[NAMES, id], lists[LENGTHS, id], lists[PREFIXES, id] = filled, length, key
    names[copy(data, at, stop, names, filled)] = 0
    lists[STATE, KNOWN], lists[STATE, FILLED] = id + 1, filled + length
    return id


@part
def _mix(data: Bytes, at: int, stop: int, prefix: np.uint64) -> np.uint64:
    """A number that depends on all bytes of a name; `prefix` has the first 8."""
    mixed = prefix
    for place in range(at + 8, stop - 8, 8):
        mixed = (mixed ^ uint64(data, place)) * _FACTOR
        mixed ^= mixed >> _HALF
    return mixed if stop <= at + 8 else (mixed ^ uint64(data, stop - 8)) * _FACTOR


@part
def slot_of(key: np.uint64, mask: int) -> int:
    return np.int64((key ^ key >> _HALF) * _FACTOR >> _HALF) & mask


@part
def _is_same(data: Bytes, at: int, stop: int, names: Bytes, place: int) -> bool:
    while at < stop and data[np.uint64(at)] == names[np.uint64(place)]:
        at, place = at + 1, place + 1
    return at >= stop


@part
def relate(key: int, one: int, other_key: int, other: int, lists: Table, names: Bytes) -> int:
    """Negative, 0 or positive if the first name is before, equal to or after the other.

    `key` and `other_key` are the prefixes of the names, `one` and `other` their ids.
    """
    if key != other_key:
        return -1 if key < other_key else 1
    start, other_start = lists[NAMES, one], lists[NAMES, other]
    stop, other_stop = start + lists[LENGTHS, one] - 1, other_start + lists[LENGTHS, other] - 1
    return compare(names, start, stop, names, other_start, other_stop)


@part
def put_dictionary(lists: Table, names: Bytes, out: Bytes, ends: Numbers) -> bool:
    """Write the dictionary after those that are in `out`; return False if there is no room."""
    count, number = lists[STATE, KNOWN], lists[STATE, WRITTEN]
    total, at = lists[STATE, FILLED] - count, np.int64(ends[number])
    size = width_of(max(total, count))
    if at + 1 + (count + 2) * size + total > len(out):
        return False
    at = put(out, put(out, at, (size - 1) << 6 | 1, 1), count, size)
    begin, offset = at + (count + 1) * size, 0
    for id in range(count):
        at = put(out, at, offset, size)
        start, length = lists[NAMES, id], lists[LENGTHS, id]
        offset = copy(names, start, start + length - 1, out, begin + offset) - begin
    put(out, at, offset, size)
    ends[number + 1] = begin + offset
    lists[STATE, WRITTEN] = number + 1
    return True
