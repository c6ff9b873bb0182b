"""Replica sets and sharded clusters: the live edge, members, listing, oplog windows.

`Source` is what all of them offer, `discover` returns the one that the options name.
"""

from cdc.mongo.topology.discovery import discover, has_unique_keys, reopen
from cdc.mongo.topology.oplog_window import (
    OplogWatch,
    Remaining,
    Window,
    first_time,
    history_lost_error,
    oldest_common_time,
    oplog_window,
    reaches_back,
    windows,
)
from cdc.mongo.topology.orphaned_cursors import end_cursors
from cdc.mongo.topology.replica_set import has_committed
from cdc.mongo.topology.source import Ownership, Source

__all__ = [
    "OplogWatch",
    "Ownership",
    "Remaining",
    "Source",
    "Window",
    "discover",
    "end_cursors",
    "first_time",
    "has_committed",
    "has_unique_keys",
    "history_lost_error",
    "oldest_common_time",
    "oplog_window",
    "reaches_back",
    "reopen",
    "windows",
]
