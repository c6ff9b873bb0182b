"""Maintenance of a pipeline: compaction, redelivery of dead letters, repair of the checkpoint."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from pyspark.sql import SparkSession

from cdc.checkpoint import (
    Folder,
    HadoopFiles,
    Step,
    hold,
    leave_gaps,
    lock_checkpoint,
    plan_repair,
    require_whole,
)
from cdc.delta.followers import ALL_KINDS, KINDS, renew_view
from cdc.delta.landing import CHANGELOG
from cdc.delta.log import SparkReader, TableReader
from cdc.delta.maintenance import LEAST_RETENTION_HOURS, Delivery, Maintained, deliver
from cdc.delta.maintenance import forecast as forecast_table
from cdc.delta.maintenance import maintain as maintain_table
from cdc.delta.tables import existing
from cdc.errors import BadOption, CheckpointDamaged
from cdc.pipeline.access import Access
from cdc.pipeline.config import Config
from cdc.pipeline.table_commits import read_table_batches

# How often Delta could list the log of a table from one commit of the job to the next.
_LISTS_IN_A_GAP = 4


def maintain(
    spark: SparkSession,
    config: Config,
    hours: float = LEAST_RETENTION_HOURS,
    days: float = 30,
    dry_run: bool = False,
) -> list[Maintained]:
    """Maintain all tables at the configured locations, one after the other.

    The followers of the pipeline wait while a mirror or a history is rewritten. Meanwhile
    changelogs get commits as before, and fewer while they are maintained themselves.

    Args:
        hours: Delete files that no version younger than this needs.
        days: Purge tombstones of documents that were deleted longer ago.
        dry_run: Change nothing; only report.

    Raises BadOption if `hours` is too short to be safe while jobs read and write.
    """
    require_safe(hours)
    folder, done = Folder(HadoopFiles(spark), config.checkpoint), []
    for kind in ALL_KINDS:
        for table, _ in existing(SparkReader(spark), config.layout, kind.name):
            held: AbstractContextManager[None] = nullcontext()
            gaps: AbstractContextManager[None] = nullcontext()
            if kind in KINDS and not dry_run:
                held = hold(folder)
            elif kind is CHANGELOG and not dry_run:
                gaps = leave_gaps(folder, _LISTS_IN_A_GAP * table.target.time_of_list(spark))
            with gaps:
                done.append(maintain_table(spark, kind, table, hours, days, dry_run, held))
            if kind.has_view and table.namespace is not None and not dry_run:
                # Else a view of a quiet mirror would go on reading files that are vacuumed next.
                renew_view(spark, config.layout, table.namespace)
    return done


def forecast(
    tables: TableReader,
    config: Config,
    hours: float = LEAST_RETENTION_HOURS,
    days: float = 30,
) -> list[Maintained]:
    """Return what `maintain` would do to local tables, as its dry run does, without Spark.

    Raises NeedsSpark if `tables` or a table needs it.
    """
    require_safe(hours)
    return [
        forecast_table(kind, table, hours, days)
        for kind in ALL_KINDS
        for table, _ in existing(tables, config.layout, kind.name)
    ]


def require_safe(hours: float) -> None:
    """Raise BadOption if a retention is too short to be safe while jobs read and write."""
    if hours < LEAST_RETENTION_HOURS:
        raise BadOption(
            f"A retention of {hours:g} hours may delete files that a reader or a writer needs.",
            f"Set at least {LEAST_RETENTION_HOURS} hours.",
        )


def replay(spark: SparkSession, config: Config) -> Delivery:
    """Deliver those of a pipeline's dead letters that can be mapped now.

    Raises BadOption if no table of dead letters is configured.
    """
    targets = config.layout.letters()
    if not targets:
        raise BadOption("There is no table of dead letters.", "Set 'dead_letters' in [table].")
    options = config.options
    complete = Folder(HadoopFiles(spark), config.checkpoint).next_batch() - 1
    how = config.layout, options.document_format, options.document_json, complete
    found = [deliver(spark, target, *how) for target in targets if target.exists(spark)]
    return Delivery(sum(each.delivered for each in found), sum(each.left for each in found))


def repair(access: Access, config: Config, dry_run: bool = False) -> list[Step]:
    """Repair a checkpoint and return the steps taken; none if nothing was damaged.

    The call may be repeated after any failure. With `dry_run` nothing changes, and the steps are
    those that a repair would take.

    Raises CheckpointDamaged if the position to continue from is recorded nowhere. Raises it also
    if the folder contains no checkpoint. The tables may record a position, but their pipeline may
    run with another checkpoint, and two jobs of one pipeline lose changes.
    """
    folder = Folder(access.files, config.checkpoint)
    if not folder.is_begun():
        raise CheckpointDamaged(
            f"{config.checkpoint} contains no file of a checkpoint: there is nothing to repair.",
            "Name the right folder, restore a copy of it, or start again with a new checkpoint and"
            " other paths.",
        )
    with lock_checkpoint(config.checkpoint):
        steps = plan_repair(folder, read_table_batches(access.tables, config, folder.pipeline()))
        if not dry_run:
            for step in steps:
                step.run()
            require_whole(folder)
    return steps
