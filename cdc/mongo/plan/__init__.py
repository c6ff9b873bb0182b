"""Planning: from one offset to the next, and to the splits of a batch.

In: an offset and a source. Out: the next offset and its splits.
Guaranteed: the same two offsets give the same rows, also days later.
"""

from cdc.mongo.plan import missing_collections
from cdc.mongo.plan.candidate_end import require_copy
from cdc.mongo.plan.change_window import window_splits
from cdc.mongo.plan.idle_watch import Watch
from cdc.mongo.plan.missing_collections import missing_items
from cdc.mongo.plan.next_scan import Sweeper
from cdc.mongo.plan.oplog_scan import Limits, count_events
from cdc.mongo.plan.planner import Planner
from cdc.mongo.plan.splits import range_splits, snapshot_splits
from cdc.mongo.plan.start_position import (
    Start,
    confirm_edge,
    find_present,
    first_offset,
    start_of,
    wait_until,
)

__all__ = [
    "Limits",
    "Planner",
    "Start",
    "Sweeper",
    "Watch",
    "confirm_edge",
    "count_events",
    "find_present",
    "first_offset",
    "missing_collections",
    "missing_items",
    "range_splits",
    "require_copy",
    "snapshot_splits",
    "start_of",
    "wait_until",
    "window_splits",
]
