"""The mirror: a collection as it is at the watermark, in one Delta table per namespace.

A batch reaches a mirror in one commit: the DDL that empties it, the deletes and the last image of
each changed key together. So there is no state between them that a crash could leave behind.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from delta.tables import DeltaMergeBuilder, DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, IntegerType, StringType, StructType, TimestampType

from cdc.delta.commit import Commit, newest_commit, settings
from cdc.delta.facts import ROW_OPS, Facts
from cdc.delta.tables import Tables
from cdc.model.selection import Namespace
from cdc.model.timestamp import Timestamp

_ROWS_PER_TASK = 50_000
_PROPERTIES = {
    # A changed document marks its old row instead of rewriting the file it lies in.
    "delta.enableDeletionVectors": "true",
}
# MERGE takes no writer options, so these reach it through the session.
_TRANSACTION_ID = "spark.databricks.delta.write.txnAppId"
_TRANSACTION_VERSION = "spark.databricks.delta.write.txnVersion"
_USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"


@dataclass(frozen=True, slots=True)
class MirrorState:
    """The table at version `version` is the collection as of `watermark`, with two exceptions:

    before `exact_from` (if not None) some of its documents may be from a later time; and while
    `copying` is not None, it holds only what lies below that frontier (opaque, from the source).
    """

    version: int
    watermark: Timestamp
    exact_from: Timestamp | None
    copying: Any


def state(spark: SparkSession, path: str) -> MirrorState | None:
    """The table's newest version, and what the newest commit of ours says of it; None if there is
    no table or no such commit. Later commits of others (OPTIMIZE) are taken to change no rows.

    A table without changes in a batch gets no commit: `watermark` may be older than the pipeline's,
    and the mirror is right for every time from there to the pipeline's watermark.
    """
    if not DeltaTable.isDeltaTable(spark, path):
        return None
    newest = newest_commit(spark, path)
    if newest is None:
        return None
    version, commit = newest
    return MirrorState(version, commit.watermark, commit.exact_from, commit.copying)


def schema(document: DataType) -> StructType:
    """Key and document, the guard, and the time of the last change (for readers of the table)."""
    return (
        StructType()
        .add("key", StringType())
        .add("document", document)
        .add("_position", StringType())
        .add("_cluster_time", TimestampType())
        .add("_cluster_inc", IntegerType())
    )


def targets(facts: Facts, tables: Tables) -> list[Namespace]:
    """The namespaces whose mirror this batch changes, or whose copy it shows to be complete."""
    known = tables.known()
    emptied = {name for name in known if facts.emptied_at(name) is not None}
    complete = {name for name in known if _is_just_complete(name, facts, tables)}
    return sorted({name for name in facts.counts if facts.rows(name)} | emptied | complete)


def write(
    batch: DataFrame, namespace: Namespace, facts: Facts, batch_id: int, tables: Tables
) -> None:
    """Bring the namespace's mirror to the batch's watermark, in one commit; idempotent per batch.

    Of each key the last change by position counts, and only if it is later than what the mirror
    holds. A row of an insert, update or replace without `after` changes nothing. Deletes match by
    `key`, but for those that only tell where a document has moved from. The position guard cannot
    see a key that is gone: rows older than a delete that an earlier batch applied would bring it
    back, and it is the source's promise not to send them.
    """
    spark = batch.sparkSession
    document = batch.schema["after"].dataType
    tables.create(spark, namespace, schema(document), document.simpleString(), _PROPERTIES)
    commit = _commit(namespace, facts, batch_id, tables)
    if facts.rows(namespace) or facts.emptied_at(namespace) is not None:
        transaction = {
            _TRANSACTION_ID: tables.transaction_id,
            _TRANSACTION_VERSION: str(batch_id),
            _USER_METADATA: commit.text(),
        }
        with settings(spark, transaction):
            _merge(batch, namespace, facts, tables.path(namespace)).execute()
    else:
        _say(batch, commit, tables, namespace)
    tables.committed(namespace, commit)


def _is_just_complete(namespace: Namespace, facts: Facts, tables: Tables) -> bool:
    last = tables.last(namespace)
    return last is not None and last.copying is not None and namespace not in facts.copying


def _commit(namespace: Namespace, facts: Facts, batch_id: int, tables: Tables) -> Commit:
    exact_from = facts.exact_from.get(namespace)
    last = tables.last(namespace)
    # Images from the future of an earlier batch are still there until the watermark passes them.
    if last and last.exact_from and last.exact_from > facts.watermark:
        exact_from = max(last.exact_from, exact_from or last.exact_from)
    return Commit(batch_id, facts.watermark, exact_from, facts.copying.get(namespace))


def _merge(batch: DataFrame, namespace: Namespace, facts: Facts, path: str) -> DeltaMergeBuilder:
    emptied_at = facts.emptied_at(namespace)
    tasks = math.ceil(facts.rows(namespace) / _ROWS_PER_TASK)
    rows = _rows(batch, namespace, emptied_at)
    if namespace in facts.departures:
        rows = _without_moves(rows)
    changes = _last_changes(rows, max(1, tasks))
    image = {
        "key": "change.key",
        "document": "change.document",
        "_position": "change._position",
        "_cluster_time": "change._cluster_time",
        "_cluster_inc": "change._cluster_inc",
    }
    later = "change._position > mirror._position"
    merge = (
        DeltaTable.forPath(batch.sparkSession, path)
        .alias("mirror")
        .merge(changes.alias("change"), "mirror.key = change.key")
        .whenMatchedDelete(f"{later} AND change.op = 'delete'")
        .whenMatchedUpdate(f"{later} AND change.op <> 'delete'", dict(image))
        .whenNotMatchedInsert("change.op <> 'delete'", dict(image))
    )
    if emptied_at is not None:
        merge = merge.whenNotMatchedBySourceDelete(F.col("mirror._position") < F.lit(emptied_at))
    return merge


def _rows(batch: DataFrame, namespace: Namespace, emptied_at: str | None) -> DataFrame:
    """Those that say what has become of a key, after the last DDL that emptied the namespace."""
    rows = batch.where(
        (F.col("db") == F.lit(namespace.db))
        & (F.col("coll") == F.lit(namespace.coll))
        & F.col("op").isin(*ROW_OPS)
        & ((F.col("op") == "delete") | F.col("after").isNotNull())
    )
    if emptied_at is not None:
        rows = rows.where(F.col("position") > F.lit(emptied_at))
    return rows


def _without_moves(rows: DataFrame) -> DataFrame:
    """A change of a shard key's value may move a document to another shard, by a transaction that
    deletes it here and inserts it there. The two shards tell of it at times of their own, so the
    delete may come last; but both are in one batch. Only the shard where it ended up counts.
    """
    transaction = ("key", "txn.lsid", "txn.number")
    last = (
        rows.where(F.col("txn.shard").isNotNull())
        .groupBy(*transaction, "txn.shard")
        .agg(F.max("position").alias("position"), F.max_by("op", "position").alias("op"))
    )
    present = F.when(F.col("op") != "delete", F.col("position"))
    # Where it is gone from all, the first to tell does: the key may be given away right after it.
    home = F.coalesce(F.max_by("shard", present), F.min_by("shard", "position"))
    homes = last.groupBy("key", "lsid", "number").agg(home.alias("home")).alias("homes")
    same = [F.col(f"rows.{name}") == F.col(f"homes.{name.split('.')[-1]}") for name in transaction]
    elsewhere = [*same, F.col("rows.txn.shard") != F.col("home")]
    return rows.alias("rows").join(F.broadcast(homes), elsewhere, "left_anti")


def _last_changes(rows: DataFrame, tasks: int) -> DataFrame:
    """One row per key, the last."""
    change = F.struct(
        "op",
        F.col("after").alias("document"),
        F.col("position").alias("_position"),
        F.col("cluster_time").alias("_cluster_time"),
        F.col("cluster_inc").alias("_cluster_inc"),
    )
    # As many partitions as the rows need, not as the session has: a batch of one row is the rule.
    return (
        rows.repartition(tasks, "key")
        .groupBy("key")
        .agg(F.max_by(change, "position").alias("change"))
        .select("key", "change.*")
    )


def _say(batch: DataFrame, commit: Commit, tables: Tables, namespace: Namespace) -> None:
    """A commit without rows, for what only its metadata tells."""
    document = batch.schema["after"].dataType
    (
        batch.sparkSession.createDataFrame([], schema(document))
        .write.format("delta")
        .mode("append")
        .option("txnAppId", tables.transaction_id)
        .option("txnVersion", commit.batch)
        .option("userMetadata", commit.text())
        .save(tables.path(namespace))
    )
