"""What a running replication shows is what was reported to it, and nothing else."""

from __future__ import annotations

import io
import re

from rich.console import Console

from cdc.delta.sink import BatchReport, Freshness
from cdc.model import Namespace, Timestamp
from cdc.mongo.inspect import Metrics
from cdc.mongo.topology import Remaining
from cdc.monitoring import Display
from cdc.pipeline import Status, count_changes
from cdc.pipeline.run_metrics import Meter

ORDERS = Namespace("shop", "orders")
METRICS = Metrics(Timestamp(9, 1), Timestamp(12, 5), 1234.5, Remaining(30.24, 85.4, ""), 100.0)
PHASES = {"tasks": 3.0, "commit": 0.21}


def report(batch: int, freshness: Freshness | None = None, **counts: int) -> BatchReport:
    found = {ORDERS: counts} if counts else {}
    inexact = {ORDERS: 1} if "update" in counts else {}
    return BatchReport(
        batch, Timestamp(9, 1), found, inexact, {}, frozenset(), 2, freshness, PHASES
    )


def test_a_batch_is_a_line_where_there_is_no_terminal() -> None:
    said = io.StringIO()
    with Display(Console(file=said, width=200), {}) as display:
        display.show_batch(report(1, read=7))
        display.show_batch(report(2))
        display.show_status(Status(2, METRICS, None, {}))
        display.show_batch(report(3, Freshness(0.94, 1.44), insert=2, update=1))
    form = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO cdc\.cli\.replicate: "
    lines = said.getvalue().splitlines()
    assert all(re.match(form, each) for each in lines)
    assert [re.sub(form, "", each) for each in lines] == [
        "batch=1 T=9:1 took=3.2s tasks=3000ms commit=210ms shop.orders read=7",
        "batch=3 T=9:1 took=3.2s tasks=3000ms commit=210ms lag=3s freshness=0.9..1.4s"
        " shop.orders insert=2 update=1 inexact=1",
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
        display.show_status(Status(4, Metrics(Timestamp(9, 1), None, None, None, None), None, {}))
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
    assert meter.status(None, None) == Status(
        3, None, Freshness(1.0, 2.0), {ORDERS: 2}, None, {"tasks": 3000, "commit": 210}
    )
