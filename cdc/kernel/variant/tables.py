"""The tables of what is learnt from documents: their columns and lists, and how many rows.

`names` writes those of names, `shapes` those of nodes.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from cdc.kernel.numbers import Bytes
from cdc.kernel.variant.variant_bytes import Table

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
COLUMNS: Final = 10

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
# Without it, equal places of two lists would be in the same part of the processor's cache.
_PADDING: Final = 40
_LEAST_NODES: Final = 1024
_MOST_NODES: Final = 2**17
_LEAST_BYTES: Final = 2**14


def learn_nothing(longest: int) -> tuple[Table, Table, Bytes]:
    """(nodes, lists, names) for documents of at most `longest` bytes: enough for two of them.

    A document for which this is too little is refused.
    """
    rows = _LEAST_NODES
    while rows < min(longest + 4, _MOST_NODES):
        rows *= 2
    nodes = np.zeros((rows, COLUMNS), np.int64)
    lists = np.zeros((_LISTS, 2 * rows + _PADDING), np.int64)
    lists[STATE, NODES] = ROOT + 1
    nodes[ROOT, ORDER] = -1
    return nodes, lists, np.zeros(max(_LEAST_BYTES, 2 * longest), np.uint8)
