"""Replica sets and sharded clusters: the live edge, members, listing, oplog windows."""

from cdc.mongo.topology import sharded_cluster
from cdc.mongo.topology.oplog_window import (
    Left,
    Lookout,
    Window,
    lost,
    oldest,
    oplog_window,
    windows,
)
from cdc.mongo.topology.orphaned_cursors import end_cursors
from cdc.mongo.topology.replica_set import discover
from cdc.mongo.topology.sharded_cluster import Cluster, Source
from cdc.mongo.topology.sharded_ranges import lesser

__all__ = [
    "Cluster",
    "Left",
    "Lookout",
    "Source",
    "Window",
    "discover",
    "end_cursors",
    "lesser",
    "lost",
    "oldest",
    "oplog_window",
    "sharded_cluster",
    "windows",
]
