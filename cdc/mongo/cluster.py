"""A sharded cluster whose shards are read directly: one change stream for each, all as of one time.

The frontier is a key of `_id` on every shard alike. What a shard returns of a range is filtered by
the shard itself: a read that carries the shard's version, as a router's does, holds the documents
that it *owned at the time of the read*, by the history of the chunks. So neither orphans nor chunks
on the move are seen, whatever the shard key is.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import bson
import pymongo.errors
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from pymongo.database import Database
from pymongo.read_concern import ReadConcern

from cdc.errors import HistoryLost, UnsuitableSource
from cdc.model.key import merge_key
from cdc.model.offset import Copying
from cdc.model.selection import Namespace, Selection
from cdc.model.split import MAX_KEY, KeyRange, SnapshotSplit
from cdc.mongo.client import RAW, Client, Member, connect, translated
from cdc.mongo.enumerator import INTERNAL, Listing, listing
from cdc.mongo.privileges import named, of_metadata
from cdc.mongo.topology import ReplicaSet

_ALL = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Cluster:
    """The shards of a cluster, as its metadata listed them when it was discovered."""

    uri: str
    timeout_ms: int
    name: str
    parts: Mapping[str, ReplicaSet]

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
        """A member for reading a split of that shard."""
        return self.parts[shard].open(shard)

    # --- the live edge ---

    def live_edge(self, floor: Timestamp) -> Timestamp:
        """The newest time that every shard has reached for good, but never below `floor`. A shard
        without writes makes one of its own every 10 s."""
        return max(floor, min(part.live_edge(Timestamp(0, 0)) for part in self.parts.values()))

    def confirmed(self, found: Listing, patience: float) -> Timestamp | None:
        """A live edge at or after the listing's time; None if it cannot be had yet."""
        for shard, part in found.parts:
            if self.parts[shard].confirmed(part, patience) is None:
                return None
        edge = self.live_edge(Timestamp(0, 0))
        return edge if edge >= found.time else None

    # --- metadata ---

    def listing(self, selection: Selection) -> Listing:
        """Each collection as the primary shard of its database lists it."""
        parts = []
        for shard, databases in sorted(self._databases(selection).items()):
            parts.append((shard, listing(self.parts[shard].client, selection, databases)))
        if not parts:
            raise UnsuitableSource(f"No database holds '{selection.text}'.", "Check 'collections'.")
        found = [
            replace(c, shard="" if self._is_sharded(c.namespace) else shard)
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
        named = {name.db for name in selection.names}
        by_shard: dict[str, list[str]] = {}
        for entry in self._metadata("databases", {}):
            if entry["_id"] in named or (selection.patterns and entry["_id"] not in INTERNAL):
                by_shard.setdefault(entry["primary"], []).append(entry["_id"])
        return by_shard

    def _is_sharded(self, namespace: Namespace) -> bool:
        return bool(self._metadata("collections", {"_id": str(namespace)}))

    def tells(self, shard: str, event: RawBSONDocument) -> bool:
        """Only the primary shard of a database tells of DDL: it is the last to do what all do."""
        found = self._metadata("databases", {"_id": event["ns"]["db"]})
        return not found or found[0]["primary"] == shard

    def ranges(self, copying: Copying, most: int, split_bytes: int) -> list[KeyRange]:
        """At most `most` adjacent ranges, none of them larger than `split_bytes` on any shard."""
        if copying.shard:
            return self.parts[copying.shard].ranges(copying, most, split_bytes)
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
        """The shards that owned some part of the collection at the split's time."""
        if split.shard:
            return [split.shard]
        owner = {
            "$filter": {
                "input": "$history",
                "cond": {"$lte": ["$$this.validAfter", split.at]},
            }
        }
        stages: list[dict[str, Any]] = [
            {"$match": {"uuid": bson.Binary(split.uuid, 4)}},
            {"$group": {"_id": {"$arrayElemAt": [owner, 0]}}},
            {"$group": {"_id": "$_id.shard"}},
        ]
        try:
            chunks = _metadata_of(self.client)["chunks"]
            found = [entry["_id"] for entry in chunks.aggregate(stages)]
        except pymongo.errors.PyMongoError as error:
            raise translated(error, f"Asking who held {split.namespace}") from error
        if None in found:
            raise HistoryLost(
                f"Who held {split.namespace} at {split.at} is not known any more.",
                "Start with a new checkpoint and new tables.",
            )
        return sorted(found)

    def version(self, split: SnapshotSplit, shard: str) -> dict[str, Any] | None:
        """What a read of the shard has to carry; None if the collection is not sharded."""
        if split.shard:
            return None
        uuid = bson.Binary(split.uuid, 4)
        found = self._metadata("collections", {"uuid": uuid})
        if not found:
            return None  # dropped since: the incarnation is void, with or without a version
        collection = found[0]
        newest = self._metadata("chunks", {"uuid": uuid, "shard": shard}, [("lastmod", -1)], 1)
        version = newest[0]["lastmod"] if newest else Timestamp(0, 0)
        return {"e": collection["lastmodEpoch"], "t": collection["timestamp"], "v": version}

    def _metadata(
        self, coll: str, query: dict[str, Any], order: Any = None, limit: int = 0
    ) -> list[dict[str, Any]]:
        try:
            return list(_metadata_of(self.client)[coll].find(query, sort=order, limit=limit))
        except pymongo.errors.PyMongoError as error:
            raise translated(error, f"Reading config.{coll}") from error


Source = ReplicaSet | Cluster


def _metadata_of(client: Client) -> Database[dict[str, Any]]:
    """Only what no failover can take back."""
    return client.get_database("config", read_concern=ReadConcern("majority"))


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
    parts = {
        entry["_id"]: ReplicaSet(uri, timeout_ms, entry["_id"], entry["host"]) for entry in shards
    }
    return Cluster(uri, timeout_ms, f"cluster {version['clusterId']}", parts)
