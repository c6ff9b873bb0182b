"""Questions about a source that change nothing: preflight, sizes, progress, metrics."""

from cdc.mongo.inspect.copy_progress import COPYING, Extent
from cdc.mongo.inspect.estimate import Examination, Work, examine
from cdc.mongo.inspect.metrics import Gauges, Metrics, Rate
from cdc.mongo.inspect.preflight import Wanted, check, shards_of
from cdc.mongo.inspect.server_clock import ServerClock
from cdc.mongo.inspect.source_status import Passed, Standing, require_own, standing

__all__ = [
    "COPYING",
    "Examination",
    "Extent",
    "Gauges",
    "Metrics",
    "Passed",
    "Rate",
    "ServerClock",
    "Standing",
    "Wanted",
    "Work",
    "check",
    "examine",
    "require_own",
    "shards_of",
    "standing",
]
