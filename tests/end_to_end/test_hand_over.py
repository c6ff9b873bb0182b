"""The main job in one process: snapshot, hand-over and stream while writers run."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from pymongo.database import Database
from pyspark.sql import DataFrame, SparkSession

from cdc.delta.sink import BatchReport, Sink
from cdc.demo import ReplicaSet, Writers, load_orders
from cdc.model import Namespace
from cdc.pipeline import Config, Replication, Status, mirrored_until, verify
from tests.end_to_end.in_process import STALL_SECONDS, WRITERS_PAUSE, wait_until
from tests.end_to_end.oracle import Checkpoint, OfReplicaSet, lag, violations

_DOCUMENTS = 6_000


def _stream_batches(reports: list[BatchReport]) -> int:
    return sum(1 for report in reports if not report.copying and report.tables)


@pytest.mark.timeout(600)
def test_under_writers_no_change_is_lost_doubled_or_reordered_through_the_hand_over(
    mongod: ReplicaSet,
    database: Database[dict[str, Any]],
    spark: SparkSession,
    pipeline: Callable[..., Config],
) -> None:
    """By the oplog alone, and some slices are compared with a change stream first."""
    orders = Namespace(database.name, "orders")
    load_orders(mongod.uri, orders, _DOCUMENTS, must_be_new=True)
    config = pipeline(str(orders), "read.by=oplog", "oplog.verify=0.2")
    checkpoint = Checkpoint(config)
    reports: list[BatchReport] = []
    began = time.monotonic()
    with Writers(mongod.uri, orders, pause=WRITERS_PAUSE) as writers:
        replication = Replication(spark, config, on_batch=reports.append)
        wait_until(lambda: _stream_batches(reports) >= 3, replication, reports)
        wait_until(lambda: mirrored_until(spark, config, orders) is not None, replication, reports)
        verdict = verify(spark, config, orders)
        status = replication.status()
        replication.stop()
    _is_plausible(status, reports, time.monotonic() - began)
    assert sum(1 for report in reports if report.copying) >= 2, "the copy took too few batches"
    assert writers.written > 100
    assert status.streamed == {}
    assert verdict.is_equal, verdict
    assert violations(spark, OfReplicaSet(database.client), config, checkpoint, orders) == []
    assert lag(config, orders) == 0


def test_a_job_that_is_started_before_its_application_has_each_change_from_the_first_on(
    database: Database[dict[str, Any]], spark: SparkSession, pipeline: Callable[..., Config]
) -> None:
    """Guards: neither the collection nor its database is there yet."""
    orders = Namespace(database.name, "orders")
    config = pipeline(str(orders), "missing.collections=wait", "heartbeat.interval=0")
    reports: list[BatchReport] = []
    replication = Replication(spark, config, on_batch=reports.append)
    wait_until(lambda: len(reports) >= 1, replication, reports)
    images = {"enabled": True}
    coll = database.create_collection("orders", changeStreamPreAndPostImages=images)
    coll.insert_many({"_id": i} for i in range(20))
    coll.update_one({"_id": 1}, {"$set": {"n": 1}})
    coll.delete_one({"_id": 2})

    def ops() -> Counter[str]:
        return sum((Counter(report.counts.get(orders, {})) for report in reports), Counter())

    wait_until(lambda: ops()["delete"] == 1, replication, reports)
    streamed = replication.status().streamed
    replication.stop()
    verdict = verify(spark, config, orders)
    assert set(streamed) == {"DDL"}, "only the slice with the creation needs a change stream"
    assert ops() == {"create": 1, "insert": 20, "update": 1, "delete": 1}
    assert (verdict.is_equal, verdict.documents) == (True, 19)


def _is_plausible(status: Status, reports: list[BatchReport], seconds: float) -> None:
    """Of a replication that has run for so long, under writers that have begun with it."""
    found = [each.latency for each in reports if each.latency is not None and not each.copying]
    assert found
    assert all(0 < each.newest <= each.oldest < seconds + 1 for each in found)
    assert status.batch in {report.batch_id for report in reports}
    assert status.latency in [report.latency for report in reports]
    assert status.committed in {report.watermark for report in reports}
    assert status.inexact == {}
    metrics = status.metrics
    assert metrics is not None
    assert metrics.time in {report.watermark for report in reports}
    assert metrics.events_per_second
    assert metrics.lag_seconds is not None
    assert metrics.lag_seconds < seconds + 1
    assert status.freshness.changelog == metrics.lag_seconds
    assert status.freshness.mirror is not None
    assert status.freshness.mirror >= status.freshness.changelog
    assert metrics.oplog_left is not None
    assert metrics.snapshot_percent == 100
    reported = json.loads(json.dumps(status.to_json()))
    assert reported["metrics"]["lagSeconds"] == metrics.lag_seconds
    assert reported["freshnessSeconds"]["liveView"] == metrics.lag_seconds


def test_a_stop_ends_a_query_that_is_about_to_write_a_batch(
    database: Database[dict[str, Any]], spark: SparkSession, pipeline: Callable[..., Config]
) -> None:
    """Guards: neither waits for the other for ever."""
    database.orders.insert_one({"_id": 1})
    reports: list[BatchReport] = []
    config = pipeline(f"{database.name}.orders", "heartbeat.interval=0")
    replication = Replication(spark, config, on_batch=reports.append)
    wait_until(lambda: len(reports) >= 1, replication, reports)
    with replication._writing:
        stopping = threading.Thread(target=replication.stop)
        stopping.start()
        time.sleep(3)  # a batch comes to its writing, after the stop
    stopping.join(60)
    assert not stopping.is_alive()
    assert not replication.query.isActive


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_sink_that_fails_before_or_after_its_write_neither_loses_nor_doubles_a_row(
    mongod: ReplicaSet,
    database: Database[dict[str, Any]],
    spark: SparkSession,
    pipeline: Callable[..., Config],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    orders = Namespace(database.name, "orders")
    load_orders(mongod.uri, orders, _DOCUMENTS, must_be_new=True)
    config = pipeline(str(orders))
    checkpoint = Checkpoint(config)
    failures = ["before", "after", "after", "before"]
    calls: list[int] = []

    class FailingSink(Sink):
        def write_batch(self, batch: DataFrame, batch_id: int) -> BatchReport:
            calls.append(batch_id)
            fails = failures.pop(0) if failures and len(calls) % 2 == 0 else None
            if fails == "before":
                raise OSError("no write")
            report = super().write_batch(batch, batch_id)
            if fails == "after":
                raise OSError("written, and not reported")
            return report

    monkeypatch.setattr("cdc.pipeline.replication.Sink", FailingSink)
    reports: list[BatchReport] = []
    with Writers(mongod.uri, orders, threads=1, pause=WRITERS_PAUSE):
        while failures:
            replication = Replication(spark, config, on_batch=reports.append)
            left = len(failures)
            deadline = time.monotonic() + STALL_SECONDS
            while replication.query.isActive and time.monotonic() < deadline:
                time.sleep(0.05)
            assert len(failures) == left - 1
        replication = Replication(spark, config, on_batch=reports.append)
        wait_until(lambda: _stream_batches(reports) >= 2, replication, reports)
        replication.stop()
    assert len(calls) > len(set(calls)), "no batch was replayed"
    assert violations(spark, OfReplicaSet(database.client), config, checkpoint, orders) == []
    assert lag(config, orders) == 0
