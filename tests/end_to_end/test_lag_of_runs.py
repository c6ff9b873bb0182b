"""The lag of a running job is true at every moment, not only at the end of a batch."""

from __future__ import annotations

import io
import logging
import re
import time
from collections.abc import Callable
from typing import Any

import pytest
from pymongo.collection import Collection
from pymongo.database import Database
from pyspark.sql import SparkSession
from rich.console import Console

from cdc.checkpoint import checkpoint
from cdc.delta.sink import BatchReport
from cdc.demo import ReplicaSet
from cdc.monitoring import Display, read_status
from cdc.pipeline import Config, Replication, Status
from tests.end_to_end.in_process import replicated, wait_until
from tests.mongo.capture import until


def test_the_lag_grows_while_a_batch_is_stuck_and_falls_when_that_is_committed(
    database: Database[dict[str, Any]],
    spark: SparkSession,
    pipeline: Callable[..., Config],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Guards: `lag 0 s` beside a batch that has been stuck for minutes; a mirror that lacks what
    its changelog contains, and seems as fresh; a log in which a stuck batch is silence."""
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
        display = Display(Console(file=io.StringIO()), [], silence=0.5)
        with caplog.at_level(logging.INFO, "cdc.cli.replicate"):
            until(lambda: len(set(_logged(display, replication, orders, caplog.messages))) >= 3)
        stuck = replication.status()
    lags = _logged(display, replication, orders, caplog.messages)
    assert lags == sorted(lags)
    assert lags[-1] - lags[0] < 60
    assert stuck.running is not None
    assert stuck.running.seconds > 1
    assert stuck.committed == committed
    assert stuck.freshness.changelog == _lag(stuck)
    changed = len(reports)
    wait_until(lambda: any(r.latency for r in reports[changed:]), replication, reports)
    wait_until(lambda: _lag(replication.status()) <= 2, replication, reports)
    # The change waits 600 seconds for the mirror, which contains all that was before it.
    until(lambda: _mirror(replication.status()) > _lag(replication.status()))
    replication.stop()


@pytest.mark.slow
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


@pytest.mark.slow
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


def _logged(
    display: Display, replication: Replication, orders: Collection[Any], messages: list[str]
) -> list[int]:
    """The lags in the lines of a stuck batch, while the source goes on, whose edge nobody else
    moves."""
    orders.update_one({"_id": 2}, {"$inc": {"n": 1}}, upsert=True)
    display.show_status(replication.status())
    form = r"batch \d+ is being written: \d+ s,.* lag (\d+) s, freshness: changelogs (\d+) s"
    found = [found for each in messages if (found := re.match(form, each))]
    assert all(each[1] == each[2] for each in found)
    return [int(each[1]) for each in found]


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
