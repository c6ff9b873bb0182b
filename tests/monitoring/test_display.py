"""A running replication shows what was reported to it, as a panel or as log lines."""

from __future__ import annotations

import io
import logging
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest
from rich.console import Console

from cdc.delta.followers import Backlog
from cdc.delta.sink import BatchReport, Latency
from cdc.logs import print_output
from cdc.model import Namespace, Timestamp
from cdc.mongo.inspect import COPYING, STREAMING, WAITING, CopyProgress, Freshness, Metrics
from cdc.mongo.topology import Remaining
from cdc.monitoring import Display, Limits
from cdc.monitoring.panel import span
from cdc.pipeline import RunningBatch, Status, Timing

ORDERS, PAYMENTS, NONE = (Namespace("shop", name) for name in ("orders", "payments", "z"))
METRICS = Metrics(Timestamp(9, 1), Timestamp(12, 5), 3, 1234.5, Remaining(30.24, 85.4, ""), None)
PHASES = {"tasks": 3.0, "commit": 0.21, "followers": 0.0}
COPIED = [CopyProgress(ORDERS, 10, STREAMING, 1.0)]
NEW = [CopyProgress(name, 200, WAITING, 0.0) for name in (ORDERS, PAYMENTS, NONE)]


def report(
    batch: int, latency: Latency | None = None, copying: tuple[Namespace, ...] = (), **counts: int
) -> BatchReport:
    found = {ORDERS: counts} if counts else {}
    inexact = {ORDERS: 1} if "update" in counts else {}
    unfinished = frozenset(copying)
    return BatchReport(batch, Timestamp(9, 1), found, inexact, {}, unfinished, 2, latency, PHASES)


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.INFO, "cdc.cli.replicate"):
        yield caplog


@pytest.fixture
def screen() -> Console:
    return Console(file=io.StringIO(), width=100, force_terminal=True)


def test_a_batch_is_a_line_where_there_is_no_terminal(log: pytest.LogCaptureFixture) -> None:
    """Guards: the phases of another batch; a batch without a line because the next one was
    faster."""
    timing = Timing(3, 52, 3000, 210, 0, 111, 27)
    with Display(Console(file=io.StringIO()), NEW[:1]) as display:
        display.show_batch(report(1, copying=(ORDERS,), read=7))
        display.show_batch(report(2))
        display.show_status(Status(2, METRICS, None, {}))
        assert log.messages == ["captures shop.orders (200 documents, copying)"]
        log.clear()
        display.show_batch(report(3, Latency(0.94, 1.44), insert=2, update=1))
        display.show_status(Status(3, METRICS, None, {}, timing=timing))
        assert len(log.messages) == 2
        display.show_batch(replace(report(4, read=1), streamed={"DDL": 2, "a cause": 1}))
    display.conclude("complete")
    *lines, end = log.messages
    assert lines == [
        "batch=1 T=9:1 took=3.2s tasks=3000ms commit=210ms followers=0ms lag=3s shop.orders read=7",
        "batch=3 T=9:1 took=3.4s planning=52ms tasks=3000ms commit=210ms followers=0ms logs=111ms"
        " other=27ms lag=3s latency=0.9..1.4s shop.orders insert=2 update=1 inexact=1",
        "batch=4 T=9:1 took=3.2s tasks=3000ms commit=210ms followers=0ms lag=3s"
        " change-streams=3 (DDL 2, a cause 1) shop.orders read=1",
    ]
    assert re.fullmatch(r"complete: 11 rows in 3 batches, \d s", end)


def test_a_batch_that_is_stuck_is_a_line_again_and_again(log: pytest.LogCaptureFixture) -> None:
    """The lag in it is the one of the status; `test_lag_of_runs` has a batch that is stuck."""
    with Display(Console(file=io.StringIO()), COPIED, silence=0.0) as display:
        log.clear()
        for lag in (21, 52):
            running = RunningBatch(8, lag - 1.0, 9, 5)
            metrics = replace(METRICS, lag_seconds=lag)
            status = Status(7, metrics, None, {}, committed=Timestamp(9, 1), running=running)
            display.show_status(replace(status, freshness=Freshness(lag, lag + 10)))
        lines = log.messages
        display._silence = 60.0
        display.show_status(Status(7, METRICS, None, {}))
        assert log.messages == lines
    assert lines == [
        "batch 8 is being written: 20 s, 5 of 9 tasks, 1,234 changes/s, lag 21 s,"
        " freshness: changelogs 21 s, mirrors 31 s, oplog left 85 % (30.2 h)",
        "batch 8 is being written: 51 s, 5 of 9 tasks, 1,234 changes/s, lag 52 s,"
        " freshness: changelogs 52 s, mirrors 62 s, oplog left 85 % (30.2 h)",
    ]


def test_the_panel_shows_the_phase_of_each_collection_and_how_long_the_copy_takes(
    screen: Console,
) -> None:
    with Display(screen, NEW) as display:
        shown = draw(display, screen)
        assert re.search(r"shop.orders +copying +━+ +0% +0 of 200 ", shown)
        assert re.search(r"shop.payments +not begun +━+ +0% +0 of 200 ", shown)
        assert "copy: 0 rows/s " in shown
        assert "planning the first batch" in shown
        display.show_batch(report(0, copying=(ORDERS,), read=50))
        shown = draw(display, screen)
        assert re.search(r"shop.orders +copying +━+.* +25% +50 of 200 ", shown)
        assert re.search(r"copy: [\d,]+ rows/s, \d+ s left", shown)
        display.show_batch(report(1, read=160))
        display.show_batch(report(2, insert=1, update=2))
        shown = draw(display, screen)
        assert re.search(r"shop.orders +streaming +210 copied, 3 changes", shown)
        assert re.search(r"shop.payments +copying", shown)
        assert "WARNING: 1 rows are not exact" in shown
        done = replace(METRICS, snapshot_percent=100.0)
        display.show_status(Status(2, done, None, {}, committed=Timestamp(8, 1)))
        assert re.search(r"shop.payments +copying", draw(display, screen)), "not committed yet"
        display.show_status(Status(2, done, None, {}, committed=Timestamp(9, 1)))
        shown = draw(display, screen)
        assert re.search(r"shop.z +streaming +0 changes", shown)
        assert "copy:" not in shown
        assert "waiting for the next batch" in shown
        assert "213 rows in 3 batches" in shown


