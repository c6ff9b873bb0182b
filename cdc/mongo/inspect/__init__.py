"""Questions about a source that change nothing: preflight, sizes, progress, metrics."""

from cdc.mongo.inspect.copy_progress import COPYING, STREAMING, WAITING, CopyProgress
from cdc.mongo.inspect.estimate import Examination, Work, examine
from cdc.mongo.inspect.lag import Edge, Freshness, LiveEdge, lag_seconds
from cdc.mongo.inspect.metrics import Gauges, Metrics, Rate
from cdc.mongo.inspect.preflight import Wanted, check, record_images_command, shards_of
from cdc.mongo.inspect.server_clock import ServerClock
from cdc.mongo.inspect.source_status import FinishedBatches, Status, read_status, require_own

__all__ = [
    "COPYING",
    "STREAMING",
    "WAITING",
    "CopyProgress",
    "Edge",
    "Examination",
    "FinishedBatches",
    "Freshness",
    "Gauges",
    "LiveEdge",
    "Metrics",
    "Rate",
    "ServerClock",
    "Status",
    "Wanted",
    "Work",
    "check",
    "examine",
    "lag_seconds",
    "read_status",
    "record_images_command",
    "require_own",
    "shards_of",
]
