"""The status of a running replication, from its source and sink."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryProgress

from cdc.delta.followers import Backlog
from cdc.delta.landing import NO_EVENTS
from cdc.delta.sink import BatchReport, Freshness
from cdc.model import Namespace
from cdc.mongo.inspect import Metrics, Rate


@dataclass(frozen=True, slots=True)
class Status:
    """A replication as of its last trigger and its last batch; None: unknown yet.

    `batch` is the last batch that is in all its changelogs. `metrics` come from the source, except
    `events_per_second`, which counts the rows that were written. `freshness` belongs to the last
    batch with a change. `backlog` is what mirrors and histories lack. `inexact` counts rows with
    `exact = false` since this process began. `phases` are milliseconds: what Spark measured of its
    last trigger (`durationMs`), and what the sink measured of its last batch. `uncheckpointed` are
    the commits after the last checkpoint of a table's log, of the table with the most of them.
    """

    batch: int | None
    metrics: Metrics | None
    freshness: Freshness | None
    inexact: Mapping[Namespace, int]
    backlog: Backlog | None = None
    phases: Mapping[str, int] = field(default_factory=dict)
    uncheckpointed: int | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "batch": self.batch,
            "metrics": self.metrics and self.metrics.to_json(),
            "freshnessSeconds": self.freshness
            and {name: round(value, 3) for name, value in self.freshness._asdict().items()},
            "backlog": self.backlog
            and {"batches": self.backlog.batches, "seconds": round(self.backlog.seconds, 3)},
            "phasesMs": dict(self.phases),
            "uncheckpointedCommits": self.uncheckpointed,
            "inexact": {str(namespace): count for namespace, count in self.inexact.items()},
        }


class Meter:
    """Collects the status. The query's thread calls `count_batch`; any thread may call `status`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rate = Rate()
        self._rate.count(0)
        self._inexact = Counter[Namespace]()
        self._batch: int | None = None
        self._freshness: Freshness | None = None
        self._phases: dict[str, int] = {}

    def count_batch(self, report: BatchReport) -> None:
        """Count a batch that has been written."""
        with self._lock:
            self._batch = report.batch_id
            self._rate.count(count_changes(report))
            self._freshness = report.freshness or self._freshness
            self._inexact.update(report.inexact)
            self._phases = {name: round(s * 1000) for name, s in report.phases.items()}

    def status(
        self,
        progress: StreamingQueryProgress | None,
        backlog: Backlog | None,
        uncheckpointed: int | None = None,
    ) -> Status:
        """The status, with the source's metrics from the query's last progress."""
        metrics = _metrics(progress)
        with self._lock:
            if metrics is not None:
                metrics = replace(metrics, events_per_second=self._rate.per_second)
            phases = {**(progress.durationMs if progress else {}), **self._phases}
            inexact = dict(self._inexact)
            own = self._batch, metrics, self._freshness, inexact, backlog, phases
            return Status(*own, uncheckpointed)


def count_changes(report: BatchReport) -> int:
    """The number of a batch's rows that are events: all but `read`, `resync` and `gap` rows."""
    return sum(
        count
        for counts in report.counts.values()
        for op, count in counts.items()
        if op not in NO_EVENTS
    )


def _metrics(progress: StreamingQueryProgress | None) -> Metrics | None:
    """The source's metrics; None while Spark has read no offset, which it reports as `null`."""
    if progress is None or not progress.sources:
        return None
    reported = json.loads(progress.sources[0].latestOffset or "null")
    return None if reported is None else Metrics.from_json(reported["metrics"])
