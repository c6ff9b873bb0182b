"""The status of a running replication, from its source and sink."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryProgress

from cdc.delta.followers import Backlog
from cdc.delta.landing import NO_EVENTS
from cdc.delta.sink import SINK_PHASES, BatchReport, Freshness
from cdc.model import Namespace
from cdc.mongo.inspect import Metrics, Rate

# What a phase is made of in Spark's own `durationMs`.
_MEASURED_BY_SPARK = {
    "planning": ("latestOffset", "getBatch", "queryPlanning"),
    "logs": ("walCommit", "commitOffsets"),
}


@dataclass(frozen=True, slots=True)
class Timing:
    """How long each phase of a batch took, in milliseconds.

    Attributes:
        batch: the batch.
        planning: the source plans the batch, and Spark its query.
        tasks: tasks read MongoDB and write data files.
        commit: the commits of dead letters and changelogs.
        followers: mirrors and histories, if they are written with the batch.
        logs: Spark writes the offset and the commit log of the checkpoint.
        other: the rest of the time from the begin of the trigger to its end.
    """

    batch: int
    planning: int
    tasks: int
    commit: int
    followers: int
    logs: int
    other: int

    @classmethod
    def of(cls, batch: int, phases: Mapping[str, float], durations: Mapping[str, int]) -> Timing:
        """From the seconds that the sink measured, and the milliseconds that Spark did."""
        own = {name: round(1000 * phases.get(name, 0.0)) for name in SINK_PHASES}
        by_spark = {
            name: sum(durations.get(part, 0) for part in parts)
            for name, parts in _MEASURED_BY_SPARK.items()
        }
        rest = durations.get("triggerExecution", 0) - sum(own.values()) - sum(by_spark.values())
        return cls(batch, **own, **by_spark, other=max(0, rest))

    @property
    def phases(self) -> dict[str, int]:
        """The phases in their order."""
        return {name: getattr(self, name) for name in PHASES}


PHASES = tuple(each.name for each in fields(Timing) if each.name != "batch")


@dataclass(frozen=True, slots=True)
class Status:
    """A replication as of its last trigger and its last batch; None: unknown yet.

    `batch` is the last batch that is in all its changelogs. `metrics` come from the source, except
    `events_per_second`, which counts the rows that were written. `freshness` belongs to the last
    batch with a change. `backlog` is what mirrors and histories lack. `inexact` counts rows with
    `exact = false` since this process began. `timing` is that of the last batch whose trigger has
    ended. `uncheckpointed` are the commits after the last checkpoint of a table's log, of the table
    with the most of them.
    """

    batch: int | None
    metrics: Metrics | None
    freshness: Freshness | None
    inexact: Mapping[Namespace, int]
    backlog: Backlog | None = None
    timing: Timing | None = None
    uncheckpointed: int | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "batch": self.batch,
            "metrics": self.metrics and self.metrics.to_json(),
            "freshnessSeconds": self.freshness
            and {name: round(value, 3) for name, value in self.freshness._asdict().items()},
            "backlog": self.backlog
            and {"batches": self.backlog.batches, "seconds": round(self.backlog.seconds, 3)},
            "timing": self.timing and {"batch": self.timing.batch, "phasesMs": self.timing.phases},
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
        self._phases: dict[int, Mapping[str, float]] = {}
        self._timing: Timing | None = None

    def count_batch(self, report: BatchReport) -> None:
        """Count a batch that has been written."""
        with self._lock:
            self._batch = report.batch_id
            self._rate.count(count_changes(report))
            self._freshness = report.freshness or self._freshness
            self._inexact.update(report.inexact)
            self._phases[report.batch_id] = report.phases

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
            if progress is not None:
                self._time(progress.batchId, progress.durationMs)
            inexact = dict(self._inexact)
            own = self._batch, metrics, self._freshness, inexact, backlog, self._timing
            return Status(*own, uncheckpointed)

    def _time(self, batch: int, durations: Mapping[str, int]) -> None:
        """Note what Spark measured of a trigger."""
        if "addBatch" not in durations:  # an idle one, which Spark reports by the next number
            return
        if (phases := self._phases.get(batch)) is not None:
            self._timing = Timing.of(batch, phases, durations)
        self._phases = {number: each for number, each in self._phases.items() if number > batch}


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
