"""Snapshots into Delta, as VARIANT and as typed columns, beside mongo-spark and the limits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from cdc.delta.columns import Columns
from cdc.source import SnapshotReader
from tests.bench import drains
from tests.bench.result import Result
from tests.bench.stage import TASKS, Stage
from tests.bench.timing import side_by_side

_COLUMNS = {
    "_id": "bigint",
    "customer_id": "bigint from customer.id",
    "customer_name": "string from customer.name",
    "status": "string",
    "total": "decimal(18,2)",
    "ordered": "timestamp",
    "lines": "array<struct<sku: string, quantity: int>>",
    "address": "struct<street: string, city: string, zip: string>",
    "note": "string",
}


def run(stage: Stage, runs: int) -> Iterator[Result]:
    parquet = {each.orders: _parquet(each) for each in (stage, stage.part)}
    splits = {each.orders: each.splits(SnapshotReader, each.orders) for each in (stage, stage.part)}
    with drains.pool(TASKS) as workers:
        taken = side_by_side(
            runs,
            stage,
            {
                "variant": lambda s: _land(s.ours(s.orders), s.fresh("variant")),
                "typed": lambda s: _land(_typed(s.ours(s.orders)), s.fresh("typed")),
                "mongo-spark": lambda s: _land(_theirs(s), s.fresh("theirs")),
                "drain": lambda s: drains.documents(s.server.uri, splits[s.orders], workers),
                "parquet": lambda s: _land(
                    s.spark.read.parquet(str(parquet[s.orders])), s.fresh("local")
                ),
            },
        )
    documents = {name: stage.documents / figure.median for name, figure in taken.items()}
    cpu = {name: figure.cpu for name, figure in taken.items()}
    limit = (taken["drain"].median + taken["parquet"].median) / taken["variant"].median
    yield Result(
        "snapshot to Delta, VARIANT",
        "documents/s",
        ours=documents["variant"],
        peer=documents["mongo-spark"],
        limit_ratio=limit,
        goal="at least 5 x mongo-spark, at most 1.3 x (drain + Parquet to Delta)",
        met=documents["variant"] >= 5 * documents["mongo-spark"] and limit >= 1 / 1.3,
        cpu={name: cpu[name] for name in ("variant", "mongo-spark", "parquet")},
    )
    yield Result(
        "snapshot to Delta, typed columns",
        "documents/s",
        ours=documents["typed"],
        peer=documents["mongo-spark"],
        goal="at least 3 x mongo-spark",
        met=documents["typed"] >= 3 * documents["mongo-spark"],
        cpu={"typed": cpu["typed"]},
    )


def _parquet(stage: Stage) -> Path:
    """Our rows as they are."""
    path = stage.fresh(f"{stage.orders.coll}.parquet")
    stage.ours(stage.orders).write.parquet(str(path))
    return path


def _typed(rows: DataFrame) -> DataFrame:
    image = rows.select("key", F.col("after").alias("document"))
    return Columns.parse(_COLUMNS).select(image, "document")


def _theirs(stage: Stage) -> DataFrame:
    options = {"connection.uri": stage.server.uri, "database": stage.orders.db}
    options |= {"collection": stage.orders.coll, "sampleSize": "1000"}
    # Of its partitioners the one that was fastest here: ranges of equal size by a sample.
    options["partitioner.options.partition.size"] = "64"
    return stage.spark.read.format("mongodb").options(**options).load()


def _land(rows: DataFrame, path: Path) -> None:
    rows.write.format("delta").save(str(path))
