"""Columns of the table that tells where the fields of change events lie.

Of a field of several bytes, the next column tells where it ends.
"""

from __future__ import annotations

from typing import Final

import numpy as np

Events = np.ndarray[tuple[int, int], np.dtype[np.int64]]
# What a field is that an event does not have: no place, no time of a clock, no operation.
NONE: Final = -(2**63)

START: Final = 0
STOP: Final = 1
# Whether anything else but the fields below could decide what is told of it.
UNUSUAL: Final = 2
# The 64 bits of a timestamp; milliseconds; the number of the operation in OPERATIONS.
TIME: Final = 3
WALL: Final = 4
TYPE: Final = 5
POSITION: Final = 6
OPERATION: Final = 8
DATABASE: Final = 10
COLL: Final = 12
KEY: Final = 14
BEFORE: Final = 16
AFTER: Final = 18
UPDATE: Final = 20
SESSION: Final = 22
TRANSACTION: Final = 24
COUNT: Final = 26

OPERATIONS: Final = ("insert", "update", "replace", "delete")
INSERT, UPDATED, REPLACED, DELETE = range(4)
