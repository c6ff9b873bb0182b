"""The panel of a running replication on a terminal: collections, rates, lag, warnings."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from cdc.logs import escape_controls
from cdc.mongo.inspect import COPYING, STREAMING, WAITING
from cdc.monitoring.progress import Copy, RunProgress
from cdc.pipeline import Status

# More collections are counted, so that the panel fits on a screen.
_MOST_LINES = 8
_LONG_SECONDS = 600
_ALL_PERCENT = 100.0
_WIDEST, _MARGIN = 120, 4
_ORDER = {COPYING: 0, WAITING: 1, STREAMING: 2}


class Limits(NamedTuple):
    """Warn if less of the oplog is left, in percent, or if a mirror or history lags for longer."""

    oplog_percent: float = 0.0
    backlog_seconds: float = math.inf


def make_panel(
    progress: RunProgress,
    status: Status,
    seconds: float,
    limits: Limits,
    stopping: str,
    width: int,
) -> RenderableType:
    """The panel now.

    Args:
        progress: the progress of the run.
        status: its last status.
        seconds: since the run began.
        limits: beyond which there is a warning.
        stopping: what a stop waits for; empty if nothing stops the run.
        width: that of the terminal. The panel is narrower: the `^C` that a terminal prints at
            the end of the panel must not begin a line of its own.
    """
    facts = ", ".join(list_facts(status))
    texts = _describe_copy(progress), facts, describe_batch(status)
    lines = [Text(each) for each in texts if each]
    lines += [Text(f"WARNING: {each}", "yellow") for each in warnings(progress, status, limits)]
    lines += [Text(stopping, "bold")] if stopping else []
    return Panel(
        Group(_collections(progress, width), *lines),
        title="mongodb-cdc replicate",
        subtitle=f"{progress.rows:,} rows in {progress.batches:,} batches, {span(seconds)}",
        border_style="dim",
        width=max(_MARGIN, min(_WIDEST, width) - _MARGIN),
    )


def list_facts(status: Status) -> list[str]:
    """Rate, lag, freshness and the oplog that is left, as far as they are known."""
    metrics, freshness = status.metrics, status.freshness
    if metrics is None:
        return []
    facts = [f"{metrics.events_per_second or 0:,.0f} changes/s"]
    if status.committed is None:
        facts.append("nothing committed yet")
    elif metrics.lag_seconds is None:
        facts.append("lag unknown")
    else:
        facts.append(f"lag {span(metrics.lag_seconds)}")
    if freshness.changelog is not None:
        facts.append(f"freshness: changelogs {span(freshness.changelog)}")
    if freshness.mirror is not None:
        facts.append(f"mirrors {span(freshness.mirror)}")
    if metrics.oplog_left is not None:
        left = metrics.oplog_left
        # An oplog that has removed nothing yet reaches back only to its begin.
        hours = f" ({left.hours:.1f} h)" if left.percent < _ALL_PERCENT else ""
        facts.append(f"oplog left {left.percent:.0f} %{hours}")
    return facts


def describe_batch(status: Status) -> str:
    """The batch that is being written, and for how long."""
    running = status.running
    if running is None:
        is_first = status.committed is None
        return "planning the first batch" if is_first else "waiting for the next batch"
    tasks = f", {running.finished} of {running.tasks} tasks" if running.tasks else ""
    return f"batch {running.batch} is being written: {span(running.seconds)}{tasks}"


def warnings(progress: RunProgress, status: Status, limits: Limits) -> Iterator[str]:
    """What needs attention."""
    metrics = status.metrics
    if metrics is not None and metrics.live_edge is None and metrics.lag_seconds is not None:
        yield "The source does not answer."
    left = None if metrics is None else metrics.oplog_left
    if left is not None and left.percent < limits.oplog_percent:
        yield (
            f"The oplog contains the next changes for {left.hours:.1f} hours more"
            f" ({left.percent:.0f} %)."
        )
    backlog = status.backlog
    if backlog is not None and backlog.seconds > limits.backlog_seconds:
        yield (
            f"Mirrors and histories lack {backlog.batches:,} batches, the first of them for"
            f" {span(backlog.seconds)}."
        )
    if progress.inexact:
        yield f"{progress.inexact:,} rows are not exact: images are missing."
    if progress.unmappable:
        yield f"{progress.unmappable:,} images could not be mapped and are dead letters."


def span(seconds: float) -> str:
    """A duration: `38 s`, or `1:02:03` from ten minutes on."""
    if seconds < _LONG_SECONDS:
        return f"{seconds:.0f} s"
    return str(timedelta(seconds=round(seconds)))


def _collections(progress: RunProgress, width: int) -> RenderableType:
    table = Table.grid(padding=(0, 2), expand=True)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(ratio=1)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    ordered = sorted(progress.copies.items(), key=lambda each: _ORDER[each[1].phase])
    for namespace, copy in ordered[:_MOST_LINES]:
        name = Text(escape_controls(str(namespace)))
        name.truncate(width // 3, overflow="ellipsis")
        table.add_row(name, copy.phase, *_extent(copy))
    rest = Counter(copy.phase for _, copy in ordered[_MOST_LINES:])
    if not rest:
        return table
    more = ", ".join(f"{count:,} {phase}" for phase, count in rest.items())
    return Group(table, Text(f"and {sum(rest.values()):,} more: {more}"))


def _extent(copy: Copy) -> tuple[RenderableType, str, str]:
    """Bar, percentage and counts of a collection."""
    if copy.phase == STREAMING:
        changes = f"{copy.changes:,} changes"
        return "", "", f"{copy.copied:,} copied, {changes}" if copy.copied else changes
    # The first batch takes longest. Until it is written, the bar moves without a number.
    is_unknown = copy.phase == COPYING and not copy.copied
    bar = ProgressBar(max(1, copy.total), copy.copied, pulse=is_unknown)
    share = copy.copied / copy.total if copy.total else 0.0
    return bar, f"{share:.0%}", f"{copy.copied:,} of {copy.total:,}"


def _describe_copy(progress: RunProgress) -> str:
    """The rate of the copy and the time that it still takes; empty if nothing is copied."""
    if not progress.is_copying:
        return ""
    left = progress.seconds_left
    rate = f"copy: {progress.rows_per_second:,.0f} rows/s"
    return rate if left is None else f"{rate}, {span(left)} left"
