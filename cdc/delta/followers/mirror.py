"""The mirror: a collection as of the watermark, in one Delta table per namespace.

One commit applies a batch: the DDL that empties the mirror, the deletes, and the last image of each
changed key. So a crash cannot leave a state between them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Any, TypeAlias

from delta.tables import DeltaMergeBuilder, DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BooleanType,
    DataType,
    IntegerType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from cdc.delta.columns import Image
from cdc.delta.followers.follower_kind import Changes, FollowerKind, Writer, within
from cdc.delta.followers.merges.file_merge import FileMerge
from cdc.delta.landing import BatchSummary, effects
from cdc.delta.log import Commit, Target, newest_commit
from cdc.delta.sql import quoted
from cdc.delta.tables import SOFT, Options, Table, Tables
from cdc.model import Namespace, NamespaceEvent, Timestamp, resume_token

_Values: TypeAlias = dict[str, str | Column]
# The guard, and the time of the last change.
_STAMP = ("_position", "_cluster_time", "_cluster_inc")
_ROWS_PER_TASK = 50_000


@dataclass(frozen=True, slots=True)
class MirrorState:
    """What a mirror contains of a collection.

    Attributes:
        version: the version of the table.
        batch: the last batch that it contains.
        watermark: the end of that batch. The mirror is the collection as of this time, with the
            exceptions below.
        exact_from: before this time some documents may be from a later time; None: no exception.
        copying: the frontier of an unfinished copy, opaque. Keys at or above it are missing.
        kept: whether the mirror retains documents that were dropped with their collection.
    """

    version: int
    batch: int
    watermark: Timestamp
    exact_from: Timestamp | None
    copying: Any
    kept: bool


def state(spark: SparkSession, target: Target, namespace: Namespace) -> MirrorState | None:
    """Return what the newest commit of this project states of the namespace.

    None if there is no table or no such commit, or if the table was emptied to be rebuilt. Later
    commits of others (OPTIMIZE) must not change rows.

    A table without changes in a batch gets no commit. So `watermark` may be older than that of the
    pipeline, and the mirror is right for every time between both.

    Raises TableRestored.
    """
    newest = newest_commit(spark, target) if target.exists(spark) else None
    if newest is None or newest.commit.is_empty:
        return None
    return state_of(newest.version, newest.commit, namespace)


def state_of(version: int, commit: Commit, namespace: Namespace) -> MirrorState:
    """What a commit states of the namespace."""
    stated = commit.state(namespace)
    return MirrorState(
        version, commit.batch, commit.watermark, stated.exact_from, stated.copying, stated.kept
    )


def documents(frame: DataFrame, table: Table, namespace: Namespace) -> DataFrame:
    """The rows of a mirror that are documents of the namespace."""
    if table.is_shared:
        frame = frame.where(F.col("_namespace") == F.lit(str(namespace)))
    return present(frame, table)


def present(frame: DataFrame, table: Table) -> DataFrame:
    """The rows of a mirror without those of deleted documents."""
    return frame.where(~F.col("_deleted")) if table.options.delete == SOFT else frame


class Mirror(FollowerKind):
    """The kind of tables that contain a collection as of the watermark.

    For each key the change with the greatest position counts, if that is greater than the position
    in the mirror. Deletes match by `key`, except those by which a document only moves to another
    shard. The comparison of positions does not protect a deleted key: a row older than the delete
    would bring it back. The source never sends such a row. A mirror with `delete = soft` compares
    positions of deleted keys too.
    """

    name, form_option = "mirror", "delete"
    has_view = True

    def form(self, options: Options) -> str:
        return options.delete

    def has_tombstones(self, options: Options) -> bool:
        return options.delete == SOFT

    def transaction(self, batch: int) -> tuple[str, int]:
        # These versions are no numbers of batches; those of earlier releases were.
        return "mirror/steps", 2 * batch + 1

    def schema(self, document: DataType, table: Table, image: Image) -> StructType:
        """Key and document, or its typed columns, the guard, and the time of the last change (for
        readers of the table)."""
        key = [StructField(name, StringType()) for name in self.key(table)]
        columns = StructType([*key, *image.fields(document)])
        if self.has_tombstones(table.options):
            columns.add("_deleted", BooleanType())
        return (
            columns.add("_position", StringType())
            .add("_cluster_time", TimestampType())
            .add("_cluster_inc", IntegerType())
        )

    def targets(self, summary: BatchSummary, tables: Tables) -> list[Table]:
        found = {
            table
            for table in tables.known()
            if effects.emptied(table, summary, tables) or effects.kept(table, summary, tables)
        }
        own = {
            n for n in summary.counts if summary.rows(n) or summary.is_born(n)
        } | summary.progress.copied
        found |= {table for n in own if (table := tables.of(n))}
        return sorted(found, key=lambda table: table.target)

    def writer(self) -> Writer:
        return FileMerge(self)

    def merge(self, held: DeltaTable, table: Table, changes: Changes) -> DeltaMergeBuilder:
        key = self.key(table)
        last = changes.image.select(last_changes(placed(changes.rows, key, changes.count), key))
        same = [F.col(f"mirror.{name}") == F.col(f"change.{name}") for name in key]
        if not changes.emptied:  # else every row of the mirror is looked at
            same.append(within(F.col("mirror.key"), changes.bounds))
        merge = held.alias("mirror").merge(last.alias("change"), reduce(and_, same))
        later = "change._position > mirror._position"
        merge = self.with_changes(merge, table, changes.image, later)
        for each in changes.emptied:
            merge = _with_void(merge, each, table)
        return merge

    def with_changes(
        self, merge: DeltaMergeBuilder, table: Table, image: Image, later: str
    ) -> DeltaMergeBuilder:
        """Add the clauses that apply `change` to `mirror`.

        Args:
            merge: a MERGE of `change` into `mirror`.
            table: the mirror.
            image: its columns of documents.
            later: the SQL condition under which a change replaces the row of its key.

        `change` has one row per key: those of `image`, `_op`, `_position`, `_cluster_time`
        and `_cluster_inc`.
        """
        deleted, present = f"{later} AND change._op = 'delete'", "change._op <> 'delete'"
        stamp = _from_change(*_STAMP)
        whole = _from_change(*self.key(table), *image.names(), *_STAMP)
        if self.has_tombstones(table.options):
            mark: _Values = {"_deleted": "change._op = 'delete'"}
            merge = merge.whenMatchedUpdate(deleted, stamp | mark)
            merge = merge.whenMatchedUpdate(f"{later} AND {present}", whole | mark)
            return merge.whenNotMatchedInsert(values=whole | mark)
        merge = merge.whenMatchedDelete(deleted)
        merge = merge.whenMatchedUpdate(f"{later} AND {present}", whole)
        return merge.whenNotMatchedInsert(present, whole)

    def origins(self, rows: DataFrame, table: Table) -> DataFrame:
        return present(rows, table).select(*self.key(table), F.col("_position").alias("position"))


MIRROR = Mirror()


def _from_change(*names: str) -> _Values:
    return {quoted(name): f"change.{quoted(name)}" for name in names}


def _with_void(merge: DeltaMergeBuilder, each: NamespaceEvent, table: Table) -> DeltaMergeBuilder:
    position = F.col("mirror._position")
    if table.is_shared:
        void = effects.is_void(each, F.col("mirror._namespace"), position)
    else:
        void = position < F.lit(each.position)
    if table.options.delete == SOFT:
        return merge.whenNotMatchedBySourceUpdate(void & ~F.col("mirror._deleted"), _gone(each))
    return merge.whenNotMatchedBySourceDelete(void)


def _gone(each: NamespaceEvent) -> _Values:
    """The values of a deleted document: as by a delete at the time of the event.

    The position is before the one of documents that are copied as of that time. Otherwise the next
    batch, which may copy them, could not bring a document back.
    """
    time = each.mark.time
    before = F.lit(resume_token.high_water_mark(time))
    return {
        "_deleted": F.lit(True),
        "_position": F.greatest(F.col("mirror._position"), before),
        "_cluster_time": F.timestamp_seconds(F.lit(time.time)),
        "_cluster_inc": F.lit(time.inc).cast("int"),
    }


def placed(rows: DataFrame, key: list[str], count: int) -> DataFrame:
    """Distribute so many rows over the tasks that group them by key."""
    tasks = math.ceil(count / _ROWS_PER_TASK)
    if tasks <= 1:  # a batch of one row is the rule, and one partition need not be shuffled
        return rows.coalesce(1)
    # What is grouped by the session's own shuffle is folded before it; but to copy a large
    # collection takes more tasks than that has.
    shuffled = rows.sparkSession.conf.get("spark.sql.shuffle.partitions")
    return rows.repartition(tasks, *key) if tasks > int(shuffled or 1) else rows


def last_changes(rows: DataFrame, key: list[str]) -> DataFrame:
    """One row per key, the last."""
    change = F.max_by(F.struct(*change_columns()), "position").alias("change")
    return rows.groupBy(*key).agg(change).select(*key, "change.*")


def change_columns() -> list[Column]:
    """The columns of a row of a changelog, as `Mirror.with_changes` needs them."""
    names = ("op", "position", "cluster_time", "cluster_inc")
    return [F.col("after").alias("document"), *(F.col(name).alias(f"_{name}") for name in names)]
