"""The status of a running replication, from its source and sink."""

from __future__ import annotations

import json
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryProgress

from cdc.delta.followers import Backlog
from cdc.delta.sink import SINK_PHASES, BatchReport, Latency
from cdc.model import Namespace, Timestamp, timestamp
from cdc.mongo.inspect import Edge, Freshness, Metrics, Rate, lag_seconds
from cdc.pipeline.running_batch import RunningBatch

# What a phase is made of in Spark's own `durationMs`.
_MEASURED_BY_SPARK = {
    "planning": ("latestOffset", "getBatch", "queryPlanning"),
    "logs": ("walCommit", "commitOffsets"),
}
# Of how many batches T is remembered. Mirrors that lag by more have an unknown freshness.
_REMEMBERED = 10_000


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
    """A replication now, also while a batch runs. None stands for an unknown value.

    Attributes:
        batch: the last batch of this process that is in all its changelogs.
        metrics: those of the source at the last trigger, except `live_edge` and `lag_seconds`,
            which are those of now, and `events_per_second`, which counts the rows that were
            written.
        latency: that of the last batch with a change.
        inexact: rows with `exact = false` since this process began.
        rows: rows of changelogs since this process began, by collection and op.
        unmappable: images that became dead letters since this process began.
        backlog: what mirrors and histories lack.
        timing: that of the last batch whose trigger has ended.
        uncheckpointed: the commits after the last checkpoint of a table's log, of the table with
            the most of them.
        committed: T of the last batch that is in all its changelogs, also of an earlier run.
        freshness: that of the tables now.
        streamed: slices that a change stream had to read instead of the oplog since this process
            began, by the reason.
        running: the batch that is being written.
    """

    batch: int | None
    metrics: Metrics | None
    latency: Latency | None
    inexact: Mapping[Namespace, int]
    backlog: Backlog | None = None
    timing: Timing | None = None
    uncheckpointed: int | None = None
    committed: Timestamp | None = None
    freshness: Freshness = field(default_factory=Freshness)
    streamed: Mapping[str, int] = field(default_factory=dict)
    rows: Mapping[Namespace, Mapping[str, int]] = field(default_factory=dict)
    unmappable: Mapping[Namespace, int] = field(default_factory=dict)
    # Its seconds differ at each call: two statuses are equal if nothing else differs.
    running: RunningBatch | None = field(default=None, compare=False)

    def to_json(self) -> dict[str, Any]:
        return {
            "batch": self.batch,
            "committed": self.committed and timestamp.text(self.committed),
            "metrics": self.metrics and self.metrics.to_json(),
            "freshnessSeconds": self.freshness.to_json(),
            "latencySeconds": self.latency
            and {name: round(value, 3) for name, value in self.latency._asdict().items()},
            "backlog": self.backlog
            and {"batches": self.backlog.batches, "seconds": round(self.backlog.seconds, 3)},
            "timing": self.timing and {"batch": self.timing.batch, "phasesMs": self.timing.phases},
            "uncheckpointedCommits": self.uncheckpointed,
            "running": self.running
            and {
                "batch": self.running.batch,
                "seconds": round(self.running.seconds, 3),
                "tasks": self.running.tasks,
                "finishedTasks": self.running.finished,
            },
            "rows": {str(namespace): dict(counts) for namespace, counts in self.rows.items()},
            "inexact": {str(namespace): count for namespace, count in self.inexact.items()},
            "unmappable": {str(namespace): n for namespace, n in self.unmappable.items()},
            "changeStreamSlices": dict(self.streamed),
        }


