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
from cdc.kernel.numbers import Bytes, uint64
from cdc.kernel.variant.names import find_name, relate, slot_of
from cdc.kernel.variant.tables import (
    BEFORE,
    COLUMNS,
    FIELD_IDS,
    FIELDS,
    FILLED,
    ID,
    IDS,
    INNER,
    KEYS,
    KNOWN,
    LENGTH,
    LENGTHS,
    NAME,
    NAMES,
    NEXT,
    NODE_SLOTS,
    NODES,
    ORDER,
    PLACED,
    PREFIXES,
    ROOT,
    SORTED,
    STATE,
    TURN,
    WIDE,
)
from cdc.kernel.variant.variant_bytes import Table, width_of

# Fields that are compared one by one before their place is searched by halves.
_NEAR: Final = 8
# The bytes of names that the row of the smallest document may have.
_SMALL_DICTIONARY: Final = 1024
_MOST_FIELDS: Final = 2**12
_HALF = np.uint64(32)
_MASKS = np.array([2 ** (8 * size) - 1 for size in range(8)], np.uint64)


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
    for column in range(COLUMNS):
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
    id = find_name(data, at, end, nodes, lists, names)
    if id < 0 or lists[STATE, NODES] >= len(nodes) or nodes[node, FIELDS] == _MOST_FIELDS:
        return REFUSED
    mask, base = 2 * len(nodes) - 1, lists[STATE, TURN] * len(nodes)
    slot = slot_of(np.uint64(node) << _HALF | np.uint64(id), mask)
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
            relation = relate(lists[KEYS, probe], lists[FIELD_IDS, probe], key, id, lists, names)
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
