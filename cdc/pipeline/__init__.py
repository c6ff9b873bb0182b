"""A pipeline: its configuration, its Spark session, and what its programs do."""

from cdc.pipeline import config
from cdc.pipeline.backfill import (
    BackfillResult,
    Part,
    backfill_changelog,
    backfill_documents,
    backfill_mirror,
    require_whole,
)
from cdc.pipeline.column_inference import InferredColumns, add_columns, column_text, infer
from cdc.pipeline.config import Config
from cdc.pipeline.following import Following
from cdc.pipeline.maintenance import maintain, repair, replay, require_safe
from cdc.pipeline.replication import Replication
from cdc.pipeline.restoration import RestoreResult, restore
from cdc.pipeline.run_metrics import PHASES, Status, Timing, count_changes
from cdc.pipeline.spark import end, prepare, session, under_spark_submit
from cdc.pipeline.table_commits import require_new
from cdc.pipeline.verification import Verdict, mirrored_until, select_namespaces, verify

__all__ = [
    "PHASES",
    "BackfillResult",
    "Config",
    "Following",
    "InferredColumns",
    "Part",
    "Replication",
    "RestoreResult",
    "Status",
    "Timing",
    "Verdict",
    "add_columns",
    "backfill_changelog",
    "backfill_documents",
    "backfill_mirror",
    "column_text",
    "config",
    "count_changes",
    "end",
    "infer",
    "maintain",
    "mirrored_until",
    "prepare",
    "repair",
    "replay",
    "require_new",
    "require_safe",
    "require_whole",
    "restore",
    "select_namespaces",
    "session",
    "under_spark_submit",
    "verify",
]
