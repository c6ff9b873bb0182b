"""Repair the checkpoint of a pipeline by what its tables say."""

from __future__ import annotations

from pyspark.sql import SparkSession

from cdc.errors import CheckpointDamaged
from jobs.checkpoint import alone
from jobs.checkpoint_folder import Folder
from jobs.config import Config
from jobs.holdings import held
from jobs.recovery import Step, require_whole, way_back


def repair(spark: SparkSession, config: Config, dry_run: bool = False) -> list[Step]:
    """The steps that were done, or would be; none if nothing was wrong. May be repeated after any
    failure. Raises CheckpointDamaged if nothing says how to go on, or nothing is there: the tables
    would say it, but of a pipeline that may go on elsewhere, and to be two is to lose changes."""
    folder = Folder(spark, config.checkpoint)
    if not folder.is_begun():
        raise CheckpointDamaged(
            f"{config.checkpoint} has no file of a checkpoint, so that there is nothing to repair.",
            "Name the right one, put a copy of it back, or start anew: a new checkpoint and other"
            " paths.",
        )
    with alone(config.checkpoint):
        steps = way_back(folder, held(spark, config, folder.pipeline()))
        if not dry_run:
            for step in steps:
                step.do()
            require_whole(folder)
    return steps
