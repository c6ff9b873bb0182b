"""The lag of a running job is true at every moment, not only at the end of a batch."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from pymongo.database import Database
from pyspark.sql import SparkSession

from cdc.checkpoint import checkpoint
from cdc.delta.sink import BatchReport
from cdc.demo import ReplicaSet
from cdc.monitoring import read_status
from cdc.pipeline import Config, Replication, Status
from tests.end_to_end.in_process import replicated, wait_until
from tests.mongo.capture import until


def test_the_lag_grows_while_a_batch_is_stuck_and_falls_when_that_is_committed(
    database: Database[dict[str, Any]], spark: SparkSession, pipeline: Callable[..., Config]
) -> None:
    """Guards: `lag 0 s` beside a batch that has been stuck for minutes; a mirror that lacks what
    its changelog contains, and seems as fresh."""
    orders = database.orders
    orders.insert_one({"_id": 1, "n": 0})
    config = pipeline(f"{database.name}.orders", "heartbeat.interval=1", "sink.mirror.interval=600")
    reports: list[BatchReport] = []
    replication = Replication(spark, config, on_batch=reports.append)
    wait_until(lambda: bool(reports) and not reports[-1].copying, replication, reports)
    wait_until(lambda: not _pending(replication), replication, reports)
    with replication._writing:
        orders.update_one({"_id": 1}, {"$inc": {"n": 1}})
        committed = replication.status().committed
        until(lambda: _lag(replication.status()) >= 4)
        stuck = replication.status()
    assert stuck.committed == committed
    assert stuck.freshness.changelog == _lag(stuck)
    changed = len(reports)
    wait_until(lambda: any(r.latency for r in reports[changed:]), replication, reports)
    wait_until(lambda: _lag(replication.status()) <= 2, replication, reports)
    # The change waits 600 seconds for the mirror, which contains all that was before it.
    until(lambda: _mirror(replication.status()) > _lag(replication.status()))
    replication.stop()


def test_a_run_that_goes_on_knows_lag_and_freshness_before_its_first_batch(
    database: Database[dict[str, Any]], spark: SparkSession, pipeline: Callable[..., Config]
) -> None:
    """Guards: a first batch that is stuck; mirrors that lack batches of an earlier run."""
    orders, options = database.orders, (f"{database.name}.orders", "heartbeat.interval=1")
    orders.insert_one({"_id": 1, "n": 0})
    replicated(spark, pipeline(*options))
    reports: list[BatchReport] = []
    unapplied = pipeline(*options, "sink.follow.by=follow")
    replication = Replication(spark, unapplied, on_batch=reports.append)
    orders.update_one({"_id": 1}, {"$inc": {"n": 1}})
    wait_until(lambda: any(each.latency for each in reports), replication, reports)
    assert replication.status().freshness.mirror is None, "another program applies the batches"
    count = len(reports)
    wait_until(lambda: len(reports) > count + 1, replication, reports)
    replication.stop()
    last = checkpoint.read(unapplied.checkpoint).last
    assert last is not None
    view = read_status(unapplied)
    assert view.freshness.changelog == view.metrics.lag_seconds
    assert view.freshness.mirror is not None
    assert view.freshness.mirror > view.metrics.lag_seconds
    resumed = Replication(spark, pipeline(*options))
    first = resumed.status()
    resumed.stop()
    assert (first.batch, first.committed) == (None, last.offset.time)
    assert first.freshness.mirror is not None
    assert first.freshness.mirror > _lag(first) >= 0


def test_a_source_that_is_gone_makes_the_lag_grow_and_stops_nothing(
    spark: SparkSession, pipeline: Callable[..., Config]
) -> None:
    with ReplicaSet() as server:
        with server.client() as client:
            client.shop.orders.insert_one({"_id": 1})
        config = pipeline("shop.orders", f"uri={server.uri}", "heartbeat.interval=1")
        reports: list[BatchReport] = []
        replication = Replication(spark, config, on_batch=reports.append)
        wait_until(lambda: bool(reports) and not reports[-1].copying, replication, reports)
        assert _lag(replication.status()) <= 60
        server.members[0].kill()
        until(lambda: _metrics(replication.status()).live_edge is None)
        before, began = _lag(replication.status()), time.monotonic()
        until(lambda: _lag(replication.status()) >= before + 4)
        assert time.monotonic() - began < 15
        assert replication.is_active()
        replication.stop(5.0)


def _metrics(status: Status) -> Any:
    assert status.metrics is not None
    return status.metrics


def _lag(status: Status) -> int:
    lag = _metrics(status).lag_seconds
    assert lag is not None
    return int(lag)


def _mirror(status: Status) -> int:
    assert status.freshness.mirror is not None
    return status.freshness.mirror


def _pending(replication: Replication) -> int:
    backlog = replication.status().backlog
    return 0 if backlog is None else backlog.batches
