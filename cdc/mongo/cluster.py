"""A sharded cluster whose shards are read directly: one change stream for each, all as of one time.

The frontier is a key of `_id` on every shard alike. What a shard returns of a range is filtered by
the shard itself: a read that carries the shard's version, as a router's does, holds the documents
that it *owned at the time of the read*, by the history of the chunks. So neither orphans nor chunks
on the move are seen, whatever the shard key is.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import bson
import pymongo.errors
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from pymongo.client_session import ClientSession
from pymongo.database import Database
from pymongo.read_concern import ReadConcern
from pymongo.read_preferences import Primary

from cdc.errors import HistoryLost, TransientError, UnsuitableSource
from cdc.model.key import merge_key
from cdc.model.offset import NEVER, Copying, Offset, Times
from cdc.model.selection import Namespace, Selection
from cdc.model.split import MAX_KEY, KeyRange, SnapshotSplit
from cdc.mongo import settled
from cdc.mongo.client import RAW, TIME_UNREADABLE, Client, Member, connect, translated
from cdc.mongo.enumerator import INTERNAL, Listing, listing
from cdc.mongo.pipeline import CUTTING_EVENTS
from cdc.mongo.privileges import named, of_metadata
from cdc.mongo.scan import TimeUnreadable, Version, Void
from cdc.mongo.topology import ReplicaSet

_ALL = 2**31 - 1
# DDL that each shard does that has the collection, and that each does that owns some of it.
_BY_ALL = ("create", "shardCollection", *CUTTING_EVENTS)
_BY_OWNERS = ("createIndexes", "dropIndexes", "modify")


@dataclass(frozen=True, slots=True)
class Cluster:
    """The shards of a cluster, as its metadata listed them when it was discovered.

    `changed_at` has for each when it joined or, later, was told that another one was removed.
    """

    uri: str
    timeout_ms: int
    name: str
    parts: Mapping[str, ReplicaSet]
    changed_at: Mapping[str, Timestamp]

    @property
    def client(self) -> Client:
        """Of the metadata: a mongos, or the config servers."""
        return connect(self.uri, self.timeout_ms)

    @property
    def shards(self) -> tuple[str, ...]:
        return tuple(sorted(self.parts))

    @property
    def clients(self) -> Mapping[str, Client]:
        """One for each shard, and one without a name for the metadata."""
        return {"": self.client, **{shard: part.client for shard, part in self.parts.items()}}

    def open(self, shard: str) -> Member:
        """A member for reading a split of that shard. Raises HistoryLost if it is one no more."""
        return self._part(shard).open(shard)

    def _part(self, shard: str) -> ReplicaSet:
        if shard not in self.parts:
            raise removed(f"Shard {shard}")
        return self.parts[shard]

    # --- the live edge ---

    def live_edge(self, floor: Timestamp) -> Timestamp:
        """The newest time that every shard has reached for good, and up to which every transaction
        across them is decided; but never below `floor`."""
        return max(floor, settled.edge(self.parts, floor=floor))

    def present(self) -> Timestamp:
        """A live edge that every shard can still be read at, however little history it keeps."""
        return settled.edge(self.parts, together=True)

    def late(self, time: Timestamp) -> Times:
        """By shard, the times behind `time` of events that belong before it; see `Offset`. `time`
        must not lie behind a live edge."""
        return settled.late(self.parts, time)

    def confirmed(self, found: Listing, patience: float) -> Timestamp | None:
        """A live edge at or after the listing's time; None if it cannot be had yet."""
        for shard, part in found.parts:
            if self._part(shard).confirmed(part, patience) is None:
                return None
        deadline = time.monotonic() + patience
        while True:
            edge = settled.edge(self.parts, at_least=found.time)
            if edge >= found.time:
                return edge
            if time.monotonic() > deadline:
                return None
            time.sleep(0.005)

    @property
    def unconfirmed(self) -> tuple[str, str]:
        """What to say, and to do, where `confirmed` stays None."""
        return (
            "A shard's majority does not keep up with its primary, or a transaction across shards"
            " stays undecided.",
            "Check that a majority of each shard's members is up, and the state 'prepared' in its"
            " config.transactions.",
        )

    # --- shards that come and go ---

    def current(self) -> Cluster:
        """The cluster as it is at some moment after all that was read of it; itself, if its shards
        are the same."""
        found = _of_shards(self.uri, self.timeout_ms, self.name, self._metadata("shards", {}))
        return self if found == self else found

    @property
    def topology_time(self) -> Timestamp:
        """When shards joined or left last."""
        return max(self.changed_at.values())

    def require_told(self, offset: Offset) -> None:
        """Raises HistoryLost if a shard that was removed had more to tell than `offset` holds."""
        gone = [shard for shard in offset.shards if shard not in self.parts]
        if any(self._owned_something(shard, offset.time) for shard in gone):
            raise removed(f"Shard {', '.join(gone)}")
        told = [self.changed_at[shard] for shard in offset.shards if shard in self.parts]
        if not gone and max(told) > offset.topology_time:
            raise removed("A shard that had joined meanwhile")

    def _owned_something(self, shard: str, at: Timestamp) -> bool:
        """Whether documents of the shard may have changed at a later time."""
        for coll, query in (("chunks", {"shard": shard}), ("databases", {"primary": shard})):
            found = self._metadata_at(at, coll, [{"$match": query}, {"$limit": 1}])
            if found is None or found:
                return True
        # Chunks keep the history of their owners for as long as that time could be read.
        owned_since = {"$elemMatch": {"shard": shard, "validAfter": {"$gt": at}}}
        return bool(self._metadata("chunks", {"history": owned_since}, limit=1))

    def _metadata_at(
        self, at: Timestamp, coll: str, stages: list[dict[str, Any]]
    ) -> list[dict[str, Any]] | None:
        """As it was at a time that the shards have reached; None if nobody knows any more."""
        concern = {"level": "snapshot", "atClusterTime": at}
        command = {"aggregate": coll, "pipeline": stages, "cursor": {}, "readConcern": concern}
        what = f"Reading config.{coll} as of {at}"
        with self._behind_the_shards(what, waits=False) as session:
            try:
                reply = self.client.get_database("config").command(command, session=session)
            except pymongo.errors.OperationFailure as error:
                if error.code not in TIME_UNREADABLE:
                    raise
                return None
        found: list[dict[str, Any]] = reply["cursor"]["firstBatch"]
        return found

    @contextmanager
    def _behind_the_shards(self, what: str, waits: bool = True) -> Iterator[ClientSession]:
        """A session with the metadata's server, which learns the time of the shards by it: what it
        does next is later. With `waits`, its answers are of a moment after all that has been read:
        a majority read alone may be older than a change of the metadata that shards go by already.
        """
        known = self._time_of_the_shards()
        with self.client.start_session(causal_consistency=waits) as session:
            session.advance_cluster_time(known)
            session.advance_operation_time(known["clusterTime"])
            try:
                yield session
            except pymongo.errors.ExecutionTimeout as error:
                raise TransientError(
                    f"{what}: the config servers have not reached the time of the shards.",
                    "Check that a majority of them is up.",
                ) from error
            except pymongo.errors.PyMongoError as error:
                raise translated(error, what) from error

    def _time_of_the_shards(self) -> dict[str, Any]:
        """The newest that one of them knows; all have reached what has been read of any."""
        for left, part in zip(itertools.count(1 - len(self.parts)), self.parts.values()):
            try:
                known: dict[str, Any] = part.client.admin.command("ping")["$clusterTime"]
                return known
            except pymongo.errors.PyMongoError as error:
                if left == 0:
                    raise translated(error, "Asking the shards for their time") from error
        raise AssertionError("a cluster has a shard")

    # --- metadata ---

    def listing(self, selection: Selection) -> Listing:
        """Each collection as the primary shard of its database lists it."""
        parts = []
        for shard, databases in sorted(self._databases(selection).items()):
            parts.append((shard, listing(self._part(shard).client, selection, databases)))
        if not parts:
            raise UnsuitableSource(f"No database holds '{selection.text}'.", "Check 'collections'.")
        names = [str(c.namespace) for _, part in parts for c in part.collections]
        # Of what is spread the metadata tells the incarnation, here as to those who read it.
        spread: dict[str, dict[str, Any]] = {
            entry["_id"]: {"uuid": bytes(entry["uuid"])}
            for entry in self._metadata("collections", {"_id": {"$in": names}})
        }
        found = [
            replace(c, **spread.get(str(c.namespace), {"shard": shard}))
            for shard, part in parts
            for c in part.collections
        ]
        return Listing(
            tuple(sorted(found, key=lambda collection: str(collection.namespace))),
            min(part.since for _, part in parts),
            max(part.time for _, part in parts),
            None,
            tuple(parts),
        )

    def _databases(self, selection: Selection) -> dict[str, list[str]]:
        """The databases that may hold something selected, by their primary shard."""
        wanted = {name.db for name in selection.names}
        by_shard: dict[str, list[str]] = {}
        for entry in self._metadata("databases", {}):
            if entry["_id"] in wanted or (selection.patterns and entry["_id"] not in INTERNAL):
                by_shard.setdefault(entry["primary"], []).append(entry["_id"])
        return by_shard

    def tells(self, shard: str, event: Mapping[str, Any]) -> bool:
        """Whether that shard is the one to tell of DDL that others may report too.

        It is the primary one of the database as it was then: the last to do what all do. Of indexes
        and options it knows only if it owned some of the collection; else the first tells that did.
        Of a kind not known yet each shard tells: a row too many is better than none.
        """
        operation, at = event["operationType"], event["clusterTime"]
        if operation not in (*_BY_ALL, *_BY_OWNERS):
            return True
        primary = self._then(at, "databases", [{"$match": {"_id": event["ns"]["db"]}}])
        if not primary:
            return True
        tellers = {primary[0]["primary"]}
        if operation in _BY_OWNERS:
            of_collection = {"$match": {"uuid": event.get("collectionUUID")}}
            found = self._then(at, "chunks", [of_collection, {"$group": {"_id": "$shard"}}])
            owners = {owner["_id"] for owner in found}
            tellers = tellers & owners or owners or tellers
        return bool(shard == min(tellers))

    def _then(self, at: Timestamp, coll: str, stages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Metadata as of a time, or the newest if nobody knows any more."""
        found = self._metadata_at(at, coll, stages)
        if found is None:
            with self._behind_the_shards(f"Reading config.{coll}") as session:
                asked = _metadata_of(self.client)[coll].aggregate(
                    stages, session=session, maxTimeMS=self.timeout_ms
                )
                found = list(asked)
        return found

    def ranges(self, copying: Copying, most: int, split_bytes: int) -> list[KeyRange]:
        """At most `most` adjacent ranges, none of them larger than `split_bytes` on any shard."""
        if copying.shard:
            return self._part(copying.shard).ranges(copying, most, split_bytes)
        found = [part.ranges(copying, most, split_bytes) for part in self.parts.values()]
        uppers = (key_range.upper for ranges in found for key_range in ranges)
        cuts = {merge_key(cut): cut for cut in uppers if cut != MAX_KEY}
        # A shard that was not cut to its end says nothing of what lies behind its last cut.
        ends = {merge_key(ranges[-1].upper) for ranges in found} & set(cuts)
        keys = self._in_order(copying.namespace, list(cuts.values()))
        stop = next((i for i, key in enumerate(keys, 1) if merge_key(key) in ends), None)
        keys = keys[: min(most, stop or most)]
        if stop is None and len(keys) < most:
            keys.append(MAX_KEY)
        return [KeyRange(low, high) for low, high in itertools.pairwise([copying.below, *keys])]

    def lesser(self, namespace: Namespace, one: bytes, other: bytes) -> bytes:
        """The lesser of two keys, or any of them if the collection is empty."""
        if MAX_KEY in (one, other) or one == other:
            return one if other == MAX_KEY else other
        return next(iter(self._in_order(namespace, [one, other])), other)

    def _in_order(self, namespace: Namespace, keys: list[bytes]) -> list[bytes]:
        """Keys in the order of an index: a server's, so that there is no second opinion on it."""
        if len(keys) < 2:
            return keys
        stages: list[dict[str, Any]] = [
            {"$limit": 1},
            {"$project": {"key": {"$literal": [RawBSONDocument(key) for key in keys]}}},
            {"$unwind": "$key"},
            {"$sort": {"key._id": 1}},
            {"$replaceRoot": {"newRoot": "$key"}},
        ]
        for part in self.parts.values():
            database = part.client.get_database(namespace.db, codec_options=RAW)
            command = {
                "aggregate": namespace.coll,
                "pipeline": stages,
                "cursor": {"batchSize": _ALL},
            }
            reply = database.command(command, codec_options=RAW)
            if found := reply["cursor"]["firstBatch"]:
                return [bytes(document.raw) for document in found]
        return []  # emptied meanwhile: any cut is as good

    # --- what a task reads ---

    def holders(self, split: SnapshotSplit) -> list[str]:
        """The shards that owned some part of the collection at the split's time.

        Raises TimeUnreadable if that is not known any more, Void if the incarnation is gone.
        """
        if split.shard:
            return [split.shard]
        its = _chunks_of(self._sharded(split))
        owner = {
            "$filter": {
                "input": "$history",
                "cond": {"$lte": ["$$this.validAfter", split.at]},
            }
        }
        stages: list[dict[str, Any]] = [
            {"$match": its},
            {"$group": {"_id": {"$arrayElemAt": [owner, 0]}}},
            {"$group": {"_id": "$_id.shard"}},
        ]
        chunks = _metadata_of(self.client)["chunks"]
        with self._behind_the_shards(f"Asking who held {split.namespace}") as session:
            asked = chunks.aggregate(stages, session=session, maxTimeMS=self.timeout_ms)
            found = [entry["_id"] for entry in asked]
        if not found:
            raise TransientError(f"Copying {split.namespace}: the metadata of its chunks changes.")
        if None in found:
            raise TimeUnreadable
        return sorted(found)

    def incarnation(self, namespace: Namespace) -> bytes | None:
        """The UUID of a sharded collection; None if it is not sharded."""
        found = self._metadata("collections", {"_id": str(namespace)})
        return bytes(found[0]["uuid"]) if found else None

    def version(self, split: SnapshotSplit, shard: str) -> Version | None:
        """What a read of the shard has to carry; None if the collection is not sharded.

        Raises Void if the incarnation is gone: a shard may still hold what it owned, and more.
        """
        if split.shard:
            return None
        collection = self._sharded(split)
        its = {**_chunks_of(collection), "shard": shard}
        newest = self._metadata("chunks", its, sort=[("lastmod", -1)], limit=1)
        version = newest[0]["lastmod"] if newest else NEVER
        return Version(collection["lastmodEpoch"], collection.get("timestamp"), version)

    @contextmanager
    def void_if_gone(self, split: SnapshotSplit) -> Iterator[None]:
        """What a shard takes for gone may be yet to come there. The metadata decides: shards learn
        of it one after the other, and what is void has to be so for the planner too."""
        try:
            yield
        except Void as void:
            if not split.shard:
                self._sharded(split)
                raise TransientError(
                    f"Copying {split.namespace}: a shard does not have it as the metadata says.",
                    "Check that no sharding operation is stuck.",
                ) from void
            raise

    def _sharded(self, split: SnapshotSplit) -> dict[str, Any]:
        """The metadata of the split's collection. Raises Void if there is none of its incarnation
        under its name."""
        its = {"_id": str(split.namespace), "uuid": bson.Binary(split.uuid, 4)}
        for found in self._metadata("collections", its):
            return found
        raise Void

    def _metadata(self, coll: str, query: dict[str, Any], **how: Any) -> list[dict[str, Any]]:
        with self._behind_the_shards(f"Reading config.{coll}") as session:
            how = {"session": session, "max_time_ms": self.timeout_ms, **how}
            return list(_metadata_of(self.client)[coll].find(query, **how))


Source = ReplicaSet | Cluster


def _chunks_of(collection: dict[str, Any]) -> dict[str, Any]:
    """By name, as the index, where the cluster's feature compatibility version is 4.4."""
    of_5_0 = "timestamp" in collection
    return {"uuid": collection["uuid"]} if of_5_0 else {"ns": collection["_id"]}


def _metadata_of(client: Client) -> Database[dict[str, Any]]:
    """The newest that no failover can take back."""
    return client.get_database(
        "config", read_preference=Primary(), read_concern=ReadConcern("majority")
    )


def discover(uri: str, timeout_ms: int) -> Cluster:
    """The cluster behind a mongos or a config server.

    Raises BadOption, SourceUnreachable, NotPermitted, UnsuitableSource.
    """
    client = connect(uri, timeout_ms)
    config = _metadata_of(client)
    with named({"": client}, of_metadata()):
        try:
            version, shards = config["version"].find_one(), list(config["shards"].find())
        except pymongo.errors.PyMongoError as error:
            raise translated(error, "Looking for the shards") from error
    if not version or "clusterId" not in version or not shards:
        raise UnsuitableSource(
            "Option 'shards.direct' is set, but 'uri' does not lead to a sharded cluster.",
            "Name a mongos or the config servers in 'uri', or leave the option out.",
        )
    return _of_shards(uri, timeout_ms, f"cluster {version['clusterId']}", shards)


def removed(which: str) -> HistoryLost:
    return HistoryLost(
        f"{which} was removed, and not all that it had to tell has been read.",
        "Start with a new checkpoint and new tables.",
    )


def _of_shards(uri: str, timeout_ms: int, name: str, shards: list[dict[str, Any]]) -> Cluster:
    """From the entries of `config.shards`."""
    parts = {s["_id"]: ReplicaSet(uri, timeout_ms, s["_id"], s["host"]) for s in shards}
    changed_at = {s["_id"]: s.get("topologyTime", NEVER) for s in shards}
    return Cluster(uri, timeout_ms, name, parts, changed_at)
