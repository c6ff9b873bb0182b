"""Spark's checkpoint of a pipeline: read, locked, and repaired."""

from cdc.checkpoint import checkpoint
from cdc.checkpoint.checkpoint import (
    REPAIR,
    Checkpoint,
    WrittenBatch,
    is_local,
    lock_checkpoint,
    require_writable,
)
from cdc.checkpoint.folder import OFFSETS, Files, Folder
from cdc.checkpoint.hadoop_files import HadoopFiles
from cdc.checkpoint.hold_file import gap, hold, is_held, leave_gaps
from cdc.checkpoint.local_files import LocalFiles
from cdc.checkpoint.repair_plan import Step, TableBatches, plan_repair, require_whole

__all__ = [
    "OFFSETS",
    "REPAIR",
    "Checkpoint",
    "Files",
    "Folder",
    "HadoopFiles",
    "LocalFiles",
    "Step",
    "TableBatches",
    "WrittenBatch",
    "checkpoint",
    "gap",
    "hold",
    "is_held",
    "is_local",
    "leave_gaps",
    "lock_checkpoint",
    "plan_repair",
    "require_whole",
    "require_writable",
]
