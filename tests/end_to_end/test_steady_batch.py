"""What a small batch of a running pipeline costs: jobs of Spark, commits of Delta."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import bson
from pymongo.database import Database
from pyspark.sql import SparkSession

from cdc.delta.sink import BatchReport
from cdc.pipeline import Config, Replication
from tests.delta import delta_rs
from tests.end_to_end.in_process import wait_until

_CHANGES = 5


def test_a_steady_batch_takes_at_most_three_jobs_and_one_commit_per_table(
    database: Database[dict[str, Any]],
    spark: SparkSession,
    pipeline: Callable[..., Config],
    tmp_path: Path,
) -> None:
    """Guards: a job that counts or reads again, and a commit that only says something."""
    database.create_collection("orders", changeStreamPreAndPostImages={"enabled": True})
    database.orders.insert_one({"_id": 0, "n": 0})
    config = pipeline(f"{database.name}.orders", "sink.mirror.interval=0")
    tables = [
        tmp_path / "lakehouse" / database.name / "orders" / kind for kind in ("changelog", "mirror")
    ]
    reports = list[BatchReport]()
    replication = Replication(spark, config, on_batch=reports.append)

    def change(number: int) -> None:
        """One change, until the mirror has it."""
        database.orders.update_one({"_id": 0}, {"$set": {"n": number}})
        image = bson.encode({"_id": 0, "n": number})
        wait_until(lambda: mirrored() == {"0": image}, replication, reports)

    def mirrored() -> dict[str, Any]:
        return delta_rs.by_key(tables[1], "document")

    wait_until(lambda: len(reports) >= 2, replication, reports)
    change(1)
    before = jobs(spark), len(reports), [commits(each) for each in tables]
    for number in range(2, 2 + _CHANGES):
        change(number)
    after = jobs(spark), len(reports), [commits(each) for each in tables]
    replication.stop()
    batches = after[1] - before[1]
    assert batches >= _CHANGES
    assert after[0] - before[0] <= 3 * batches
    assert [b - a for a, b in zip(before[2], after[2], strict=True)] == [_CHANGES] * 2


def jobs(spark: SparkSession) -> int:
    """Of this session's JVM, since its start."""
    jvm: Any = spark._jsc
    return int(jvm.sc().dagScheduler().numTotalJobs())


def commits(table: Path) -> int:
    return len(list((table / "_delta_log").glob("*.json")))
