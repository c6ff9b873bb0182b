"""A batch far larger than any limit allows by default."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pymongo.collection import Collection
from pymongo.database import Database
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from cdc.delta.sink import BatchReport
from cdc.model import Namespace
from cdc.pipeline import Config, Replication, verify
from tests.bench.processes import WORKERS, most_held

_DOCUMENTS, _UPDATES = 50_000, 20
_CHANGES = _DOCUMENTS * _UPDATES
_NO_LIMITS = ("max.events.per.batch=10000000", "max.mb.per.batch=10000")
_MOST_BYTES = 400e6


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_million_changes_in_one_batch_are_written_once_in_bounded_memory(
    spark: SparkSession, database: Database[dict[str, Any]], pipeline: Callable[..., Config]
) -> None:
    """Guards: memory of a task that grows with its batch; changes left out, doubled or mixed up
    where a batch is cut into slices, files and row groups."""
    name = Namespace(database.name, "counters")
    images = {"enabled": True}
    counters = database.create_collection(name.coll, changeStreamPreAndPostImages=images)
    counters.insert_many([{"_id": number, "n": 0} for number in range(_DOCUMENTS)])
    config = pipeline(str(name), "document.format=variant", "split.size.mb=64", *_NO_LIMITS)
    _replicate(spark, config)
    halves = {"$lt": _DOCUMENTS // 2}, {"$gte": _DOCUMENTS // 2}
    with ThreadPoolExecutor(len(halves)) as threads:
        done = [threads.submit(_update, counters, {"_id": half}) for half in halves]
    assert sum(each.result() for each in done) == _CHANGES

    with most_held() as most:
        reports = _replicate(spark, config)
    counts = [report.counts[name] for report in reports if report.counts.get(name)]
    assert counts == [{"update": _CHANGES}]
    assert 0 < most[WORKERS] <= _MOST_BYTES, most

    changelog = config.table("changelog", name)
    assert changelog is not None
    rows = changelog.target.read(spark).where("op = 'update'")
    rows = rows.selectExpr("key", "position", "before:n::int AS old", "after:n::int AS new")
    in_order = F.sort_array(F.collect_list(F.struct("position", "old", "new")))
    by_key = rows.groupBy("key").agg(in_order.alias("changes"))
    by_key = by_key.selectExpr("changes.old AS old", "changes.new AS new")
    assert by_key.distinct().collect() == [([*range(_UPDATES)], [*range(1, _UPDATES + 1)])]
    assert by_key.count() == _DOCUMENTS
    assert verify(spark, config, name).is_equal


def _update(counters: Collection[dict[str, Any]], keys: dict[str, Any]) -> int:
    done = [counters.update_many(keys, {"$inc": {"n": 1}}) for _ in range(_UPDATES)]
    return sum(each.modified_count for each in done)


def _replicate(spark: SparkSession, config: Config) -> list[BatchReport]:
    reports = list[BatchReport]()
    replication = Replication(spark, config, available_now=True, on_batch=reports.append)
    assert replication.query.awaitTermination(280)
    assert replication.stop()
    return reports
