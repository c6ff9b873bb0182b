"""Columns of the table of change events: where each field of an event is.

A field of variable size has two columns: its start, and in the next column its end.
"""

from __future__ import annotations

from typing import Final

import numpy as np

Events = np.ndarray[tuple[int, int], np.dtype[np.int64]]
# The value of a missing field, of a missing wall clock time, and of an unknown operation.
NONE: Final = -(2**63)

START: Final = 0
STOP: Final = 1
# 1 if the row of the event may depend on anything but the fields below.
UNUSUAL: Final = 2
# TIME: the 64 bits of a BSON timestamp. WALL: milliseconds. TYPE: the index in OPERATIONS.
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
