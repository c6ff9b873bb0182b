"""Spark's checkpoint of a pipeline: read, locked, and repaired."""

from cdc.checkpoint import checkpoint
from cdc.checkpoint.checkpoint import REPAIR, Checkpoint, is_here, lock_checkpoint
from cdc.checkpoint.files import OFFSETS, Folder
from cdc.checkpoint.repair_plan import Held, Step, plan_repair, require_whole

__all__ = [
    "OFFSETS",
    "REPAIR",
    "Checkpoint",
    "Folder",
    "Held",
    "Step",
    "checkpoint",
    "is_here",
    "lock_checkpoint",
    "plan_repair",
    "require_whole",
]
