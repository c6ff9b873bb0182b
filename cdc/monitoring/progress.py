"""The display of a running replication: copy progress, rates and lag.

On a terminal it shows a bar for each collection while it is copied, and a line of rates. Elsewhere
it prints one line for each batch with rows, as soon as Spark has measured its trigger.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from cdc.delta.sink import BatchReport
from cdc.logs import escape_controls, format_line
from cdc.model import Namespace, Timestamp, timestamp
from cdc.mongo.inspect import Metrics
from cdc.pipeline import Status, Timing


class Display:
    """The display. The query's thread calls `show_batch`; the main thread calls `show_status`."""

    def __init__(self, console: Console, expected: Mapping[Namespace, int]) -> None:
        self._console = console
        self._expected = dict(expected)
        self._copied: dict[Namespace, int] = {}
        self._tasks: dict[Namespace, TaskID] = {}
        self.rows = 0
        self._lag: int | None = None
        self._unprinted: deque[BatchReport] = deque()
        self._bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.percentage:>3.0f} %"),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._stream = self._bars.add_task("changes", total=None, rate="waiting")

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._print(None)
        self._bars.stop()

    def resume_copy(self, namespace: Namespace, documents: int) -> None:
        """Start a collection's bar at the documents that an earlier run copied."""
        self._copied[namespace] = documents

    def show_batch(self, report: BatchReport) -> None:
        """Show a batch that has been written."""
        for namespace, counts in report.counts.items():
            self._bar(namespace, counts.get("read", 0), namespace not in report.copying)
            self.rows += sum(counts.values())
        if report.counts and not self._console.is_terminal:
            self._unprinted.append(report)

    def show_status(self, status: Status) -> None:
        """Show rate, lag, the lag of mirrors, and the oplog's window."""
        self._lag = None if status.metrics is None else status.metrics.lag_seconds
        self._bars.update(self._stream, rate=_rates(status))
        if status.timing is not None:
            self._print(status.timing)

    def _print(self, timing: Timing | None) -> None:
        """Print the lines of the batches up to the one that was timed; None: of all batches."""
        while self._unprinted and (timing is None or self._unprinted[0].batch_id <= timing.batch):
            line = self._line(self._unprinted.popleft(), timing)
            self._console.print(format_line("cdc.cli.replicate", line), soft_wrap=True)

    def _bar(self, namespace: Namespace, read: int, complete: bool) -> None:
        if not read and namespace not in self._tasks:
            return
        copied = self._copied[namespace] = self._copied.get(namespace, 0) + read
        total = max(copied, self._expected.get(namespace, 0))
        task = self._tasks.get(namespace)
        if task is None:
            task = self._tasks[namespace] = self._bars.add_task(
                escape_controls(str(namespace)), rate=""
            )
        self._bars.update(task, completed=copied, total=copied if complete else total)
        speed = self._bars.tasks[self._bars.task_ids.index(task)].speed
        self._bars.update(task, rate=f"{speed:,.0f} docs/s" if speed else "")

    def _line(self, report: BatchReport, timing: Timing | None) -> str:
        if timing is not None and timing.batch == report.batch_id:
            phases = timing.phases
        else:  # the next trigger has ended already, or none will
            phases = {name: round(1000 * seconds) for name, seconds in report.phases.items()}
        parts = [
            f"{namespace} "
            + " ".join(f"{op}={count}" for op, count in sorted(counts.items()))
            + (f" inexact={report.inexact[namespace]}" if namespace in report.inexact else "")
            for namespace, counts in sorted(report.counts.items())
        ]
        time_text = timestamp.text(report.watermark) if report.watermark else "-"
        latency, lag = report.latency, self._lag
        head = [f"batch={report.batch_id} T={time_text} took={sum(phases.values()) / 1000:.1f}s"]
        head += [f"{name}={milliseconds}ms" for name, milliseconds in phases.items()]
        head += [] if lag is None else [f"lag={lag}s"]
        if latency is not None:
            head.append(f"latency={latency.newest:.1f}..{latency.oldest:.1f}s")
        if report.streamed:
            reasons = (f"{reason} {count}" for reason, count in sorted(report.streamed.items()))
            head.append(f"change-streams={sum(report.streamed.values())} ({', '.join(reasons)})")
        return f"{' '.join(head)} {'; '.join(parts)}"


def _rates(status: Status) -> str:
    """The known rates of a status in one line."""
    metrics, mirror = status.metrics, status.freshness.mirror
    if metrics is None:
        return "waiting"
    parts = [f"{metrics.events_per_second or 0:,.0f} events/s", _lag(status.committed, metrics)]
    if mirror is not None and status.backlog is not None and status.backlog.batches:
        parts.append(f"mirrors lag {mirror} s")
    if metrics.oplog_left is not None:
        left = metrics.oplog_left
        parts.append(f"oplog {left.hours:.1f} h ({left.percent:.0f} %)")
    return ", ".join(parts)


def _lag(committed: Timestamp | None, metrics: Metrics) -> str:
    if committed is None:
        return "nothing committed yet"
    if metrics.lag_seconds is None:
        return "lag unknown"
    silent = " (the source does not answer)" if metrics.live_edge is None else ""
    return f"lag {metrics.lag_seconds} s{silent}"
