"""A batch has as many parts as the cores of Spark need."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pymongo.database import Database
from pyspark.sql import SparkSession

from cdc.delta.sink import BatchReport
from cdc.demo import ReplicaSet
from cdc.model import Namespace
from cdc.options import parse
from cdc.pipeline import Replication
from cdc.pipeline import config as configuration
from cdc.source import fit_to_cores

_NEEDED = {"uri": "mongodb://h", "collections": "shop.orders"}
_SPLITS, _SLICES = "snapshot.splits.per.batch", "stream.parallelism"


@pytest.mark.parametrize(
    ("cores", "splits", "slices"),
    [(1, 8, 4), (2, 8, 4), (3, 12, 4), (16, 64, 16), (250, 1000, 64), (1000, 1000, 64)],
)
def test_there_are_four_splits_and_a_slice_for_each_core_within_bounds(
    cores: int, splits: int, slices: int
) -> None:
    found = fit_to_cores(parse(_NEEDED), cores)
    assert found == {_SPLITS: str(splits), _SLICES: str(slices)}


def test_what_the_user_has_set_stays() -> None:
    assert fit_to_cores(parse({**_NEEDED, _SPLITS: "3"}), 16) == {_SLICES: "16"}
    assert fit_to_cores(parse({**_NEEDED, _SPLITS: "3", _SLICES: "2"}), 16) == {}


@pytest.fixture
def cores(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[int]:
    """The cores that Spark reports; it runs two tasks at once in any case."""
    settings: Any = spark.sparkContext._jsc.sc().conf()
    settings.set("spark.default.parallelism", str(request.param))
    yield request.param
    settings.remove("spark.default.parallelism")


@pytest.mark.slow
@pytest.mark.parametrize(("cores", "batches"), [(2, 2), (4, 1)], indirect=["cores"])
def test_a_batch_of_a_copy_has_four_splits_for_each_core_of_the_run(
    spark: SparkSession,
    mongod: ReplicaSet,
    database: Database[dict[str, Any]],
    tmp_path: Path,
    cores: int,
    batches: int,
) -> None:
    large = Namespace(database.name, "large")
    documents = [{"_id": number, "text": "x" * 2**20} for number in range(12)]
    database[large.coll].insert_many(documents)
    given = {
        "uri": mongod.uri,
        "collections": str(large),
        "split.size.mb": "1",
        "mode": "snapshot",
        "sink.path": str(tmp_path),
    }
    config = configuration.load(None, [f"{name}={value}" for name, value in given.items()])
    reports = list[BatchReport]()
    replication = Replication(spark, config, available_now=True, on_batch=reports.append)
    assert replication.wait(120)
    replication.stop()
    copied = [report.counts[large]["read"] for report in reports if large in report.counts]
    assert (len(copied), sum(copied)) == (batches, len(documents))
