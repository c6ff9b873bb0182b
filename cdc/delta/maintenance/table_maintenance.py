"""Maintenance of tables: tombstones, small files, unused files, unfinished uploads."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from cdc.delta.log import conflict, keep, settings
from cdc.delta.maintenance.unfinished_uploads import Upload, abort_uploads
from cdc.delta.tables import Kind, Table

# Delta refuses less: a writer that has begun before, or a stream that lags, may need the files.
LEAST_RETENTION_HOURS = 168
# Tables that get changes every day never need it.
KEEP_AFTER = timedelta(days=1)
_LISTING_TASKS = "spark.sql.sources.parallelPartitionDiscovery.parallelism"


@dataclass(frozen=True, slots=True)
class Maintained:
    """The result for a table, or in a dry run the expected result.

    Attributes: tombstones purged; files rewritten into `added` larger ones (None: unknown in a dry
    run); files deleted from storage; unfinished uploads aborted (None: the store does not say).
    """

    table: str
    purged: int
    rewritten: int | None
    added: int | None
    vacuumed: int
    uploads: tuple[Upload, ...] | None


def maintain(
    spark: SparkSession,
    kind: Kind,
    table: Table,
    hours: float,
    days: float,
    dry_run: bool,
    held: AbstractContextManager[None],
) -> Maintained:
    """Purge tombstones, OPTIMIZE, VACUUM files that no retained version needs, abort old uploads.

    Tombstones are rows of documents that were deleted more than `days` ago, in mirrors with
    `delete = soft`. Versions and uploads younger than `hours` are retained.

    The jobs that write the table may continue. Raises ConflictsUnresolved if they leave no gap;
    while the table is rewritten, `held` lets them wait.
    """
    target, purged = table.target, 0
    rewritten, added = None, None
    with held:
        if kind.has_tombstones(table.options):
            is_old = F.col("_deleted") & (F.col("_cluster_time") < _ago(days))
            purged = target.read(spark).where(is_old).count()
            if purged and not dry_run:
                conflict.repeated(lambda: target.delta(spark).delete(is_old), target)
        if not dry_run:
            conflict.repeated(partial(keep, spark, target, KEEP_AFTER), target)
            rewritten, added = conflict.repeated(partial(_compact, spark, table), target)
    vacuumed = _vacuum(spark, table, hours, dry_run)
    uploads = abort_uploads(spark, target, hours, dry_run)
    return Maintained(str(target), purged, rewritten, added, vacuumed, uploads)


def _ago(days: float) -> Column:
    zero = F.lit(0)
    return F.current_timestamp() - F.make_dt_interval(zero, zero, zero, F.lit(days * 86400))


def _compact(spark: SparkSession, table: Table) -> tuple[int, int]:
    """The number of rewritten files and of new ones. Also clusters by the columns of the table."""
    done = table.target.delta(spark).optimize().executeCompaction().head()
    assert done is not None
    return done.metrics.numFilesRemoved, done.metrics.numFilesAdded


def _vacuum(spark: SparkSession, table: Table, hours: float, dry_run: bool) -> int:
    """The number of deleted files; in a dry run at most 1,000."""
    vacuum = f"VACUUM {table.target.sql(spark)} RETAIN {float(hours)} HOURS"
    # By default the files are listed in 10,000 tasks, be there as many of them or not.
    tasks = {_LISTING_TASKS: str(4 * spark.sparkContext.defaultParallelism)}
    with settings(spark, tasks):
        if dry_run:
            return spark.sql(f"{vacuum} DRY RUN").count()
        spark.sql(vacuum)
    history = table.target.delta(spark).history(20).where(F.col("operation") == "VACUUM END")
    done = history.orderBy("version", ascending=False).head()
    return int(done.operationMetrics.get("numDeletedFiles", 0)) if done else 0
