"""Spark's checkpoint of a pipeline: read, locked, and repaired."""

from cdc.checkpoint import checkpoint
from cdc.checkpoint.checkpoint import REPAIR, Checkpoint, is_local, lock_checkpoint
from cdc.checkpoint.files import COMMITS, OFFSETS, Folder
from cdc.checkpoint.repair_plan import Step, TableBatches, plan_repair, require_whole

__all__ = [
    "COMMITS",
    "OFFSETS",
    "REPAIR",
    "Checkpoint",
    "Folder",
    "Step",
    "TableBatches",
    "checkpoint",
    "is_local",
    "lock_checkpoint",
    "plan_repair",
    "require_whole",
]
