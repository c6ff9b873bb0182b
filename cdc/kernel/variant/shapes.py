"""Shapes of objects, learnt from the documents of one call: sequences of names, and their order.

A node stands for the names of an object from the first up to one of them. A name is first compared
with the one that followed the same node last time, and searched only if it differs. The node at
which an object ends has the order of its names. So a known shape costs one comparison per name:
no hash, no search and no sort.

All documents share one dictionary of names, see `must_forget`.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from cdc.kernel.bson.elements import REFUSED
from cdc.kernel.compiled import hot, part
from cdc.kernel.numbers import Bytes, copy, is_text, put, uint64
from cdc.kernel.variant.variant_bytes import UTF16, Numbers, Table, compare, width_of

# Columns of a node. NEXT: the node that followed last time. ID: the id of its name. NAME, LENGTH:
# the place of the name in `names`; the length includes a zero byte. BEFORE: the node of the name
# before. FIELDS: the number of names so far. INNER: the node at which a container in this field
# starts.
NEXT: Final = 0
ID: Final = 1
NAME: Final = 2
LENGTH: Final = 3
BEFORE: Final = 4
FIELDS: Final = 5
INNER: Final = 6
# Of a node at which an object ended. ORDER: where its fields begin in SORTED, negative if they were
# not sorted yet. WIDE: the width of an id.
ORDER: Final = 7
WIDE: Final = 8
# Of a node at which containers start. HEADER: the size of the last container's header.
HEADER: Final = 9
_COLUMNS: Final = 10

# Lists. SORTED: the numbers of the fields of each shape, in the order of their names. IDS: the ids
# of these names. BEGINS: the positions of the values of all open containers. NAMES, LENGTHS: of
# each id, as in a node. PREFIXES: of each id, the first 8 bytes of the name as a number; these
# numbers have the order of the names. NAME_SLOTS: ids by the hash of their names. NODE_SLOTS: nodes
# by the hash of the node before and the id. FIELD_IDS, KEYS: see `_sort_fields`. STATE: the numbers
# below.
SORTED: Final = 0
IDS: Final = 1
BEGINS: Final = 2
NAMES: Final = 3
LENGTHS: Final = 4
PREFIXES: Final = 5
NAME_SLOTS: Final = 6
NODE_SLOTS: Final = 7
FIELD_IDS: Final = 8
KEYS: Final = 9
STATE: Final = 10
# Of the containers around the current one, by their depth: where it ends in the document, whether
# it is an array, the node at which it started, and the current one.
END: Final = 11
IS_ARRAY: Final = 12
FIRST_NODE: Final = 13
NODE: Final = 14
# More of them, for `cdc.kernel.variant.variant`.
MORE: Final = 15
_LISTS: Final = 19

# Entries of STATE: the number of nodes, of names, of bytes in `names`, of entries in SORTED, how
# often everything was forgotten, and the number of dictionaries that were written.
NODES: Final = 0
KNOWN: Final = 1
FILLED: Final = 2
PLACED: Final = 3
TURN: Final = 4
WRITTEN: Final = 5

# The node at which whole documents start. No node has the number 0.
ROOT: Final = 1
# The bytes of names that the row of the smallest document may have.
_SMALL_DICTIONARY: Final = 1024
# Without it, equal places of two lists would be in the same part of the processor's cache.
_PADDING: Final = 40
_LEAST_NODES: Final = 1024
_MOST_NODES: Final = 2**17
_LEAST_BYTES: Final = 2**14
_MOST_FIELDS: Final = 2**12
# Half of the slots are free. More probes than this find only names that were made to collide.
_MOST_PROBES: Final = 64
# Fields that are compared one by one before their place is searched by halves.
_NEAR: Final = 8
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_SIGN = np.uint64(2**63)
_HALF = np.uint64(32)
_EIGHT = np.uint64(8)
_MASKS = np.array([2 ** (8 * size) - 1 for size in range(8)], np.uint64)


def learn_nothing(longest: int) -> tuple[Table, Table, Bytes]:
    """(nodes, lists, names) for documents of at most `longest` bytes: enough for two of them.

    A document for which this is too little is refused.
    """
    rows = _LEAST_NODES
    while rows < min(longest + 4, _MOST_NODES):
        rows *= 2
    nodes = np.zeros((rows, _COLUMNS), np.int64)
    lists = np.zeros((_LISTS, 2 * rows + _PADDING), np.int64)
    lists[STATE, NODES] = ROOT + 1
    nodes[ROOT, ORDER] = -1
    return nodes, lists, np.zeros(max(_LEAST_BYTES, 2 * longest), np.uint8)


@part
def must_forget(size: int, nodes: Table, lists: Table, names: Bytes) -> bool:
    """Whether a new dictionary must begin before a document of that size.

    That is so if the tables may have too little room for the document, or if the names are larger
    than the document: a reader gets all of them with each row.
    """
    filled, most = lists[STATE, FILLED], size // 2 + 1
    is_full = lists[STATE, NODES] + most > len(nodes) or lists[STATE, PLACED] + most > len(nodes)
    is_large = filled > _SMALL_DICTIONARY + size
    return filled > 0 and (is_full or is_large or filled + size > len(names))


@part
def forget(nodes: Table, lists: Table) -> None:
    lists[STATE, NODES], lists[STATE, KNOWN] = ROOT, 0
    lists[STATE, FILLED], lists[STATE, PLACED] = 0, 0
    lists[STATE, TURN] += 1
    add_start(nodes, lists)


@part
def add_start(nodes: Table, lists: Table) -> int:
    """Add a node at which containers start; REFUSED if there is no room."""
    node = lists[STATE, NODES]
    if node >= len(nodes):
        return REFUSED
    lists[STATE, NODES] = node + 1
    for column in range(_COLUMNS):
        nodes[node, column] = 0
    nodes[node, ORDER] = -1
    return node


@hot
def _has_name(data: Bytes, at: int, node: int, nodes: Table, names: Bytes) -> bool:
    """Whether the name of that node is at `at`, with the zero byte after it."""
    place, length = nodes[node, NAME], nodes[node, LENGTH]
    if at + length > len(data):
        return False
    stop = at + length
    while at + 8 <= stop:
        if uint64(data, at) != uint64(names, place):
            return False
        at, place = at + 8, place + 8
    if at + 8 <= len(data) and place + 8 <= len(names):
        return (uint64(data, at) ^ uint64(names, place)) & _MASKS[stop - at] == 0
    while at < stop and data[at] == names[place]:
        at, place = at + 1, place + 1
    return at == stop


@hot
def next_node(
    data: Bytes, at: int, end: int, node: int, nodes: Table, lists: Table, names: Bytes
) -> int:
    """Return the node after `node` for the name at `at`; REFUSED if the name is invalid."""
    following = nodes[node, NEXT]
    if following == 0 or not _has_name(data, at, following, nodes, names):
        following = _find_next(data, at, end, node, nodes, lists, names)
        if following > 0:
            nodes[node, NEXT] = following
    return following


@part
def inner_node(field: int, nodes: Table, lists: Table) -> int:
    """Return the node at which a container starts in the field of that node, or REFUSED.

    All elements of an array are in the field of the array's own first node.
    """
    if nodes[field, INNER] == 0:
        found = add_start(nodes, lists)
        if found < 0:
            return REFUSED
        nodes[field, INNER] = found
    return nodes[field, INNER]


@part
def skip_name(data: Bytes, at: int, end: int) -> int:
    """Return the position after the name at `at`, or REFUSED."""
    while at < end and data[np.uint64(at)] != 0:
        at += 1
    return at + 1 if at < end else REFUSED


@part
def _find_next(
    data: Bytes, at: int, end: int, node: int, nodes: Table, lists: Table, names: Bytes
) -> int:
    id = _find_name(data, at, end, nodes, lists, names)
    if id < 0 or lists[STATE, NODES] >= len(nodes) or nodes[node, FIELDS] == _MOST_FIELDS:
        return REFUSED
    mask, base = 2 * len(nodes) - 1, lists[STATE, TURN] * len(nodes)
    slot = _slot(np.uint64(node) << _HALF | np.uint64(id), mask)
    while lists[NODE_SLOTS, slot] >= base + ROOT:
        found = lists[NODE_SLOTS, slot] - base
        if nodes[found, BEFORE] == node and nodes[found, ID] == id:
            return found
        slot = (slot + 1) & mask
    found = add_start(nodes, lists)
    lists[NODE_SLOTS, slot] = base + found
    nodes[found, ID], nodes[found, BEFORE] = id, node
    nodes[found, NAME], nodes[found, LENGTH] = lists[NAMES, id], lists[LENGTHS, id]
    nodes[found, FIELDS] = nodes[node, FIELDS] + 1
    return found


@part
def _find_name(data: Bytes, at: int, end: int, nodes: Table, lists: Table, names: Bytes) -> int:
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
    slot, probes = _slot(_mix(data, at, stop, prefix), mask), 0
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
def _slot(key: np.uint64, mask: int) -> int:
    return np.int64((key ^ key >> _HALF) * _FACTOR >> _HALF) & mask


@part
def _is_same(data: Bytes, at: int, stop: int, names: Bytes, place: int) -> bool:
    while at < stop and data[np.uint64(at)] == names[np.uint64(place)]:
        at, place = at + 1, place + 1
    return at >= stop


@part
def end_object(node: int, nodes: Table, lists: Table, names: Bytes) -> bool:
    """Learn the order of the names of an object that ends at `node`.

    Returns False if a name occurs twice, or if there are too many.
    """
    return nodes[node, ORDER] >= 0 or _sort_fields(node, nodes, lists, names)


@part
def _sort_fields(node: int, nodes: Table, lists: Table, names: Bytes) -> bool:
    count, first = nodes[node, FIELDS], lists[STATE, PLACED]
    if first + count > 2 * len(nodes):
        return False
    largest, field = 0, node
    # From the last field to the first. Each goes to the right of those that precede it: of none if
    # the names are in order.
    for number in range(count - 1, -1, -1):
        id = nodes[field, ID]
        largest, key = max(largest, id), lists[PREFIXES, id]
        low, high, probe = number + 1, count, number + 1
        while low < high:
            relation = _compare(lists[KEYS, probe], lists[FIELD_IDS, probe], key, id, lists, names)
            if relation == 0:
                return False
            if relation < 0:
                low = probe + 1
            else:
                high = probe
            is_near = low - number <= _NEAR
            probe = low if is_near else (low + high) // 2
        place = low - 1
        for moved in range(number, place):
            lists[KEYS, moved] = lists[KEYS, moved + 1]
            lists[FIELD_IDS, moved] = lists[FIELD_IDS, moved + 1]
            lists[SORTED, first + moved] = lists[SORTED, first + moved + 1]
        lists[KEYS, place], lists[FIELD_IDS, place] = key, id
        lists[SORTED, first + place] = number
        field = nodes[field, BEFORE]
    for place in range(count):
        lists[IDS, first + place] = lists[FIELD_IDS, place]
    lists[STATE, PLACED] = first + count
    nodes[node, ORDER], nodes[node, WIDE] = first, width_of(largest)
    return True


@part
def _compare(key: int, one: int, other_key: int, other: int, lists: Table, names: Bytes) -> int:
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
