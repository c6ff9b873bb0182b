"""What a running replication shows: a bar per collection while it is copied, then rates and lag.

On a terminal that is a live display; elsewhere one line for each batch that held rows.
"""

from __future__ import annotations

import time
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
from cdc.model import timestamp
from cdc.model.selection import Namespace

_RATE_WINDOW_SECONDS = 10.0


class Display:
    """Fed by the query's thread (`batch`) and by the one that waits for it (`lag`)."""

    def __init__(self, console: Console, expected: Mapping[Namespace, int]) -> None:
        self._console = console
        self._expected = dict(expected)
        self._copied: dict[Namespace, int] = {}
        self._tasks: dict[Namespace, TaskID] = {}
        self._recent: deque[tuple[float, int]] = deque()
        self._lag_seconds: int | None = None
        self.rows = 0
        self._bars = Progress(
            TextColumn("{task.description}"),
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
        self._bars.stop()

    def copied_before(self, namespace: Namespace, documents: int) -> None:
        """A copy that goes on from a checkpoint begins its bar where it stood."""
        self._copied[namespace] = documents

    def batch(self, report: BatchReport) -> None:
        """A batch has been written."""
        changes = 0
        for namespace, counts in report.counts.items():
            changes += sum(count for op, count in counts.items() if op != "read")
            self._bar(namespace, counts.get("read", 0), namespace not in report.copying)
            self.rows += sum(counts.values())
        self._recent.append((time.monotonic(), changes))
        self._show_stream()
        if report.counts and not self._console.is_terminal:
            self._console.print(self._line(report), highlight=False, soft_wrap=True)

    def lag(self, watermark: str | None, edge: str | None) -> None:
        """Both as `t:i`: how far the server's newest time is ahead of the tables."""
        if watermark and edge:
            seconds = timestamp.parse(edge).time - timestamp.parse(watermark).time
            self._lag_seconds = max(0, seconds)
            self._show_stream()

    def _bar(self, namespace: Namespace, read: int, complete: bool) -> None:
        if not read and namespace not in self._tasks:
            return
        copied = self._copied[namespace] = self._copied.get(namespace, 0) + read
        total = max(copied, self._expected.get(namespace, 0))
        task = self._tasks.get(namespace)
        if task is None:
            task = self._tasks[namespace] = self._bars.add_task(str(namespace), rate="")
        self._bars.update(task, completed=copied, total=copied if complete else total)
        speed = self._bars.tasks[self._bars.task_ids.index(task)].speed
        self._bars.update(task, rate=f"{speed:,.0f} docs/s" if speed else "")

    def _show_stream(self) -> None:
        lag = "" if self._lag_seconds is None else f", lag {self._lag_seconds} s"
        self._bars.update(self._stream, rate=f"{self._rate():,.0f} events/s{lag}")

    def _rate(self) -> float:
        now = time.monotonic()
        while self._recent and now - self._recent[0][0] > _RATE_WINDOW_SECONDS:
            self._recent.popleft()
        return sum(count for _, count in self._recent) / _RATE_WINDOW_SECONDS

    def _line(self, report: BatchReport) -> str:
        parts = [
            f"{namespace} "
            + " ".join(f"{op}={count}" for op, count in sorted(counts.items()))
            + (f" inexact={report.inexact[namespace]}" if namespace in report.inexact else "")
            for namespace, counts in sorted(report.counts.items())
        ]
        time_text = timestamp.text(report.watermark) if report.watermark else "-"
        return f"batch={report.batch_id} T={time_text} {'; '.join(parts)}"
