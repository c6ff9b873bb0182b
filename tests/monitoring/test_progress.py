"""What a running replication shows is what was reported to it, and nothing else."""

from __future__ import annotations

import io
import re
import uuid
from collections import defaultdict

from pyspark.sql.streaming.listener import StreamingQueryProgress
from rich.console import Console

from cdc.delta.sink import BatchReport, Freshness
from cdc.model import Namespace, Timestamp
from cdc.mongo.inspect import Metrics
from cdc.mongo.topology import Remaining
from cdc.monitoring import Display
from cdc.pipeline import Status, Timing, count_changes
from cdc.pipeline.run_metrics import Meter

ORDERS = Namespace("shop", "orders")
METRICS = Metrics(Timestamp(9, 1), Timestamp(12, 5), 3, 1234.5, Remaining(30.24, 85.4, ""), 100.0)
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


def report(batch: int, freshness: Freshness | None = None, **counts: int) -> BatchReport:
    found = {ORDERS: counts} if counts else {}
    inexact = {ORDERS: 1} if "update" in counts else {}
    return BatchReport(
        batch, Timestamp(9, 1), found, inexact, {}, frozenset(), 2, freshness, PHASES
    )


def test_a_batch_is_a_line_where_there_is_no_terminal() -> None:
    """Guards: the phases of another batch; a batch without a line because the next one was
    faster."""
    said = io.StringIO()
    timing = Timing.of(3, PHASES, DURATIONS)
    with Display(Console(file=said, width=200), {}) as display:
        display.show_batch(report(1, read=7))
        display.show_batch(report(2))
        display.show_status(Status(2, METRICS, None, {}))
        display.show_batch(report(3, Freshness(0.94, 1.44), insert=2, update=1))
        assert said.getvalue() == ""
        display.show_status(Status(3, METRICS, None, {}, timing=timing))
        assert said.getvalue().count("batch=") == 2
        display.show_batch(report(4, read=1))
    form = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO cdc\.cli\.replicate: "
    lines = said.getvalue().splitlines()
    assert all(re.match(form, each) for each in lines)
    assert [re.sub(form, "", each) for each in lines] == [
        "batch=1 T=9:1 took=3.2s tasks=3000ms commit=210ms followers=0ms lag=3s shop.orders read=7",
        "batch=3 T=9:1 took=3.4s planning=52ms tasks=3000ms commit=210ms followers=0ms logs=111ms"
        " other=27ms lag=3s freshness=0.9..1.4s shop.orders insert=2 update=1 inexact=1",
        "batch=4 T=9:1 took=3.2s tasks=3000ms commit=210ms followers=0ms lag=3s shop.orders read=1",
    ]


def test_a_terminal_shows_what_is_known() -> None:
    said = io.StringIO()
    with Display(Console(file=said, width=200, force_terminal=True), {}) as display:
        display.show_status(Status(None, None, None, {}))
        assert "waiting" in _shown(display, said)
        display.show_status(Status(4, METRICS, Freshness(0.9, 1.44), {}))
        assert "1,234 events/s, lag 3 s, freshness 1.4 s, oplog 30.2 h (85 %)" in _shown(
            display, said
        )
        display.show_status(Status(4, Metrics(Timestamp(9, 1), *[None] * 5), None, {}))
        assert "0 events/s" in _shown(display, said)


def _shown(display: Display, said: io.StringIO) -> str:
    said.truncate(0)
    display._bars.refresh()
    return said.getvalue()


def test_what_the_source_says_by_itself_is_no_change() -> None:
    assert count_changes(report(1, read=10, resync=1, gap=1, update=2, delete=3, drop=1)) == 6


def test_what_a_sink_has_seen_is_added_up_and_the_last_freshness_stays() -> None:
    meter = Meter()
    for each in (report(1, Freshness(1.0, 2.0), update=5), report(2, read=3), report(3, update=1)):
        meter.count_batch(each)
    assert meter.status(None, None) == Status(3, None, Freshness(1.0, 2.0), {ORDERS: 2})


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
        assert meter.status(idle, None).timing is None
    status = meter.status(progress(1, DURATIONS), None)
    assert status.timing == Timing(1, 52, 3000, 210, 0, 111, 27)
    assert sum(status.timing.phases.values()) == DURATIONS["triggerExecution"]
    assert status.to_json()["timing"] == {"batch": 1, "phasesMs": status.timing.phases}
    status = meter.status(progress(2, {"addBatch": 1}), None)
    assert status.timing is not None
    assert status.timing.batch == 2
