"""What must be true of the tables of a pipeline, decided without the code under test.

In: the oplog, the collection at a time, the offsets of the checkpoint, and the tables as plain
Delta, Parquet and JSON. Out: each violation as a text that begins with the name of its oracle.

Nothing of the product is imported but what names a table (`tests/end_to_end/test_oracles.py`).
Collections have integer `_id`s, which no two documents of a cluster share, and `document.format` is
`bson`, so documents are compared byte by byte.
"""

from tests.end_to_end.oracle.checkpoint import Checkpoint, Frontier
from tests.end_to_end.oracle.data_files import unnamed_files
from tests.end_to_end.oracle.judge import (
    ORACLES,
    collected,
    earlier_violations,
    lag,
    live_violations,
    violations,
)
from tests.end_to_end.oracle.oplog import OfCluster, OfReplicaSet, ThroughRouters, Truth

__all__ = [
    "ORACLES",
    "Checkpoint",
    "Frontier",
    "OfCluster",
    "OfReplicaSet",
    "ThroughRouters",
    "Truth",
    "collected",
    "earlier_violations",
    "lag",
    "live_violations",
    "unnamed_files",
    "violations",
]
