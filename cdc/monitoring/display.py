"""The display of a running replication.

On a terminal it is a panel that is drawn several times a second. Elsewhere it is log lines: one for
each batch with rows, as soon as Spark has measured its trigger, and one after some silence, so that
a batch that is stuck shows how the lag grows.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from typing import Self

from rich.console import Console, RenderableType
from rich.live import Live

from cdc.delta.sink import BatchReport
from cdc.model import Namespace, timestamp
from cdc.mongo.inspect import COPYING, CopyProgress
from cdc.monitoring.panel import Limits, describe_batch, list_facts, make_panel, span
from cdc.monitoring.progress import Copy, RunProgress
from cdc.pipeline import Status, Timing
from cdc.shutdown import STOPPING, print_at_once

_log = logging.getLogger("cdc.cli.replicate")
_DRAWN_PER_SECOND = 4
_SILENCE_SECONDS = 30.0
_MOST_NAMES = 10


class Display:
    """The display. The query's thread calls `show_batch`; the main thread calls `show_status`.

    Args:
        console: the terminal, if it is one.
        collections: the captured collections at the start of the run.
        limits: beyond which there is a warning.
        stop_seconds: how long a stop waits for a batch.
        silence: the seconds without a log line after which one is printed.
    """

    def __init__(
        self,
        console: Console,
        collections: Iterable[CopyProgress],
        *,
        limits: Limits | None = None,
        stop_seconds: float = 0.0,
        silence: float = _SILENCE_SECONDS,
    ) -> None:
        self._console = console
        self._progress = RunProgress.begin(collections)
        self._lock = threading.Lock()
        self._status = Status(None, None, None, {})
        self._limits = limits or Limits()
        self._stop_seconds, self._silence = stop_seconds, silence
        self._began = self._printed = time.monotonic()
        self._stopped: float | None = None
        self._unprinted: deque[BatchReport] = deque()
        self._live: Live | None = None
        if console.is_terminal:
            # It also replaces sys.stderr, so that log lines appear above the panel.
            self._live = Live(
                get_renderable=self._draw, console=console, refresh_per_second=_DRAWN_PER_SECOND
            )

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start(refresh=True)
        else:
            self._print(self._describe_start())
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
        self._print_batches(None)

    @property
    def rows(self) -> int:
        """The rows that this run wrote."""
        return self._progress.rows

    def copies(self) -> dict[Namespace, Copy]:
        """The captured collections, as they are now."""
        with self._lock:
            return {name: replace(copy) for name, copy in self._progress.copies.items()}

    def acknowledge_stop(self) -> None:
        """Show that the run is about to stop. May be called by a signal handler."""
        self._stopped = time.monotonic()
        if self._live is None:
            print_at_once(STOPPING)

    def show_batch(self, report: BatchReport) -> None:
        """Show a batch that has been written."""
        with self._lock:
            self._progress.count_batch(report)
        if report.counts and self._live is None:
            self._unprinted.append(report)

    def show_status(self, status: Status) -> None:
        """Show rate, lag, freshness, the oplog's window, and the batch that is being written."""
        with self._lock:
            self._status = status
            self._progress.note(status)
        if status.timing is not None:
            self._print_batches(status.timing)
        if self._live is None and time.monotonic() - self._printed > self._silence:
            self._print(", ".join([describe_batch(status), *list_facts(status)]))

    def conclude(self, how: str) -> None:
        """Print how the run ended, with the number of its rows, after the display has ended."""
        text = (
            f"{how}: {self.rows:,} rows in {self._progress.batches:,} batches,"
            f" {span(time.monotonic() - self._began)}"
        )
        if self._live is not None:
            self._console.print(text, soft_wrap=True)
        else:
            self._print(text)

    def _draw(self) -> RenderableType:
        now, stopping = time.monotonic(), ""
        if self._stopped is not None:
            left = max(0.0, self._stop_seconds - (now - self._stopped))
            stopping = f"{STOPPING} ({left:.0f} s at most)"
        with self._lock:
            return make_panel(
                *(self._progress, self._status, now - self._began, self._limits, stopping),
                width=self._console.width,
            )

    def _print(self, text: str) -> None:
        _log.info("%s", text)
        self._printed = time.monotonic()

    def _print_batches(self, timing: Timing | None) -> None:
        """Print the lines of the batches up to the one that was timed; None: of all batches."""
        while self._unprinted and (timing is None or self._unprinted[0].batch_id <= timing.batch):
            self._print(self._describe(self._unprinted.popleft(), timing))

    def _describe_start(self) -> str:
        copies = self._progress.copies
        names = [
            f"{name} ({copy.documents:,} documents, {copy.phase})" for name, copy in copies.items()
        ]
        more = f" and {len(names) - _MOST_NAMES:,} more" if len(names) > _MOST_NAMES else ""
        listed = ", ".join(names[:_MOST_NAMES]) or "no collection yet"
        return f"captures {listed}{more}"

    def _describe(self, report: BatchReport, timing: Timing | None) -> str:
        if timing is not None and timing.batch == report.batch_id:
            phases = timing.phases
        else:  # the next trigger has ended already, or none will
            phases = {name: round(1000 * seconds) for name, seconds in report.phases.items()}
        parts = []
        for namespace, counts in sorted(report.counts.items()):
            words = [f"{op}={count}" for op, count in sorted(counts.items())]
            if namespace in report.inexact:
                words.append(f"inexact={report.inexact[namespace]}")
            if (copy := self._progress.copies[namespace]).phase == COPYING:
                words.append(f"copied={copy.copied}/{copy.total}")
            parts.append(f"{namespace} {' '.join(words)}")
        time_text = timestamp.text(report.watermark) if report.watermark else "-"
        latency, metrics = report.latency, self._status.metrics
        head = [f"batch={report.batch_id} T={time_text} took={sum(phases.values()) / 1000:.1f}s"]
        head += [f"{name}={milliseconds}ms" for name, milliseconds in phases.items()]
        if metrics is not None and metrics.lag_seconds is not None:
            head.append(f"lag={metrics.lag_seconds}s")
        if latency is not None:
            head.append(f"latency={latency.newest:.1f}..{latency.oldest:.1f}s")
        if report.streamed:
            reasons = (f"{reason} {count}" for reason, count in sorted(report.streamed.items()))
            head.append(f"change-streams={sum(report.streamed.values())} ({', '.join(reasons)})")
        return f"{' '.join(head)} {'; '.join(parts)}"
