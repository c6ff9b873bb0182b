"""Repair a pipeline's checkpoint from the commits of its tables."""

from __future__ import annotations

from pyspark.sql import SparkSession

from cdc.checkpoint import Folder, Step, lock_checkpoint, plan_repair, require_whole
from cdc.errors import CheckpointDamaged
from cdc.pipeline.config import Config
from cdc.pipeline.table_commits import read_table_batches


def repair(spark: SparkSession, config: Config, dry_run: bool = False) -> list[Step]:
    """Repair a checkpoint and return the steps taken; none if nothing was damaged.

    The call may be repeated after any failure. With `dry_run` nothing changes, and the steps are
    those that a repair would take.

    Raises CheckpointDamaged if the position to continue from is recorded nowhere. Raises it also
    if the folder contains no checkpoint. The tables may record a position, but their pipeline may
    run with another checkpoint, and two jobs of one pipeline lose changes.
    """
    folder = Folder(spark, config.checkpoint)
    if not folder.is_begun():
        raise CheckpointDamaged(
            f"{config.checkpoint} contains no file of a checkpoint: there is nothing to repair.",
            "Name the right folder, restore a copy of it, or start again with a new checkpoint and"
            " other paths.",
        )
    with lock_checkpoint(config.checkpoint):
        steps = plan_repair(folder, read_table_batches(spark, config, folder.pipeline()))
        if not dry_run:
            for step in steps:
                step.run()
            require_whole(folder)
    return steps
