"""What a long run has left, judged by Spark: the rules of tests/end_to_end/oracle, for
more rows than Python holds. Documents are compared by their hashes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet
from pymongo import MongoClient
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

import cdc
from cdc.model import Namespace, Timestamp
from cdc.pipeline import Config

_STORY = pa.schema([("time", pa.int64()), ("op", pa.string()), ("key", pa.string())])
_OPS = {"i": "insert", "d": "delete"}
_ROWS_AT_ONCE = 200_000
# Of no document; Spark's own, whatever the type.
_ABSENT = 42


def judged(
    spark: SparkSession,
    client: MongoClient[Any],
    config: Config,
    namespace: Namespace,
    until: Timestamp,
    folder: Path,
) -> tuple[int, list[str]]:
    """How many changes the changelog reports, and all that is wrong with it and with the mirror, in
    words. The collection was copied in one batch, has no transactions, and nobody has written since
    `until`, up to which the job has come."""
    rows = _changelog(spark, config, namespace).persist()
    copied = {row.time for row in rows.where("op = 'read'").select("time").distinct().collect()}
    assert len(copied) == 1, "it was not copied in one batch"
    given = rows.where("op != 'read'").select(*_STORY.names)
    happened = _story(spark, client, namespace, folder / "story.parquet")
    happened = happened.where(F.col("time").between(copied.pop() + 1, _number(until)))
    counts = {
        "rows stand more than once": rows.groupBy("position", "key").count().where("count > 1"),
        "rows do not follow from the one before of their key": _breaking(rows),
        "rows are not exact": rows.where("NOT exact"),
        "changes are missing": happened.exceptAll(given),
        "changes never happened": given.exceptAll(happened),
    }
    found = [f"{count} {what}" for what, each in counts.items() if (count := each.count())]
    reported = given.count()
    rows.unpersist()
    return reported, found + _mirror(spark, config, namespace)


def _changelog(spark: SparkSession, config: Config, namespace: Namespace) -> DataFrame:
    table = config.table("changelog", namespace)
    assert table is not None
    return (
        table.target.read(spark)
        .where("key IS NOT NULL")
        .select(
            *("position", "key", "op", "exact"),
            F.xxhash64("before").alias("before"),
            F.xxhash64("after").alias("after"),
            (F.unix_seconds("cluster_time") * 2**32 + F.col("cluster_inc")).alias("time"),
        )
    )


def _breaking(rows: DataFrame) -> DataFrame:
    before = F.lag("after").over(Window.partitionBy("key").orderBy("position"))
    held = rows.withColumn("held", F.coalesce(before, F.lit(_ABSENT)))
    is_there, is_left = F.col("held") != _ABSENT, F.col("after") != _ABSENT
    goes_on = is_there & (F.col("before") == F.col("held"))
    right = (
        F.when(F.col("op").isin("read", "insert"), ~is_there & is_left)
        .when(F.col("op").isin("update", "replace"), goes_on & is_left)
        .when(F.col("op") == "delete", goes_on & ~is_left)
        .otherwise(False)
    )
    return held.where(~right)


def _story(
    spark: SparkSession, client: MongoClient[Any], namespace: Namespace, path: Path
) -> DataFrame:
    """Every write to the collection that the oplog holds."""
    fields = {"ts": 1, "op": 1, "o._id": 1, "o2._id": 1}
    entries = client.local["oplog.rs"].find({"ns": str(namespace)}, fields)
    with parquet.ParquetWriter(path, _STORY) as writer:
        batch = list[dict[str, Any]]()
        for entry in entries.sort("$natural", 1):
            batch.append(_reported(entry))
            if len(batch) == _ROWS_AT_ONCE:
                writer.write_table(pa.Table.from_pylist(batch, _STORY))
                batch = []
        writer.write_table(pa.Table.from_pylist(batch, _STORY))
    return spark.read.parquet(str(path))


def _reported(entry: dict[str, Any]) -> dict[str, Any]:
    key = entry["o2"]["_id"] if entry["op"] == "u" else entry["o"]["_id"]
    op = _OPS.get(entry["op"]) or ("replace" if "_id" in entry["o"] else "update")
    return {"time": _number(entry["ts"]), "op": op, "key": str(key)}


def _number(time: Timestamp) -> int:
    return time.time * 2**32 + time.inc


def _mirror(spark: SparkSession, config: Config, namespace: Namespace) -> list[str]:
    table = config.table("mirror", namespace)
    assert table is not None
    cdc.register(spark)
    documents = spark.read.format("mongodb-cdc").options(
        uri=config.source["uri"], collections=str(namespace), **{"document.format": "bson"}
    )
    there = table.target.read(spark).select("key", F.xxhash64("document"))
    source = documents.load().select("key", F.xxhash64("after"))
    counts = {"are not in the mirror": source.exceptAll(there)}
    counts["in the mirror are not the source's"] = there.exceptAll(source)
    return [f"{n} documents {what}" for what, each in counts.items() if (n := each.count())]
