"""The status of a running replication is what was reported to it, and nothing else."""

from __future__ import annotations

import threading
import uuid
from collections import defaultdict
from dataclasses import replace

from pyspark.sql.streaming.listener import StreamingQueryProgress

from cdc.delta.followers import Backlog
from cdc.delta.sink import BatchReport, Latency
from cdc.model import Namespace, Timestamp
from cdc.mongo.inspect import Edge, Freshness, Metrics
from cdc.pipeline import Status, Timing
from cdc.pipeline.run_metrics import Meter

ORDERS = Namespace("shop", "orders")
PHASES = {"tasks": 3.0, "commit": 0.21, "followers": 0.0}
# What Spark measures of a trigger with a batch, in milliseconds.
DURATIONS = {
    "latestOffset": 40,
    "queryPlanning": 12,
    "getBatch": 0,
    "walCommit": 50,
    "addBatch": 3230,
    "commitOffsets": 61,
    "triggerExecution": 3400,
}


def report(batch: int, latency: Latency | None = None, **counts: int) -> BatchReport:
    found = {ORDERS: counts} if counts else {}
    inexact = {ORDERS: 1} if "update" in counts else {}
    return BatchReport(batch, Timestamp(9, 1), found, inexact, {}, frozenset(), 2, latency, PHASES)


def test_what_the_source_says_by_itself_is_no_change() -> None:
    assert report(1, read=10, resync=1, gap=1, update=2, delete=3, drop=1).changes == 6


def test_what_a_sink_has_seen_is_added_up_and_the_last_latency_stays() -> None:
    meter = Meter()
    for each in (report(1, Latency(1.0, 2.0), update=5), report(2, read=3), report(3, update=1)):
        meter.count_batch(replace(each, streamed={"DDL": 1}))
    rows = {ORDERS: {"update": 6, "read": 3}}
    known = {"committed": Timestamp(9, 1), "streamed": {"DDL": 3}, "rows": rows}
    expected = Status(3, None, Latency(1.0, 2.0), {ORDERS: 2}, **known)
    assert meter.status(None, None, _no_backlog) == expected


def test_the_lag_is_known_before_the_first_batch_of_a_run_that_goes_on() -> None:
    """Guards: a batch that is stuck from the start, of which Spark reports nothing."""
    meter, edge = Meter(), Edge(Timestamp(30, 1))
    status = meter.status(None, edge, _no_backlog)
    assert status.metrics == Metrics(None, Timestamp(30, 1), None, 0.0, None, None)
    assert (status.committed, status.freshness) == (None, Freshness())
    meter.resume({7: Timestamp(12, 1)})
    status = meter.status(None, edge, _no_backlog)
    assert status.metrics is not None
    assert status.metrics.lag_seconds == status.freshness.changelog == 18
    status = meter.status(None, Edge(Timestamp(30, 1), silence=4.5), _no_backlog)
    assert status.metrics is not None
    assert (status.metrics.live_edge, status.metrics.lag_seconds) == (None, 22)


def test_the_freshness_of_a_mirror_is_that_of_the_last_batch_that_was_applied_to_it() -> None:
    """Guards: that of the changelog, and the time that a batch waits to be applied."""
    edge, meters = Edge(Timestamp(30, 1)), [Meter(), Meter(has_mirrors=False)]
    for meter in meters:
        meter.resume({6: Timestamp(10, 1), 8: Timestamp(20, 1)})
        meter.count_batch(replace(report(9, update=1), watermark=Timestamp(25, 1)))

    def freshness(backlog: Backlog | None) -> list[Freshness]:
        return [meter.status(None, edge, lambda: backlog).freshness for meter in meters]

    without = Freshness(5, None)
    assert freshness(Backlog(0, 0.0)) == [Freshness(5, 5), without]
    assert freshness(Backlog(1, 60.0, 9)) == [Freshness(5, 10), without]
    assert freshness(Backlog(2, 60.0, 7)) == [Freshness(5, 20), without]
    assert freshness(Backlog(3, 60.0, 6)) == [without, without], "T of batch 5 is unknown"
    assert freshness(Backlog(1, 60.0, None)) == [without, without], "it is to be rebuilt"
    assert freshness(None) == [without, without], "another program applies the batches"


def test_a_batch_that_is_committed_meanwhile_is_not_taken_for_one_that_mirrors_contain() -> None:
    meter = Meter()
    meter.count_batch(report(1, update=1))

    def commit_meanwhile() -> Backlog:
        later = replace(report(2, update=1), watermark=Timestamp(20, 1))
        writer.append(threading.Thread(target=meter.count_batch, args=[later]))
        writer[0].start()
        writer[0].join(0.3)
        return Backlog(0, 0.0)

    writer = list[threading.Thread]()
    status = meter.status(None, Edge(Timestamp(30, 1)), commit_meanwhile)
    writer[0].join()
    assert status.freshness == Freshness(21, 21)
    assert meter.committed == Timestamp(20, 1)


def _no_backlog() -> None:
    return None


def test_the_phases_of_a_batch_are_those_of_its_own_trigger() -> None:
    """Guards: an idle trigger, which Spark reports by the number of the next batch."""

    def progress(batch: int, durations: dict[str, int]) -> StreamingQueryProgress:
        same = dict.fromkeys(("id", "runId"), str(uuid.UUID(int=1)))
        found = {"batchId": batch, "durationMs": durations, **same}
        found |= {"stateOperators": [], "sources": [], "sink": defaultdict(str)}
        return StreamingQueryProgress.fromJson(defaultdict(str, found))

    meter = Meter()
    for number in (1, 2):
        meter.count_batch(report(number, update=1))
        idle = progress(number, {"latestOffset": 900, "triggerExecution": 901})
        assert meter.status(idle, None, _no_backlog).timing is None
    status = meter.status(progress(1, DURATIONS), None, _no_backlog)
    assert status.timing == Timing(1, 52, 3000, 210, 0, 111, 27)
    assert sum(status.timing.phases.values()) == DURATIONS["triggerExecution"]
    assert status.to_json()["timing"] == {"batch": 1, "phasesMs": status.timing.phases}
    status = meter.status(progress(2, {"addBatch": 1}), None, _no_backlog)
    assert status.timing is not None
    assert status.timing.batch == 2
