"""Slices of a batch's time, balanced by the oplog's entries for the captured collections.

The oplog also decides how far a batch goes through a backlog.

Each entry of the oplog has a time of its own, which is the cluster time of all its events. So a cut
between two entries never divides a transaction. The cuts only affect balance and size: wherever a
batch or a slice ends, each change is read once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import pymongo.errors
from bson.timestamp import Timestamp

from cdc.model import Offset, Selection, StreamSplit, timestamp
from cdc.mongo.connection import LONGEST_MS, OPLOG, Client, may_pass, translate_error

_BUCKETS = 256
_ALL = 2**62
# One task reads fewer events faster than several tasks do.
LEAST_EVENTS = 1000
# For an oplog that may not be read, only the time is known: a shorter batch is not cut.
_LEAST_SECONDS = 60


class Limits(NamedTuple):
    """Limits of a batch.

    Attributes:
        events: changes, over all shards.
        bytes: bytes of oplog entries, over all shards.
        slices: slices of each shard's time.
    """

    events: int
    bytes: int
    slices: int

    @property
    def unlimited(self) -> Limits:
        """The same limits for a batch of unlimited size."""
        return self._replace(events=_ALL, bytes=_ALL)


class _Bucket(NamedTuple):
    """Entries of the oplog with times from `first` to `last`, and the number of their events."""

    first: Timestamp
    last: Timestamp
    events: int
    bytes: int


@dataclass(slots=True)
class Slicer:
    """Decides where a batch ends, and cuts its splits into slices.

    It remembers the cuts of the newest batch. Without them each split is one slice.

    Attributes:
        events: the approximate number of changes in the batch. It includes the operations of
            transactions on other collections. None if an oplog cannot be searched.
    """

    events: int | None = 0
    _cuts: dict[str, list[Timestamp]] = field(default_factory=dict)

    def find_end(
        self, clients: Mapping[str, Client], start: Offset, edge: Timestamp, limits: Limits
    ) -> Timestamp:
        """Return the time at which a batch from `start` should end, at most `edge`.

        Raises TransientError, and other errors that may pass.
        """
        self._cuts.clear()
        self.events = 0
        if edge <= start.time:
            return edge
        shards = [shard for shard in start.shards if shard in clients]
        limits = limits._replace(
            events=math.ceil(limits.events / len(shards)),
            bytes=math.ceil(limits.bytes / len(shards)),
        )
        selection, ends = Selection.parse(start.selection), [edge]
        for shard in shards:
            try:
                buckets, end = _take_buckets(clients[shard], selection, start.time, edge, limits)
            except pymongo.errors.PyMongoError as error:
                self._cuts[shard] = _cut_by_time(start.time, edge, limits.slices, error)
                self.events = None
                continue
            self._cuts[shard] = _cut_by_count(buckets, limits.slices)
            self._count(buckets)
            ends.append(end)
        return min(ends)

    def _count(self, buckets: list[_Bucket]) -> None:
        if self.events is not None:
            self.events += sum(bucket.events for bucket in buckets)

    def slice_split(self, split: StreamSplit) -> list[StreamSplit]:
        """Cut a split into adjacent slices, which together contain each of its events once."""
        inside = [t for t in self._cuts.get(split.shard, ()) if split.after < t < split.upto]
        edges = [split.after, *inside, split.upto]
        parts = [replace(split, after=a, upto=b, late=()) for a, b in itertools.pairwise(edges)]
        return [*parts[:-1], replace(parts[-1], late=split.late)]


def _take_buckets(
    client: Client, selection: Selection, after: Timestamp, edge: Timestamp, limits: Limits
) -> tuple[list[_Bucket], Timestamp]:
    """Return the buckets of a batch, and the time at which the batch ends.

    An entry that exceeds the limits by itself, a large transaction, becomes a batch of its own.
    """
    taken = list[_Bucket]()
    events = size = 0
    for bucket in _buckets(client, selection, after, edge, limits.events + 1):
        events, size = events + bucket.events, size + bucket.bytes
        if events > limits.events or size > limits.bytes:
            if taken:
                return taken, timestamp.before(bucket.first)
            if bucket.first < bucket.last:
                # Search again up to before the bucket's last entry: the buckets become smaller.
                shorter = timestamp.before(bucket.last)
                return _take_buckets(client, selection, after, shorter, limits)
        taken.append(bucket)
    return taken, edge


def _buckets(
    client: Client, selection: Selection, after: Timestamp, edge: Timestamp, most: int
) -> Iterator[_Bucket]:
    """Yield the first `most` entries in buckets of about equal numbers, in order."""
    sizes = {"ts": 1, "events": _EVENTS, "bytes": {"$bsonSize": "$$ROOT"}}
    output = {
        "first": {"$min": "$ts"},
        "last": {"$max": "$ts"},
        "events": {"$sum": "$events"},
        "bytes": {"$sum": "$bytes"},
    }
    stages: list[dict[str, Any]] = [
        {"$match": _entries(selection, after, edge)},
        {"$limit": most},
        {"$project": sizes},
        {"$bucketAuto": {"groupBy": "$ts", "buckets": _BUCKETS, "output": output}},
    ]
    oplog = client[OPLOG.db][OPLOG.coll]
    for group in oplog.aggregate(stages, allowDiskUse=True, maxTimeMS=LONGEST_MS):
        yield _Bucket(group["first"], group["last"], group["events"], group["bytes"])


# A transaction's entry contains all of its operations, also those on other collections.
_EVENTS = {"$cond": [{"$isArray": "$o.applyOps"}, {"$size": "$o.applyOps"}, 1]}


def _entries(selection: Selection, after: Timestamp, edge: Timestamp) -> dict[str, Any]:
    transaction = {"ns": "admin.$cmd", "o.applyOps": {"$exists": True}}
    row = {"op": {"$in": ["i", "u", "d"]}, **selection.full_condition("ns")}
    return {"ts": {"$gt": after, "$lte": edge}, "$or": [row, transaction]}


def count_events(clients: Mapping[str, Client], start: Offset, end: Offset) -> int:
    """Return the approximate number of changes in the batches between two offsets.

    Changes of shards that were removed since are not counted. Raises the driver's errors.
    """
    condition = _entries(Selection.parse(end.selection), start.time, end.time)
    total = {"_id": None, "events": {"$sum": _EVENTS}}
    count = 0
    for shard in (shard for shard in end.shards if shard in clients):
        oplog = clients[shard][OPLOG.db][OPLOG.coll]
        for group in oplog.aggregate([{"$match": condition}, {"$group": total}]):
            count += group["events"]
    return count


def _cut_by_count(buckets: list[_Bucket], slices: int) -> list[Timestamp]:
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
