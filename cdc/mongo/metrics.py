"""What a stream tells of itself at each trigger: how far it is, how fast, and how safe.

A number that the source does not tell now is None and ends no query. All is measured with the
source's own times; none of it is asked of the batch.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pymongo
from bson.timestamp import Timestamp

from cdc.model import timestamp
from cdc.model.excerpt import Excerpt
from cdc.model.offset import Offset
from cdc.model.selection import Namespace, Selection
from cdc.mongo.cluster import Source
from cdc.mongo.copies import Sample, counted, drawn, extents, is_copied, percent
from cdc.mongo.kept import Kept, tried
from cdc.mongo.oplog import Left, Lookout, Window, windows

# A trigger asks in the query's own thread: a longer wait would delay the next batch, and stop().
_PATIENCE_SECONDS = 1.5
_ASKED_SECONDS = 10.0
# A cluster's takes a question or two to each shard, and is wanted fresh: asking takes a fifth of
# the time at most.
_EDGE_SECONDS, _EDGE_RARITY = 1.0, 4.0
# Keys that were appended since a sample was drawn all lie behind it.
_SAMPLE_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Metrics:
    """`time` is the T of the newest batch; None stands for what is not known, or not there yet.

    `events_per_second`: changes in the batches of the last seconds. `oplog_left`: of the oplog that
    reaches back least, before the changes behind T leave it. `snapshot_percent`: of all documents,
    those that have been copied, about; 100 exactly where no copy is to be made or gone on with.
    """

    time: Timestamp | None
    live_edge: Timestamp | None
    events_per_second: float | None
    oplog_left: Left | None
    snapshot_percent: float | None

    @property
    def lag_seconds(self) -> int | None:
        """How far the live edge is ahead of T."""
        if self.time is None or self.live_edge is None:
            return None
        return max(0, self.live_edge.time - self.time.time)

    def to_json(self) -> dict[str, Any]:
        """As Spark's progress spells its own."""
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
            data["eventsPerSecond"],
            left and Left(left["hoursLeft"], left["percentLeft"], left["shard"] or ""),
            data["snapshotPercent"],
        )


def _rounded(number: float | None) -> float | None:
    return None if number is None else round(number, 1)


def left_of(found: list[Window], at: Timestamp) -> Left | None:
    """Of the oplog that has least left, if there is one."""
    each = (window.left(at) for window in found)
    return min(each, key=lambda left: (left.percent, left.hours), default=None)


@dataclass(slots=True)
class Rate:
    """How many pass per second: over `seconds`, or since the last but one came, if that is more."""

    seconds: float = 10.0
    _passed: deque[tuple[float, int]] = field(default_factory=deque)

    def passed(self, count: int) -> None:
        """So many since the call before."""
        now = time.monotonic()
        self._passed.append((now, count))
        self._forget(now)

    def _forget(self, now: float) -> None:
        while len(self._passed) > 2 and now - self._passed[1][0] > self.seconds:
            self._passed.popleft()

    @property
    def per_second(self) -> float:
        now, passed = time.monotonic(), self._passed
        self._forget(now)
        if len(passed) < 2:
            return 0.0
        return (sum(count for _, count in passed) - passed[0][1]) / max(1e-3, now - passed[0][0])


@dataclass(slots=True)
class Gauges:
    """What is read off at each trigger of one query, which is to capture `selection` and `excerpt`.
    What it remembers only saves asking twice."""

    lookout: Lookout
    selection: Selection
    excerpt: Excerpt
    _rate: Rate = field(default_factory=Rate)
    _planned: int | None = 0
    _is_counted: bool = True
    _edge: Kept[Timestamp] = field(
        default_factory=lambda: Kept("the live edge", _EDGE_SECONDS, _EDGE_RARITY)
    )
    _windows: Kept[list[Window]] = field(default_factory=lambda: Kept("oplogs", _ASKED_SECONDS))
    _documents: Kept[dict[Namespace, int]] = field(
        default_factory=lambda: Kept("collections", _ASKED_SECONDS)
    )
    _sample: Kept[Sample] = field(default_factory=lambda: Kept("a sample", _SAMPLE_SECONDS))

    def read(self, source: Source, start: Offset, end: Offset, events: int | None) -> Metrics:
        """Of the batch between two offsets, which is to begin now and holds about so many changes:
        those of the one before have passed."""
        passed, self._planned = self._planned, events
        self._is_counted = passed is not None and (passed > 0 or self._is_counted)
        self._rate.passed(passed or 0)
        with pymongo.timeout(_PATIENCE_SECONDS):
            return Metrics(
                end.time,
                self._live_edge(source, end.time),
                self._rate.per_second if self._is_counted else None,
                self._left(source, start),
                self._copied(source, end),
            )

    def _live_edge(self, source: Source, floor: Timestamp) -> Timestamp | None:
        known = self._edge.get(lambda: source.live_edge(floor))
        return None if known is None else max(known, floor)

    def _left(self, source: Source, start: Offset) -> Left | None:
        clients = source.clients
        shards = [shard for shard in start.shards if shard in clients]
        found = self._windows.get(lambda: windows(clients, shards), shards) or []
        self.lookout.look(found, start.time)
        return left_of(found, start.time)

    def _copied(self, source: Source, end: Offset) -> float | None:
        if is_copied(end, self.selection, self.excerpt):
            return percent([], True)
        copying, share = end.copying, None
        documents = self._documents.get(lambda: counted(source, self.selection))
        if copying is not None:
            sample = self._sample.get(lambda: drawn(source, copying), copying.uuid)
            if sample is not None:
                share = tried(lambda: sample.share(copying.below), "a share")
        if documents is None:
            return None
        return percent(extents(documents, end, self.excerpt, share), False)
