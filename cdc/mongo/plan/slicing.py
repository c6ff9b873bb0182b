"""Slices of a batch's time, balanced by the oplog's entries for the captured collections.

The oplog also decides how far a batch goes through a backlog.

Each entry of the oplog has a time of its own, which is the cluster time of all its events. So a cut
between two entries never divides a transaction. The cuts only affect balance and size: wherever a
batch or a slice ends, each change is read once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import pymongo.errors
from bson.timestamp import Timestamp

from cdc.model import Offset, Selection, StreamSplit
from cdc.mongo.connection import Member, may_pass, translate_error
from cdc.mongo.plan.oplog_scan import Backlog, Bucket, Limits, scan_backlog

# One task reads fewer events faster than several tasks do.
LEAST_EVENTS = 1000
# For an oplog that may not be read, only the time is known: a shorter batch is not cut.
_LEAST_SECONDS = 60


@dataclass(slots=True)
class Slicer:
    """Decides where a batch ends, and cuts its splits into slices.

    It remembers the cuts of the newest batch. Without them each split is one slice.

    Attributes:
        events: the approximate number of changes in the batch. It includes the operations of
            transactions on other collections. None if an oplog cannot be searched.
        rows_only: the shards on which the time up to the found end certainly contains nothing but
            changes of documents.
    """

    events: int | None = 0
    rows_only: frozenset[str] = frozenset()
    _cuts: dict[str, list[Timestamp]] = field(default_factory=dict)

    def find_end(
        self,
        open_member: Callable[[str], Member],
        shards: Iterable[str],
        start: Offset,
        edge: Timestamp,
        limits: Limits,
    ) -> Timestamp:
        """Return the time at which a batch from `start` should end, at most `edge`.

        Raises TransientError, and other errors that may pass.

        Args:
            open_member: opens a member of a shard.
            shards: the shards that exist; those of `start` are read.
            start: the offset at the start of the batch.
            edge: the live edge.
            limits: the limits of the batch.
        """
        self._cuts.clear()
        self.events, self.rows_only = 0, frozenset()
        if edge <= start.time:
            return edge
        read = set(start.shards) & set(shards)
        limits = limits._replace(
            events=math.ceil(limits.events / len(read)), bytes=math.ceil(limits.bytes / len(read))
        )
        selection, ends = Selection.parse(start.selection), [edge]
        for shard in sorted(read):
            try:
                backlog = _scan(open_member, shard, selection, start.time, edge, limits)
            except pymongo.errors.PyMongoError as error:
                self._cuts[shard] = _cut_by_time(start.time, edge, limits.slices, error)
                self.events = None
                continue
            self._cuts[shard] = _cut_by_count(backlog.buckets, limits.slices)
            self._record(shard, backlog)
            ends.append(backlog.end)
        return min(ends)

    def _record(self, shard: str, backlog: Backlog) -> None:
        if self.events is not None:
            self.events += backlog.events
        if backlog.has_only_rows:
            self.rows_only |= {shard}

    def slice_split(self, split: StreamSplit) -> list[StreamSplit]:
        """Cut a split into adjacent slices, which together contain each of its events once."""
        inside = [t for t in self._cuts.get(split.shard, ()) if split.after < t < split.upto]
        edges = [split.after, *inside, split.upto]
        parts = [replace(split, after=a, upto=b, late=()) for a, b in itertools.pairwise(edges)]
        return [*parts[:-1], replace(parts[-1], late=split.late)]


def _scan(
    open_member: Callable[[str], Member],
    shard: str,
    selection: Selection,
    after: Timestamp,
    edge: Timestamp,
    limits: Limits,
) -> Backlog:
    member = open_member(shard)
    try:
        return scan_backlog(member, selection, after, edge, limits)
    finally:
        member.end()


def _cut_by_count(buckets: list[Bucket], slices: int) -> list[Timestamp]:
    total = sum(bucket.events for bucket in buckets)
    count = min(slices, total // LEAST_EVENTS)
    cuts, events = list[Timestamp](), 0
    for bucket in buckets:
        events += bucket.events
        if len(cuts) + 1 < count and events * count >= total * (len(cuts) + 1):
            cuts.append(bucket.last)
    return cuts


def _cut_by_time(
    after: Timestamp, edge: Timestamp, slices: int, error: pymongo.errors.PyMongoError
) -> list[Timestamp]:
    """Cut into slices of equal time, if the oplog cannot be searched.

    The user may not read it, or the server is older than 4.4. An error that may pass is raised.
    """
    problem = translate_error(error, "Searching the oplog for the end of a batch")
    if may_pass(problem):
        raise problem from error
    seconds = edge.time - after.time
    if seconds < _LEAST_SECONDS:
        return []
    return [Timestamp(after.time + seconds * i // slices, 0) for i in range(1, slices)]
