"""Status of a pipeline from its checkpoint, tables and source, without Spark."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from cdc.checkpoint import Checkpoint, checkpoint
from cdc.delta.followers import KINDS, MIRROR, Backlog
from cdc.delta.log import is_readable_locally
from cdc.model import Namespace, Timestamp, timestamp
from cdc.mongo.inspect import (
    CopyProgress,
    Edge,
    FinishedBatches,
    Freshness,
    Metrics,
    lag_seconds,
)
from cdc.monitoring.table_stats import TableStats, read_table_stats
from cdc.pipeline import Config
from cdc.source import query_status

# To read a table takes some milliseconds, or one or two requests to an object store.
MOST_COLLECTIONS, _THREADS = 200, 8
_QUIET_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Tables:
    """Statistics of a collection's tables; None if there is no table or it was not read.

    `followers` are those that follow the changelog, by the name of their kind.
    """

    changelog: TableStats | None = None
    followers: Mapping[str, TableStats | None] = field(default_factory=dict)

    @property
    def mirror(self) -> TableStats | None:
        return self.followers.get(MIRROR.name)

    def backlogs(self, namespace: Namespace) -> dict[str, Backlog]:
        """How far followers of the changelog lag it, by their kind, where that is known."""
        if self.changelog is None:
            return {}
        now = time.time()
        found = {
            kind: table.backlog(self.changelog, namespace, now)
            for kind, table in self.followers.items()
            if table is not None
        }
        return {kind: each for kind, each in found.items() if each is not None}


class Problem(NamedTuple):
    """What needs attention, and what to do.

    `is_severe`: whether data may be lost or is not written at all.
    """

    text: str
    remedy: str
    is_severe: bool = False

    def __str__(self) -> str:
        return f"{self.text}: {self.remedy}"


@dataclass(frozen=True, slots=True)
class View:
    """The status of a pipeline.

    Attributes:
        name: The name of the pipeline.
        path: The checkpoint.
        checkpoint: its last batches.
        metrics: The metrics of the source.
        collections: For each selected collection, the progress of its copy and its tables.
        letters: The number of dead letters; None if their tables cannot be read.
        oplog_warn: The percentage of the oplog below which there is a warning.
        stall_seconds: After this many seconds without a batch the job is assumed not to run.
        backlog_seconds: A mirror or history that lags its changelog for longer causes a warning.
        times: T of the batches before the first that a mirror or history lacks, as far as known.
    """

    name: str
    path: str
    checkpoint: Checkpoint
    metrics: Metrics
    collections: list[tuple[CopyProgress, Tables]]
    letters: int | None
    oplog_warn: float
    stall_seconds: float
    backlog_seconds: float = _QUIET_SECONDS
    times: Mapping[int, Timestamp] = field(default_factory=dict)

    @property
    def warnings(self) -> list[str]:
        """The problems as text."""
        return [str(each) for each in self.problems]

    @property
    def freshness(self) -> Freshness:
        """The freshness of the tables; that of mirrors is of those that are known."""
        known = [
            seconds
            for extent, tables in self.collections
            for seconds in self.followers_freshness(extent.namespace, tables).values()
            if seconds is not None
        ]
        return Freshness(self.metrics.lag_seconds, max(known, default=None))

    def followers_freshness(self, namespace: Namespace, tables: Tables) -> dict[str, int | None]:
        """The freshness of mirror and history of a collection, where their backlog is known."""
        edge = None if self.metrics.live_edge is None else Edge(self.metrics.live_edge)
        contained = self.followers_contain(namespace, tables)
        return {kind: lag_seconds(edge, time) for kind, time in contained.items()}

    def followers_contain(
        self, namespace: Namespace, tables: Tables
    ) -> dict[str, Timestamp | None]:
        """T up to which mirror and history of a collection contain all changes.

        Only of those whose backlog is known; None: the checkpoint no longer has T of the batch.
        """
        found = dict[str, Timestamp | None]()
        for kind, backlog in tables.backlogs(namespace).items():
            found[kind] = self.metrics.time
            if backlog.batches:
                found[kind] = None if backlog.first is None else self.times.get(backlog.first - 1)
        return found

    @property
    def problems(self) -> list[Problem]:
        """What needs attention, the severe problems first."""
        found = [
            *self._warn_of_lag(),
            *self._warn_of_backlog(),
            *self._warn_of_inexact(),
            *self._warn_of_letters(),
        ]
        return sorted(found, key=lambda each: not each.is_severe)

    def _warn_of_lag(self) -> Iterable[Problem]:
        left, lag, last = self.metrics.oplog_left, self.metrics.lag_seconds, self.checkpoint.last
        if left is not None and left.percent < self.oplog_warn:
            yield Problem(
                f"The oplog contains the next changes for {left.hours:.1f} hours more"
                f" ({left.percent:.0f} %)",
                "let the job catch up, or make the oplog larger.",
                is_severe=True,
            )
        quiet = time.time() - last.moment if last and last.moment else 0.0
        if lag is not None and min(lag, quiet) > self.stall_seconds:
            yield Problem(
                f"No batch was written for {quiet:,.0f} s, and the tables lag {lag:,} s",
                "check whether the job runs, and read its log.",
                is_severe=True,
            )

    def _warn_of_backlog(self) -> Iterable[Problem]:
        for extent, tables in self.collections:
            for kind, backlog in tables.backlogs(extent.namespace).items():
                if backlog.seconds > self.backlog_seconds:
                    yield Problem(
                        f"The {kind} of {extent.namespace} lags its changelog by"
                        f" {backlog.batches:,} batches, {backlog.seconds:,.0f} s",
                        "check whether replicate runs, or follow if follow.by says so, and read"
                        " its log.",
                    )

    def _warn_of_inexact(self) -> Iterable[Problem]:
        for extent, tables in self.collections:
            newest = tables.mirror.newest if tables.mirror else None
            if newest is None:
                continue
            since = newest.commit.state(extent.namespace).exact_from
            if since is not None and since > newest.commit.watermark:
                yield Problem(
                    f"The mirror of {extent.namespace} is exact from {timestamp.text(since)} on,"
                    " not before",
                    "let the server record images (changeStreamPreAndPostImages).",
                )

    def _warn_of_letters(self) -> Iterable[Problem]:
        if self.letters:
            yield Problem(
                f"{self.letters:,} values could not be mapped",
                "read the table of dead letters, then run mongodb-cdc replay-dead-letters.",
            )


def read_status(config: Config) -> View:
    """Read the status of a pipeline, with the tables of its first 200 collections only.

    Raises CdcError.
    """
    stored = checkpoint.read(config.checkpoint)
    last, before, passed = stored.last, stored.before, None
    if last and before:
        passed = FinishedBatches(before.offset, last.offset, last.began - before.began)
    found = query_status(config.options, last.offset if last else None, passed)
    options = config.options
    with ThreadPoolExecutor(_THREADS) as threads:
        first = found.collections[:MOST_COLLECTIONS]
        names = [extent.namespace for extent in first]
        tables = dict(zip(names, threads.map(partial(_read_tables, config), names), strict=True))
    backlogs = [each for name in names for each in tables[name].backlogs(name).values()]
    applied = {each.first - 1 for each in backlogs if each.first is not None}
    times = {batch: checkpoint.time_of(config.checkpoint, batch) for batch in applied}
    return View(
        config.name,
        config.checkpoint,
        stored,
        found.metrics,
        [(extent, tables.get(extent.namespace, Tables())) for extent in found.collections],
        _count_letters(config),
        options.oplog_window_warn,
        max(_QUIET_SECONDS, 2.0 * options.heartbeat_interval),
        config.backlog_warn,
        {batch: time for batch, time in times.items() if time is not None},
    )


def _read_tables(config: Config, namespace: Namespace) -> Tables:
    # The changelog last: whatever the others contain is in it.
    followers = {kind.name: _read_table(config, kind.name, namespace) for kind in KINDS}
    return Tables(_read_table(config, "changelog", namespace), followers)


def _read_table(config: Config, kind: str, namespace: Namespace) -> TableStats | None:
    table = config.table(kind, namespace)
    return None if table is None or table.is_shared else read_table_stats(table.target)


def _count_letters(config: Config) -> int | None:
    targets = config.layout.letters()
    if not all(map(is_readable_locally, targets)):
        return None
    return sum(found.rows for target in targets if (found := read_table_stats(target)))
