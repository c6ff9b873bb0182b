"""Tables that tasks and Spark have written, as engines of others read them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.delta import delta_rs
from tests.delta.batches import batch, change, commits, sink

LOG, MIRROR = "shop/orders/changelog", "shop/orders/mirror"


def by_polars(path: Path, column: str) -> dict[str, Any]:
    """The values of a column, decoded like those of delta-rs."""
    rows = pl.scan_delta(str(path)).select("key", column).collect().rows()
    assert len(dict(rows)) == len(rows), "a key twice"
    return {key: delta_rs.decoded(value) for key, value in rows}


def test_files_of_tasks_are_read_by_engines_without_spark(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Guards: files that only Spark can read: VARIANT, clustering, statistics."""
    own = sink(tmp_path)
    rows = [change("read", key, {"n": number}, time=1) for number, key in enumerate("abc")]
    own.write_batch(batch(spark, rows, until=1), 0)
    assert commits(tmp_path / MIRROR)[-1] == "STREAMING UPDATE"
    expected = {"a": {"n": 0}, "b": {"n": 1}, "c": {"n": 2}}
    found = spark.read.format("delta").load(str(tmp_path / MIRROR))
    documents = found.select("key", F.to_json("document").alias("document")).collect()
    assert {row.key: json.loads(row.document) for row in documents} == expected
    for table, column in ((LOG, "after"), (MIRROR, "document")):
        assert delta_rs.by_key(tmp_path / table, column) == expected
        assert by_polars(tmp_path / table, column) == expected


def test_rows_that_a_deletion_vector_marks_are_skipped_by_engines_without_spark(
    spark: SparkSession, tmp_path: Path
) -> None:
    own = sink(tmp_path)
    rows = [change("insert", key, {"n": 1}, time=1) for key in "abc"]
    own.write_batch(batch(spark, rows, until=1, document="string"), 0)
    rows = [change("delete", "a", time=2), change("update", "b", {"n": 2}, time=3)]
    own.write_batch(batch(spark, rows, until=3, document="string"), 1)
    assert list((tmp_path / MIRROR).glob("deletion_vector_*.bin"))
    expected = {"b": '{"n": 2}', "c": '{"n": 1}'}
    assert delta_rs.by_key(tmp_path / MIRROR, "document") == expected
    assert by_polars(tmp_path / MIRROR, "document") == expected
    assert pl.scan_delta(str(tmp_path / LOG)).collect().height == 5
