"""Scans of the oplog: the number of changes in a backlog, and whether it contains anything else.

One pass finds both, and decides how far a batch goes and where its slices end. Reading an entry
costs the server about 1 us; making its size and putting it in a bucket costs another 2 us. So the
first entries are counted one by one. After them, one of `_SHARE` entries is counted for all of
them, chosen at random. Entries that are not changes of documents, and large transactions, are
always counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import pymongo.errors
from bson.timestamp import Timestamp

from cdc.errors import UnsuitableSource
from cdc.model import Offset, Selection, timestamp
from cdc.mongo.connection import LONGEST_MS, OPLOG, Client, Member, is_router
from cdc.mongo.topology import first_time, has_committed, reaches_back

_BUCKETS: Final = 256
_ALL_COUNTED: Final = 5000
_SHARE: Final = 20

_IS_ROW: Final = {"$in": ["$op", ["i", "u", "d"]]}
# A transaction's entry contains all of its operations, also those on other collections.
_OPERATIONS: Final = {
    "$cond": [
        _IS_ROW,
        1,
        {"$cond": [{"$isArray": "$o.applyOps"}, {"$size": "$o.applyOps"}, 0]},
    ]
}
_TRANSACTION: Final = {"op": "c", "o.applyOps.op": {"$exists": True, "$nin": ["c"]}}
# Commands, which include transactions that create a collection, and the no-ops that record
# operations of a cluster. Other no-ops have no `o2`.
_OTHER: Final = {
    "$nor": [
        {"op": {"$in": ["i", "u", "d"]}},
        {"op": "n", "o2": {"$exists": False}},
        _TRANSACTION,
    ]
}
_IS_OTHER: Final = {
    "$not": {"$or": [_IS_ROW, {"$not": {"$in": ["c", {"$ifNull": ["$o.applyOps.op", ["c"]]}]}}]}
}


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
        return self._replace(events=2**62, bytes=2**62)

    @property
    def stretched(self) -> Limits:
        """The limits of a batch that reaches the live edge: a tenth more saves a small batch."""
        return self._replace(events=self.events * 11 // 10, bytes=self.bytes * 11 // 10)

    def are_exceeded(self, events: int, size: int) -> bool:
        """Whether a batch with so many changes and bytes is too large."""
        return events > self.events or size > self.bytes


class Bucket(NamedTuple):
    """Entries of the oplog with times from `first` to `last`, counted or estimated.

    Attributes:
        first: the time of the first counted entry.
        last: the time of the last counted entry.
        entries: how many entries were counted.
        events: the number of changes.
        bytes: the size of all entries.
        has_others: whether it contains entries that are not changes of documents.
    """

    first: Timestamp
    last: Timestamp
    entries: int
    events: int
    bytes: int
    has_others: bool


class Backlog(NamedTuple):
    """What a batch takes of the oplog of a shard.

    Attributes:
        buckets: its entries, in order.
        end: the time at which the batch has to end.
        has_only_rows: whether all entries up to `end` certainly are changes of documents. False
            also means unknown.
    """

    buckets: list[Bucket]
    end: Timestamp
    has_only_rows: bool

    @property
    def events(self) -> int:
        """The approximate number of changes."""
        return sum(bucket.events for bucket in self.buckets)


def scan_backlog(
    member: Member, selection: Selection, after: Timestamp, edge: Timestamp, limits: Limits
) -> Backlog:
    """Scan the entries with after < time ≤ edge, up to the limits of a batch.

    An entry that exceeds the limits by itself, a large transaction, becomes a batch of its own.
    Raises the driver's errors.
    """
    reading: dict[str, Any] = {"readConcern": {"level": "majority"}}
    # A member that lags is not waited for. Then the numbers are less, and DDL may be missing.
    is_complete = has_committed(member.hello(), edge)
    if is_complete:
        reading["readConcern"]["afterClusterTime"] = edge
    buckets, end = _take_buckets(member, selection, after, edge, limits, reading)
    has_others = any(bucket.has_others for bucket in buckets)
    return Backlog(buckets, end, is_complete and not has_others and reaches_back(member, after))


def _take_buckets(
    member: Member,
    selection: Selection,
    after: Timestamp,
    edge: Timestamp,
    limits: Limits,
    reading: Mapping[str, Any],
) -> tuple[list[Bucket], Timestamp]:
    """Return the buckets of a batch, and the time at which the batch ends."""
    taken, cut = list[Bucket](), 0
    events = size = 0
    stretched = limits.stretched
    for bucket in _buckets(member, selection, after, edge, stretched.events + 1, reading):
        events, size = events + bucket.events, size + bucket.bytes
        if not cut and limits.are_exceeded(events, size):
            cut = len(taken)
            if not taken and bucket.first < bucket.last:
                # Search again up to before the bucket's last entry: the buckets become smaller.
                shorter = timestamp.before(bucket.last)
                return _take_buckets(member, selection, after, shorter, limits, reading)
        taken.append(bucket)
        if cut and stretched.are_exceeded(events, size):
            return taken[:cut], timestamp.before(taken[cut].first)
    return taken, edge


def _buckets(
    member: Member,
    selection: Selection,
    after: Timestamp,
    edge: Timestamp,
    most: int,
    reading: Mapping[str, Any],
) -> Iterator[Bucket]:
    """Yield buckets of about as many entries each, in order, up to the edge.

    About `most` changes are expected to be taken. What is yielded up to any bucket covers the time
    up to its last entry; all of it covers the time up to the edge.
    """
    all_counted = _ALL_COUNTED
    while True:
        share = 1 if all_counted > 0 else _SHARE
        limit = max(1, math.ceil(most / share))
        if share == 1:
            limit = min(limit, all_counted)
        stages = _stages(selection, {"$gt": after, "$lte": edge}, share, limit)
        command = {
            "aggregate": OPLOG.coll,
            "pipeline": stages,
            "cursor": {"batchSize": _BUCKETS + 1},
            "allowDiskUse": True,
            "maxTimeMS": LONGEST_MS,
            **reading,
        }
        entries = 0
        for group in member.command(OPLOG.db, command)["cursor"]["firstBatch"]:
            bucket = Bucket(*(group[name] for name in Bucket._fields))
            entries, most, after = entries + bucket.entries, most - bucket.events, bucket.last
            yield bucket
        if entries < limit:
            return
        all_counted -= entries


def _stages(
    selection: Selection, times: Mapping[str, Timestamp], share: int, limit: int
) -> list[dict[str, Any]]:
    """Return the stages that count `limit` entries: one of `share` changes, and all others.

    A transaction with at least `share` operations is always counted. So each counted entry stands
    for at least `share` changes, unless it is none.
    """
    large = f"o.applyOps.{share - 1}"
    chosen: list[dict[str, Any]] = [{"$sampleRate": 1 / share}] if share > 1 else []
    rows = [_row(selection), {**_TRANSACTION, large: {"$exists": False}}]
    counted = [{"$and": [*chosen, {"$or": rows}]}, {**_TRANSACTION, large: {"$exists": True}}]
    times_counted = {"$cond": [{"$or": ["$other", {"$gte": ["$events", share]}]}, 1, share]}
    output = {
        "first": {"$min": "$ts"},
        "last": {"$max": "$ts"},
        "entries": {"$sum": 1},
        "events": {"$sum": {"$multiply": ["$events", times_counted]}},
        "bytes": {"$sum": {"$multiply": ["$bytes", times_counted]}},
        "has_others": {"$max": "$other"},
    }
    sizes = {"ts": 1, "events": _OPERATIONS, "bytes": {"$bsonSize": "$$ROOT"}, "other": _IS_OTHER}
    return [
        {"$match": {"ts": times, "$or": [*counted, _OTHER]}},
        {"$limit": limit},
        {"$project": sizes},
        {"$bucketAuto": {"groupBy": "$ts", "buckets": _BUCKETS, "output": output}},
    ]


def _row(selection: Selection) -> dict[str, Any]:
    return {"op": {"$in": ["i", "u", "d"]}, **selection.full_condition("ns")}


def count_events(clients: Mapping[str, Client], start: Offset, end: Offset) -> int:
    """Return the number of changes in the batches between two offsets.

    It includes the operations of transactions on other collections. Changes of shards that were
    removed since are not counted. Raises the driver's errors, and UnsuitableSource for a router.
    """
    if any(is_router(client) for client in clients.values()):
        raise UnsuitableSource("A router has no oplog to count changes in.", "Set shards.direct.")
    rows = _row(Selection.parse(end.selection))
    condition = {"ts": {"$gt": start.time, "$lte": end.time}, "$or": [rows, _TRANSACTION]}
    total = {"_id": None, "events": {"$sum": _OPERATIONS}}
    count = 0
    for shard in (shard for shard in end.shards if shard in clients):
        oplog = clients[shard][OPLOG.db][OPLOG.coll]
        for group in oplog.aggregate([{"$match": condition}, {"$group": total}]):
            count += group["events"]
    return count


def has_only_row_changes(
    open_member: Callable[[], Member], after: Timestamp, upto: Timestamp
) -> bool:
    """Whether all entries with after < time ≤ upto exist and certainly are changes of documents.

    A change stream can find DDL too, but it first makes an event of each entry. For 100,000
    changes, that takes ten times as long as reading the entries themselves.

    False also means unknown, for example if the user may not read the oplog. Then a change stream
    has to be read.
    """
    try:
        member = open_member()
        try:
            return _has_no_others(member, after, upto) and reaches_back(member, after)
        finally:
            member.end()
    except pymongo.errors.PyMongoError:
        return False


def _has_no_others(member: Member, after: Timestamp, upto: Timestamp) -> bool:
    entries = {"ts": {"$gt": after, "$lte": upto}, **_OTHER}
    return first_time(member, entries, afterClusterTime=upto) is None
