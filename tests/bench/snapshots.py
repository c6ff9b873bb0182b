"""Snapshots into Delta, as VARIANT and as typed columns, beside mongo-spark and the limits."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from pyspark.sql import SparkSession

from cdc.model import Namespace
from cdc.pipeline import Replication
from cdc.pipeline import config as configuration
from cdc.source import SnapshotReader
from tests.bench import drains
from tests.bench.result import Result
from tests.bench.stage import TASKS, Stage
from tests.bench.timing import Figure, side_by_side

COLUMNS = {
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


# Work, its name in the documents, and how many times mongo-spark it is to be.
_GOALS = (
    ("variant", "snapshot to changelog, VARIANT", 5),
    ("both", "snapshot to changelog and mirror, VARIANT", 3),
    ("typed", "snapshot to changelog and mirror of typed columns", 3),
    ("mirror", "snapshot to mirror alone, VARIANT", 5),
    ("typed mirror", "snapshot to mirror alone, typed columns", 5),
)


def run(stage: Stage, runs: int) -> Iterator[Result]:
    parquet = {each.orders: _parquet(each) for each in (stage, stage.part)}
    splits = {each.orders: each.splits(SnapshotReader, each.orders) for each in (stage, stage.part)}
    with drains.pool(TASKS) as workers:
        taken = side_by_side(
            runs,
            stage,
            {
                **_copies(stage),
                "drain": lambda s: drains.documents(s.server.uri, splits[s.orders], workers),
                "parquet": lambda s: s.peers.run(
                    _land_parquet, parquet[s.orders], s.fresh("local")
                ),
            },
        )
    limit = (taken["drain"].median + taken["parquet"].median) / taken["variant"].median
    yield from _results(stage, taken, limit)


def compare_large(stage: Stage, part: Stage) -> Iterator[Result]:
    """Copies of more documents, once each: what a copy costs at its start and end counts less."""
    for result in _results(stage, side_by_side(1, stage, _copies(stage), part)):
        yield replace(result, work=f"{result.work}, {stage.documents:,} documents")


def _copies(stage: Stage) -> dict[str, Callable[[Stage], None]]:
    typed = stage.folder / "typed.toml"
    columns = (f"{name} = {json.dumps(kind)}\n" for name, kind in COLUMNS.items())
    typed.write_text(f"[table.columns]\n{''.join(columns)}")
    return {
        "variant": lambda s: land_snapshot(s, "variant", "table.mirror="),
        "both": lambda s: land_snapshot(s, "both"),
        "typed": lambda s: land_snapshot(s, "typed", file=str(typed)),
        "mirror": lambda s: land_snapshot(s, "mirror", "table.changelog="),
        "typed mirror": lambda s: land_snapshot(
            s, "typed-mirror", "table.changelog=", file=str(typed)
        ),
        "mongo-spark": lambda s: s.peers.run(
            _land_theirs, s.server.uri, s.orders, s.fresh("theirs")
        ),
    }


def _results(
    stage: Stage, taken: Mapping[str, Figure], limit: float | None = None
) -> Iterator[Result]:
    documents = {name: stage.documents / figure.median for name, figure in taken.items()}
    cpu = {name: figure.cpu for name, figure in taken.items()}
    for name, work, times in _GOALS:
        yield Result(
            work,
            "documents/s",
            ours=documents[name],
            peer=documents["mongo-spark"],
            limit_ratio=limit if name == "variant" else None,
            goal=f"at least {times} x mongo-spark into one table",
            met=documents[name] >= times * documents["mongo-spark"],
            cpu={each: cpu[each] for each in (name, "mongo-spark", "parquet") if each in cpu},
        )


def land_snapshot(stage: Stage, name: str, *given: str, file: str | None = None) -> None:
    """The job itself, from the start of its query to its end."""
    options = [f"uri={stage.server.uri}", f"collections={stage.orders}", "mode=snapshot"]
    options += [f"sink.path={stage.fresh(name)}", *given]
    read: list[int] = []
    replication = Replication(
        stage.spark,
        configuration.load(file, options),
        available_now=True,
        on_batch=lambda report: read.append(report.counts.get(stage.orders, {}).get("read", 0)),
    )
    while replication.is_active():
        time.sleep(0.02)
    replication.stop()
    assert sum(read) == stage.documents, f"{sum(read)} documents written"


def _parquet(stage: Stage) -> Path:
    """Our rows as they are."""
    path = stage.fresh(f"{stage.orders.coll}.parquet")
    stage.ours(stage.orders).write.parquet(str(path))
    return path


def _land_theirs(spark: SparkSession, uri: str, orders: Namespace, path: Path) -> None:
    options = {"connection.uri": uri, "database": orders.db}
    options |= {"collection": orders.coll, "sampleSize": "1000"}
    # Of its partitioners the one that was fastest here: ranges of equal size by a sample.
    options["partitioner.options.partition.size"] = "64"
    rows = spark.read.format("mongodb").options(**options).load()
    rows.write.format("delta").save(str(path))


def _land_parquet(spark: SparkSession, parquet: Path, path: Path) -> None:
    spark.read.parquet(str(parquet)).write.format("delta").save(str(path))
