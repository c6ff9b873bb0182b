"""How far a batch goes through a backlog, and how its time is cut among tasks: by what the oplog
holds of the captured collections.

Each entry of the oplog has a time of its own, which is the cluster time of all its events; so a cut
between two entries never lies within a transaction. What is found out here is a matter of balance
and of size: wherever a batch or a slice ends, each change is read once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import pymongo.errors
from bson.timestamp import Timestamp

from cdc.model import timestamp
from cdc.model.offset import Offset
from cdc.model.selection import Selection
from cdc.model.split import StreamSplit
from cdc.mongo.client import LONGEST_MS, Client
from cdc.mongo.codes import may_pass, translated
from cdc.mongo.privileges import OPLOG

_BUCKETS = 256
_ALL = 2**62
# Fewer events are read sooner by one task than by several.
LEAST_EVENTS = 1000
# Of an oplog that may not be read, only the time is known.
_LEAST_SECONDS = 60


class Limits(NamedTuple):
    """Of a batch: events, bytes of the oplog's entries, and slices of each shard's time."""

    events: int
    bytes: int
    slices: int

    @property
    def lifted(self) -> Limits:
        """For a batch that is to hold all that there is."""
        return self._replace(events=_ALL, bytes=_ALL)


class _Bucket(NamedTuple):
    """Entries of the oplog at times from `first` up to `last`, and how many events they hold."""

    first: Timestamp
    last: Timestamp
    events: int
    bytes: int


@dataclass(slots=True)
class Slicer:
    """What it remembers of a batch only saves asking twice: without it, a batch is one slice.

    `events`: about how many changes the batch holds, operations of transactions on foreign
    collections included; None where an oplog cannot be looked through.
    """

    events: int | None = 0
    _cuts: dict[str, list[Timestamp]] = field(default_factory=dict)

    def reach(
        self, clients: Mapping[str, Client], start: Offset, edge: Timestamp, limits: Limits
    ) -> Timestamp:
        """The time up to which a batch from `start` should go, at most `edge`. Raises
        TransientError."""
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
                found, end = _taken(clients[shard], selection, start.time, edge, limits)
            except pymongo.errors.PyMongoError as error:
                self._cuts[shard] = _of_equal_time(start.time, edge, limits.slices, error)
                self.events = None
                continue
            self._cuts[shard] = _of_equal_count(found, limits.slices)
            self._count(found)
            ends.append(end)
        return min(ends)

    def _count(self, found: list[_Bucket]) -> None:
        if self.events is not None:
            self.events += sum(bucket.events for bucket in found)

    def sliced(self, split: StreamSplit) -> list[StreamSplit]:
        """The events of a split in adjacent slices."""
        inside = [t for t in self._cuts.get(split.shard, ()) if split.after < t < split.upto]
        edges = [split.after, *inside, split.upto]
        parts = [replace(split, after=a, upto=b, late=()) for a, b in itertools.pairwise(edges)]
        return [*parts[:-1], replace(parts[-1], late=split.late)]


def _taken(
    client: Client, selection: Selection, after: Timestamp, edge: Timestamp, limits: Limits
) -> tuple[list[_Bucket], Timestamp]:
    """The buckets of a batch, and the time at which it ends. An entry that is beyond the limits by
    itself, a large transaction, goes alone."""
    taken = list[_Bucket]()
    events = size = 0
    for bucket in _buckets(client, selection, after, edge, limits.events + 1):
        events, size = events + bucket.events, size + bucket.bytes
        if events > limits.events or size > limits.bytes:
            if taken:
                return taken, timestamp.before(bucket.first)
            if bucket.first < bucket.last:
                return _taken(client, selection, after, timestamp.before(bucket.last), limits)
        taken.append(bucket)
    return taken, edge


def _buckets(
    client: Client, selection: Selection, after: Timestamp, edge: Timestamp, most: int
) -> Iterator[_Bucket]:
    """At most `most` entries in order, in buckets of about the same number."""
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
    for found in oplog.aggregate(stages, allowDiskUse=True, maxTimeMS=LONGEST_MS):
        yield _Bucket(found["first"], found["last"], found["events"], found["bytes"])


# A transaction's entry holds its operations, those on foreign collections too.
_EVENTS = {"$cond": [{"$isArray": "$o.applyOps"}, {"$size": "$o.applyOps"}, 1]}


def _entries(selection: Selection, after: Timestamp, edge: Timestamp) -> dict[str, Any]:
    transaction = {"ns": "admin.$cmd", "o.applyOps": {"$exists": True}}
    row = {"op": {"$in": ["i", "u", "d"]}, **selection.full_condition("ns")}
    return {"ts": {"$gt": after, "$lte": edge}, "$or": [row, transaction]}


def events_between(clients: Mapping[str, Client], start: Offset, end: Offset) -> int:
    """About how many changes the batches between two offsets held, but for those of shards that
    were removed since. Raises the driver's errors."""
    condition = _entries(Selection.parse(end.selection), start.time, end.time)
    total = {"_id": None, "events": {"$sum": _EVENTS}}
    found = 0
    for shard in (shard for shard in end.shards if shard in clients):
        oplog = clients[shard][OPLOG.db][OPLOG.coll]
        for group in oplog.aggregate([{"$match": condition}, {"$group": total}]):
            found += group["events"]
    return found


def _of_equal_count(buckets: list[_Bucket], slices: int) -> list[Timestamp]:
    total = sum(bucket.events for bucket in buckets)
    count = min(slices, total // LEAST_EVENTS)
    cuts, passed = list[Timestamp](), 0
    for bucket in buckets:
        passed += bucket.events
        if len(cuts) + 1 < count and passed * count >= total * (len(cuts) + 1):
            cuts.append(bucket.last)
    return cuts


def _of_equal_time(
    after: Timestamp, edge: Timestamp, slices: int, error: pymongo.errors.PyMongoError
) -> list[Timestamp]:
    """Where the oplog cannot be looked through: the user may not, or the server is before 4.4."""
    problem = translated(error, "Looking through the oplog")
    if may_pass(problem):
        raise problem from error
    seconds = edge.time - after.time
    if seconds < _LEAST_SECONDS:
        return []
    return [Timestamp(after.time + seconds * i // slices, 0) for i in range(1, slices)]
