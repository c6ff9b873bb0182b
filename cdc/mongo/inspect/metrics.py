"""Metrics of a stream at each trigger: progress, lag, rate, and the oplog that is left.

A number that the source does not provide now is None; it never ends the query. All times are those
of the source. No metric needs the rows of the batch.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pymongo
from bson.timestamp import Timestamp

from cdc.model import CaptureFilter, Namespace, Offset, Selection, timestamp
from cdc.mongo.inspect.copy_progress import (
    Sample,
    collection_progress,
    count_documents,
    draw_sample,
    is_copied,
    percent,
)
from cdc.mongo.inspect.lag import PATIENCE_SECONDS, LiveEdge, lag_seconds
from cdc.mongo.inspect.ttl_cache import CachedValue, value_or_none
from cdc.mongo.topology import OplogWatch, Remaining, Source, Window, windows

_CACHE_SECONDS = 10.0
# Keys that were appended after a sample was drawn all come after its keys.
_SAMPLE_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Metrics:
    """The metrics of a run; None stands for an unknown value, or one that does not exist yet.

    Attributes:
        time: the cluster time T at which the newest batch ends.
        live_edge: the newest time that the source has reached for good; None also if it does not
            answer now.
        lag_seconds: the seconds from what is committed to the live edge; see `lag`.
        events_per_second: changes in the batches of the last seconds.
        oplog_left: what is left of the oplog before it loses changes that are still to be read; the
            least of all shards.
        snapshot_percent: the approximate percentage of all documents that has been copied. It is
            100 only if no copy is to be started or continued.
    """

    time: Timestamp | None
    live_edge: Timestamp | None
    lag_seconds: int | None
    events_per_second: float | None
    oplog_left: Remaining | None
    snapshot_percent: float | None

    def to_json(self) -> dict[str, Any]:
        """Return the metrics as JSON, with names in the style of Spark's progress."""
        left = self.oplog_left
        return {
            "time": self.time and timestamp.text(self.time),
            "liveEdge": self.live_edge and timestamp.text(self.live_edge),
            "lagSeconds": self.lag_seconds,
            "eventsPerSecond": _rounded(self.events_per_second),
            "oplogWindow": left
            and {
                "hoursLeft": round(left.hours, 2),
                "percentLeft": round(left.percent, 1),
                "shard": left.shard or None,
            },
            "snapshotPercent": _rounded(self.snapshot_percent),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Metrics:
        time, edge, left = data["time"], data["liveEdge"], data["oplogWindow"]
        return cls(
            time and timestamp.parse(time),
            edge and timestamp.parse(edge),
            data["lagSeconds"],
            data["eventsPerSecond"],
            left and Remaining(left["hoursLeft"], left["percentLeft"], left["shard"] or ""),
            data["snapshotPercent"],
        )


def _rounded(number: float | None) -> float | None:
    return None if number is None else round(number, 1)


def least_remaining(windows: list[Window], at: Timestamp) -> Remaining | None:
    """Return what is left of the oplog that has least left; None without windows."""
    each = (window.remaining(at) for window in windows)
    return min(each, key=lambda left: (left.percent, left.hours), default=None)


@dataclass(slots=True)
class Rate:
    """A rate per second over the last `seconds`.

    It covers more time if the last two reports are further apart.
    """

    seconds: float = 10.0
    _reports: deque[tuple[float, int]] = field(default_factory=deque)

    def count(self, count: int) -> None:
        """Report how many events there were since the previous report."""
        now = time.monotonic()
        self._reports.append((now, count))
        self._forget(now)

    def _forget(self, now: float) -> None:
        while len(self._reports) > 2 and now - self._reports[1][0] > self.seconds:
            self._reports.popleft()

    @property
    def per_second(self) -> float:
        now, reports = time.monotonic(), self._reports
        self._forget(now)
        if len(reports) < 2:
            return 0.0
        # The first report only starts the clock: its events came before it.
        count = sum(count for _, count in reports) - reports[0][1]
        return count / max(1e-3, now - reports[0][0])


@dataclass(slots=True)
class Gauges:
    """Reads the metrics at each trigger of one query.

    Its state only saves queries to the source.

    Attributes:
        lookout: warns when little of an oplog is left.
        selection: the configured selection.
        capture: the configured capture filter.
    """

    lookout: OplogWatch
    selection: Selection
    capture: CaptureFilter
    _rate: Rate = field(default_factory=Rate)
    _planned: int | None = 0
    _is_counted: bool = True
    _edge: LiveEdge = field(default_factory=LiveEdge)
    _windows: CachedValue[list[Window]] = field(
        default_factory=lambda: CachedValue("oplog windows", _CACHE_SECONDS)
    )
    _documents: CachedValue[dict[Namespace, int]] = field(
        default_factory=lambda: CachedValue("sizes of collections", _CACHE_SECONDS)
    )
    _sample: CachedValue[Sample] = field(
        default_factory=lambda: CachedValue("a sample", _SAMPLE_SECONDS)
    )

    def read(
        self, source: Source, start: Offset, end: Offset, events: int | None, is_first: bool = False
    ) -> Metrics:
        """Return the metrics for the batch between two offsets, which is about to start.

        The call also means that the previous batch is finished: it is committed up to `start`, and
        its changes count for the rate.

        Args:
            source: the source.
            start: the offset before the batch.
            end: the offset after the batch.
            events: the approximate number of its changes; None if unknown.
            is_first: nothing is committed yet.
        """
        finished, self._planned = self._planned, events
        self._is_counted = finished is not None and (finished > 0 or self._is_counted)
        self._rate.count(finished or 0)
        with pymongo.timeout(PATIENCE_SECONDS):
            edge = self._edge.now(source.live_edge, end.time)
            return Metrics(
                end.time,
                edge and edge.reported,
                lag_seconds(edge, None if is_first else start.time),
                self._rate.per_second if self._is_counted else None,
                self._oplog_left(source, start),
                self._copied_percent(source, end),
            )

    def _oplog_left(self, source: Source, start: Offset) -> Remaining | None:
        clients = source.clients
        shards = [shard for shard in start.shards if shard in clients]
        known = self._windows.get(lambda: windows(clients, shards), shards) or []
        self.lookout.warn_if_short(known, start.time)
        return least_remaining(known, start.time)

    def _copied_percent(self, source: Source, end: Offset) -> float | None:
        if is_copied(end, self.selection, self.capture):
            return percent([], True)
        copying, share = end.copying, None
        documents = self._documents.get(lambda: count_documents(source, self.selection))
        if copying is not None:
            sample = self._sample.get(lambda: draw_sample(source, copying), copying.uuid)
            if sample is not None:
                share = value_or_none(lambda: sample.share(copying.below), "the copied share")
        if documents is None:
            return None
        return percent(collection_progress(documents, end, self.capture, share), False)
