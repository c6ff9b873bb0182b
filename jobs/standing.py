"""Where a pipeline stands: by its checkpoint, its tables and its source, without Spark."""

from __future__ import annotations

import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from cdc import options as declared
from cdc.model import timestamp
from cdc.model.selection import Namespace
from cdc.mongo.copies import Extent
from cdc.mongo.metrics import Metrics
from cdc.mongo.standing import Passed
from cdc.source.inquiry import standing
from jobs import checkpoint
from jobs.checkpoint import Checkpoint
from jobs.config import Config
from jobs.landed import Landed, Made, is_told, landed

# A table takes some milliseconds, or a request or two to a store.
_MOST_COLLECTIONS, _THREADS = 200, 8
_QUIET_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Tables:
    """A collection's tables; None: there is none, or it is not looked at."""

    changelog: Landed | None = None
    mirror: Landed | None = None


@dataclass(frozen=True, slots=True)
class View:
    """Everything that is told. `letters`: dead letters, None where that cannot be told;
    `missed`: after how many seconds without a batch nobody seems to work."""

    path: str
    kept: Checkpoint
    metrics: Metrics
    collections: list[tuple[Extent, Tables]]
    letters: int | None
    oplog_warn: float
    missed: float

    @property
    def made(self) -> list[Made]:
        """The newest commits of all tables that brought rows."""
        tables = [each for _, of in self.collections for each in (of.changelog, of.mirror)]
        return [commit for each in tables if each for commit in each.commits if commit.rows]

    @property
    def freshness(self) -> float | None:
        """Of the newest of them: seconds from its batch's time to the commit."""
        newest = max(self.made, key=lambda commit: commit.moment, default=None)
        return None if newest is None else newest.freshness

    @property
    def warnings(self) -> list[str]:
        """What somebody should look at, one sentence each."""
        return [*self._late(), *self._inexact(), *self._left_over()]

    def _late(self) -> Iterable[str]:
        left, lag, last = self.metrics.oplog_left, self.metrics.lag_seconds, self.kept.last
        if left is not None and left.percent < self.oplog_warn:
            yield (
                f"The oplog holds the next changes for {left.hours:.1f} hours more"
                f" ({left.percent:.0f} %): let the job catch up, or make the oplog larger."
            )
        quiet = time.time() - last.moment if last and last.moment else 0.0
        if lag is not None and min(lag, quiet) > self.missed:
            yield (
                f"No batch was written for {quiet:,.0f} s, and the source is {lag:,} s ahead: see"
                " whether the job runs, and its log."
            )

    def _inexact(self) -> Iterable[str]:
        for extent, tables in self.collections:
            newest = tables.mirror.newest if tables.mirror else None
            if newest is None:
                continue
            since = newest.commit.state(extent.namespace).exact_from
            if since is not None and since > newest.commit.watermark:
                yield (
                    f"The mirror of {extent.namespace} is exact from {timestamp.text(since)} on"
                    " only: let the server record images (changeStreamPreAndPostImages)."
                )

    def _left_over(self) -> Iterable[str]:
        if self.letters:
            yield (
                f"{self.letters:,} values could not be mapped: see the table of dead letters, and"
                " mongodb-cdc replay-dead-letters."
            )


def look(config: Config) -> View:
    """Everything at once; tables of the first 200 collections only. Raises CdcError."""
    kept = checkpoint.read(config.checkpoint)
    last, before, passed = kept.last, kept.before, None
    if last and before:
        passed = Passed(before.offset, last.offset, last.began - before.began)
    found = standing(config.source, last.offset if last else None, passed)
    options = declared.parse(config.source)
    with ThreadPoolExecutor(_THREADS) as threads:
        looked_at = found.collections[:_MOST_COLLECTIONS]
        names = [extent.namespace for extent in looked_at]
        tables = dict(zip(names, threads.map(partial(_tables, config), names), strict=True))
    return View(
        config.checkpoint,
        kept,
        found.metrics,
        [(extent, tables.get(extent.namespace, Tables())) for extent in found.collections],
        _letters(config),
        options.oplog_window_warn,
        max(_QUIET_SECONDS, 2.0 * options.heartbeat_interval),
    )


def _tables(config: Config, namespace: Namespace) -> Tables:
    changelog, mirror = (_of(config, kind, namespace) for kind in ("changelog", "mirror"))
    return Tables(changelog, mirror)


def _of(config: Config, kind: str, namespace: Namespace) -> Landed | None:
    table = config.table(kind, namespace)
    return None if table is None or table.is_shared else landed(table.target)


def _letters(config: Config) -> int | None:
    targets = config.layout.letters()
    if not all(map(is_told, targets)):
        return None
    return sum(found.rows for target in targets if (found := landed(target)))
