"""Replica sets and sharded clusters: the live edge, members, listing, oplog windows."""

from cdc.mongo.topology import sharded_cluster
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
from cdc.mongo.topology.replica_set import discover, has_committed
from cdc.mongo.topology.sharded_cluster import Cluster, Source
from cdc.mongo.topology.sharded_ranges import lesser_key

__all__ = [
    "Cluster",
    "OplogWatch",
    "Remaining",
    "Source",
    "Window",
    "discover",
    "end_cursors",
    "first_time",
    "has_committed",
    "history_lost_error",
    "lesser_key",
    "oldest_common_time",
    "oplog_window",
    "reaches_back",
    "sharded_cluster",
    "windows",
]