def test_the_panel_of_a_run_that_goes_on_begins_where_the_last_one_ended(screen: Console) -> None:
    share = CopyProgress(PAYMENTS, 200, COPYING, 0.75)
    with Display(screen, [share, *COPIED]) as display:
        shown = draw(display, screen)
    assert re.search(r"shop.payments +copying +━+.* +75% +150 of 200 ", shown)
    assert re.search(r"shop.orders +streaming +10 copied, 0 changes", shown)


def test_the_panel_shows_the_rates_and_warnings_that_are_known(screen: Console) -> None:
    with Display(screen, COPIED, limits=Limits(90.0, 120.0)) as display:
        new = Metrics(Timestamp(9, 1), *[None] * 5)
        display.show_status(Status(None, new, None, {}))
        assert "0 changes/s, nothing committed yet" in draw(display, screen)
        committed = Status(4, METRICS, Latency(0.9, 1.44), {}, committed=Timestamp(9, 1))
        display.show_status(committed)
        shown = draw(display, screen)
        assert "1,234 changes/s, lag 3 s, oplog left 85 % (30.2 h)" in shown
        assert "WARNING: The oplog contains the next changes for 30.2 hours more (85 %)." in shown
        pending = {"backlog": Backlog(2, 60.0, 3), "freshness": Freshness(3, 725)}
        running = RunningBatch(5, 12.0, 9, 5)
        display.show_status(replace(committed, **pending, running=running))
        shown = draw(display, screen)
        assert "lag 3 s, freshness: changelogs 3 s, mirrors 0:12:05, oplog" in shown
        assert "batch 5 is being written: 12 s, 5 of 9 tasks" in shown
        assert "lack" not in shown
        display.show_status(replace(committed, backlog=Backlog(2, 725.0, 3)))
        warned = "WARNING: Mirrors and histories lack 2 batches, the first of them for 0:12:05."
        assert warned in draw(display, screen)
        silent = replace(METRICS, live_edge=None, lag_seconds=21)
        display.show_status(replace(committed, metrics=silent))
        shown = draw(display, screen)
        assert "lag 21 s" in shown
        assert "WARNING: The source does not answer." in shown
        display.show_status(replace(committed, metrics=new))
        assert "0 changes/s, lag unknown" in draw(display, screen)


def test_a_thousand_collections_fit_on_a_screen_and_their_names_control_nothing(
    screen: Console,
) -> None:
    many = [CopyProgress(Namespace("db", f"{n:04}"), 5, WAITING, 0.0) for n in range(1000)]
    evil = CopyProgress(Namespace("a", "[red]\x1b[2J" + 90 * "x"), 5, WAITING, 0.0)
    with Display(screen, [*many, evil]) as display:
        shown = draw(display, screen)
    assert "and 993 more: 993 not begun" in shown
    assert r"a.[red]\x1b[2Jxxx" in shown
    assert len(shown.splitlines()) < 20


def test_a_stop_is_acknowledged_in_the_panel_and_log_lines_appear_above_it(
    screen: Console, capfd: pytest.CaptureFixture[str]
) -> None:
    with Display(screen, COPIED, stop_seconds=20) as display:
        display.acknowledge_stop()
        assert re.search(
            r"stopping after the current batch; .* \(\d\d s at most\)", draw(display, screen)
        )
        print_output(b"2026-11-26T12:50:32.656Z WARN A: from Java\n")
        print("from Python", file=sys.stderr)
        display._draw()
    above = str(screen.file.getvalue())  # type: ignore[attr-defined]
    assert "WARN A: from Java" in above
    assert "from Python" in above
    assert capfd.readouterr().err == ""
    with Display(Console(file=io.StringIO()), COPIED) as display:
        display.acknowledge_stop()
        print_output(b"from Java\n")
    first, second = capfd.readouterr().err.splitlines()
    assert re.match(r"[\d:.TZ-]+ INFO cdc\.shutdown: stopping after the current batch", first)
    assert second == "from Java"


def test_a_terminal_that_is_gone_holds_nobody_up() -> None:
    reading, writing = os.pipe()
    before = os.dup(2)
    os.close(reading)
    try:
        os.dup2(writing, 2)
        print_output(b"from Java\n")
        Display(Console(file=io.StringIO()), COPIED).acknowledge_stop()
    finally:
        os.dup2(before, 2)
        os.close(before)
        os.close(writing)


def test_a_duration_is_readable() -> None:
    assert [span(each) for each in (0.4, 599, 600, 217_587_889)] == [
        *("0 s", "599 s", "0:10:00", "2518 days, 9:04:49")
    ]


def draw(display: Display, screen: Console) -> str:
    """The panel without colours."""
    assert display._live is not None
    file = screen.file
    assert isinstance(file, io.StringIO)
    file.truncate(0)
    display._live.refresh()
    return re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", file.getvalue())