class Meter:
    """Collects the status. The query's thread calls `count_batch`; any thread may call the others.

    `has_mirrors`: whether the pipeline has mirrors or histories.
    """

    def __init__(self, has_mirrors: bool = True) -> None:
        self._lock = threading.Lock()
        self._has_mirrors = has_mirrors
        self._committed: Timestamp | None = None
        self._times: dict[int, Timestamp] = {}
        self._rate = Rate()
        self._rate.count(0)
        self._rows = defaultdict[Namespace, Counter[str]](Counter)
        self._inexact = Counter[Namespace]()
        self._unmappable = Counter[Namespace]()
        self._streamed = Counter[str]()
        self._batch: int | None = None
        self._latency: Latency | None = None
        self._phases: dict[int, Mapping[str, float]] = {}
        self._timing: Timing | None = None

    def resume(self, times: Mapping[int, Timestamp]) -> None:
        """Note T of batches that earlier runs wrote, in their order, with the last one of all."""
        for batch, time in times.items():
            self._note(batch, time)

    @property
    def committed(self) -> Timestamp | None:
        """T of the last batch that is in all its changelogs; None before the first one."""
        return self._committed

    def _note(self, batch: int, time: Timestamp) -> None:
        self._committed = self._times[batch] = time
        self._times.pop(batch - _REMEMBERED, None)

    def count_batch(self, report: BatchReport) -> None:
        """Count a batch that has been written."""
        with self._lock:
            self._batch = report.batch_id
            if report.watermark is not None:
                self._note(report.batch_id, report.watermark)
            self._rate.count(report.changes)
            self._latency = report.latency or self._latency
            for namespace, counts in report.counts.items():
                self._rows[namespace].update(counts)
            self._inexact.update(report.inexact)
            self._unmappable.update(report.unmappable)
            self._streamed.update(report.streamed)
            self._phases[report.batch_id] = report.phases

    def status(
        self,
        progress: StreamingQueryProgress | None,
        edge: Edge | None,
        read_backlog: Callable[[], Backlog | None],
        uncheckpointed: int | None = None,
    ) -> Status:
        """The status now.

        Args:
            progress: the query's last progress, with the source's metrics; None before the first.
            edge: the live edge; None if it was never known.
            read_backlog: returns what mirrors and histories lack; None if that is unknown.
            uncheckpointed: see `Status`.
        """
        # Under the lock: a batch that is not counted yet may be in the backlog, but one that is
        # counted was in it before. So mirrors never seem to contain a batch that they lack.
        with self._lock:
            backlog = read_backlog()
            lag = lag_seconds(edge, self._committed)
            freshness = Freshness(lag, lag_seconds(edge, self._mirrored_until(backlog)))
            metrics = _metrics(progress)
            if metrics is None and edge is not None:  # the first batch of the run
                metrics = Metrics(*[None] * 6)
            if metrics is not None:
                metrics = replace(
                    metrics,
                    live_edge=edge and edge.reported,
                    lag_seconds=lag,
                    events_per_second=self._rate.per_second,
                )
            if progress is not None:
                self._time(progress.batchId, progress.durationMs)
            inexact, streamed = dict(self._inexact), dict(self._streamed)
            rows = {namespace: dict(counts) for namespace, counts in self._rows.items()}
            own = self._batch, metrics, self._latency, inexact, backlog, self._timing
            more = uncheckpointed, self._committed, freshness, streamed, rows
            return Status(*own, *more, dict(self._unmappable))

    def _mirrored_until(self, backlog: Backlog | None) -> Timestamp | None:
        """T of the last batch that all mirrors and histories contain; None if it is unknown."""
        if backlog is None or not self._has_mirrors:
            return None
        if not backlog.batches:
            return self._committed
        return None if backlog.first is None else self._times.get(backlog.first - 1)

    def _time(self, batch: int, durations: Mapping[str, int]) -> None:
        """Note what Spark measured of a trigger."""
        if "addBatch" not in durations:  # an idle one, which Spark reports by the next number
            return
        if (phases := self._phases.get(batch)) is not None:
            self._timing = Timing.of(batch, phases, durations)
        self._phases = {number: each for number, each in self._phases.items() if number > batch}


def _metrics(progress: StreamingQueryProgress | None) -> Metrics | None:
    """The source's metrics; None while Spark has read no offset, which it reports as `null`."""
    if progress is None or not progress.sources:
        return None
    reported = json.loads(progress.sources[0].latestOffset or "null")
    return None if reported is None else Metrics.from_json(reported["metrics"])
