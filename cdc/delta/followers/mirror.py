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
    StructType,
    TimestampType,
)

from cdc.delta.columns import Image
from cdc.delta.landing import Batch, Bounds, Facts, effects
from cdc.delta.log import Commit, Target, merging, newest_commit
from cdc.delta.sql import quoted
from cdc.delta.tables import SOFT, Table, Tables, grow, writes
from cdc.model import Namespace, NamespaceEvent, Timestamp

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
    """
    newest = newest_commit(spark, target) if target.exists(spark) else None
    if newest is None or newest[1].is_empty:
        return None
    return state_of(*newest, namespace)


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


def schema(document: DataType, table: Table, image: Image) -> StructType:
    """Key and document, or its typed columns, the guard, and the time of the last change (for
    readers of the table)."""
    columns = StructType()
    if table.is_shared:
        columns.add("_namespace", StringType())
    columns.add("key", StringType())
    for each in image.fields(document):
        columns.add(each)
    if table.options.delete == SOFT:
        columns.add("_deleted", BooleanType())
    return (
        columns.add("_position", StringType())
        .add("_cluster_time", TimestampType())
        .add("_cluster_inc", IntegerType())
    )


def targets(facts: Facts, tables: Tables) -> list[Table]:
    """The mirrors that get a commit for this batch."""
    found = {table for table in tables.known() if _is_to_say(table, facts, tables)}
    own = {n for n in facts.counts if facts.rows(n) or facts.is_born(n)} | facts.progress.copied
    found |= {table for n in own if (table := tables.of(n))}
    return sorted(found, key=lambda table: table.target)


def write(spark: SparkSession, table: Table, tables: Tables, batch: Batch) -> None:
    """Apply a batch to the mirror in one commit. Idempotent per batch.

    For each key the change with the greatest position counts, if that is greater than the position
    in the mirror. Deletes match by `key`, except those by which a document only moves to another
    shard. The comparison of positions does not protect a deleted key: a row older than the delete
    would bring it back. The source never sends such a row. A mirror with `delete = soft` compares
    positions of deleted keys too.
    """
    facts, rows = batch.facts, batch.read(spark)
    commit = effects.commit(table, batch, tables)
    names = effects.changed(table, facts, tables)
    emptied = effects.emptied(table, facts, tables)
    if names:
        grow(spark, effects.rows(rows, names, emptied, facts), table, tables)
    if names or emptied:
        with merging(spark, tables.transaction(commit)):
            image, held = tables.image(table), table.target.delta(spark)
            tables.require_current_columns(table, held.toDF().schema)
            _merge(held, rows, table, image, names, emptied, facts).execute()
        tables.committed(table, commit)
    else:
        writes.commit_nothing(spark, table, tables, commit)


def form(document: DataType, table: Table, image: Image) -> tuple[StructType, list[str]]:
    """The columns of the mirror, and those that identify a row."""
    return schema(document, table, image), key_of(table)


def key_of(table: Table) -> list[str]:
    """The columns that identify a row of the mirror."""
    return ["_namespace", "key"] if table.is_shared else ["key"]


def _is_to_say(table: Table, facts: Facts, tables: Tables) -> bool:
    return bool(effects.emptied(table, facts, tables) or effects.kept(table, facts, tables))


def _merge(
    held: DeltaTable,
    batch: DataFrame,
    table: Table,
    image: Image,
    names: list[Namespace],
    emptied: list[NamespaceEvent],
    facts: Facts,
) -> DeltaMergeBuilder:
    count = sum(facts.rows(name) for name in names)
    rows = placed(effects.rows(batch, names, emptied, facts), key_of(table), count)
    last = image.select(last_changes(rows, key_of(table)))
    same = [F.col(f"mirror.{name}") == F.col(f"change.{name}") for name in key_of(table)]
    if not emptied:  # else every row of the mirror is looked at
        same.append(_within([facts.keys[name] for name in names]))
    merge = held.alias("mirror").merge(last.alias("change"), reduce(and_, same))
    merge = with_changes(merge, table, image, "change._position > mirror._position")
    for each in emptied:
        merge = _with_void(merge, each, table)
    return merge


def _within(bounds: list[Bounds]) -> Column:
    """A condition by which Delta skips files that contain none of the keys."""
    least, greatest = min(each.least for each in bounds), max(each.greatest for each in bounds)
    return F.col("mirror.key").between(F.lit(least), F.lit(greatest))


def with_changes(
    merge: DeltaMergeBuilder, table: Table, image: Image, later: str
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
    stamp, whole = _from_change(*_STAMP), _from_change(*key_of(table), *image.names(), *_STAMP)
    if table.options.delete == SOFT:
        mark: _Values = {"_deleted": "change._op = 'delete'"}
        merge = merge.whenMatchedUpdate(deleted, stamp | mark)
        merge = merge.whenMatchedUpdate(f"{later} AND {present}", whole | mark)
        return merge.whenNotMatchedInsert(values=whole | mark)
    merge = merge.whenMatchedDelete(deleted)
    merge = merge.whenMatchedUpdate(f"{later} AND {present}", whole)
    return merge.whenNotMatchedInsert(present, whole)


def _from_change(*names: str) -> _Values:
    return {quoted(name): f"change.{quoted(name)}" for name in names}


def _with_void(merge: DeltaMergeBuilder, each: NamespaceEvent, table: Table) -> DeltaMergeBuilder:
    position = F.col("mirror._position")
    if table.is_shared:
        void = effects.is_void(each, F.col("mirror._namespace"), position)
    else:
        void = position < F.lit(each.position)
    if table.options.delete == SOFT:
        gone: _Values = {"_deleted": F.lit(True), "_position": F.lit(each.position)}
        return merge.whenNotMatchedBySourceUpdate(void, gone)
    return merge.whenNotMatchedBySourceDelete(void)


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
    change = F.struct(
        F.col("op").alias("_op"),
        F.col("after").alias("document"),
        F.col("position").alias("_position"),
        F.col("cluster_time").alias("_cluster_time"),
        F.col("cluster_inc").alias("_cluster_inc"),
    )
    last = rows.groupBy(*key).agg(F.max_by(change, "position").alias("change"))
    return last.select(*key, "change.*")
