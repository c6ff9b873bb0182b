"""A pipeline: its configuration, its Spark session, and what its programs do."""

from cdc.delta.log import NeedsSpark
from cdc.pipeline import config
from cdc.pipeline.access import Access, access_by_spark, access_locally
from cdc.pipeline.backfill import INTO, BackfillRequest, BackfillResult, Part
from cdc.pipeline.column_inference import InferredColumns, add_columns, column_text, infer
from cdc.pipeline.config import Config
from cdc.pipeline.following import Following, check_following
from cdc.pipeline.maintenance import forecast, maintain, repair, replay, require_safe
from cdc.pipeline.replication import Replication
from cdc.pipeline.restoration import RestoreResult, restore
from cdc.pipeline.run_metrics import PHASES, Status, Timing
from cdc.pipeline.running_batch import RunningBatch
from cdc.pipeline.spark import end, prepare, session, skip_discovery, under_spark_submit
from cdc.pipeline.starting import check_reading, check_tables, starting
from cdc.pipeline.verification import Verdict, mirrored_until, select_namespaces, verify

__all__ = [
    "INTO",
    "PHASES",
    "Access",
    "BackfillRequest",
    "BackfillResult",
    "Config",
    "Following",
    "InferredColumns",
    "NeedsSpark",
    "Part",
    "Replication",
    "RestoreResult",
    "RunningBatch",
    "Status",
    "Timing",
    "Verdict",
    "access_by_spark",
    "access_locally",
    "add_columns",
    "check_following",
    "check_reading",
    "check_tables",
    "column_text",
    "config",
    "end",
    "forecast",
    "infer",
    "maintain",
    "mirrored_until",
    "prepare",
    "repair",
    "replay",
    "require_safe",
    "restore",
    "select_namespaces",
    "session",
    "skip_discovery",
    "starting",
    "under_spark_submit",
    "verify",
]
