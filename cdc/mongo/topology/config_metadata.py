"""A cluster's metadata: which shards own which documents, now and earlier.

Every result is from a moment after everything that was read from the shards. Shards apply new
metadata as soon as it is written, and a majority of the config servers may have it only later.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import bson
import pymongo.errors
from bson.timestamp import Timestamp
from pymongo.client_session import ClientSession
from pymongo.database import Database
from pymongo.read_concern import ReadConcern
from pymongo.read_preferences import Primary

from cdc.errors import TransientError
from cdc.model import NEVER, Namespace, SnapshotSplit
from cdc.mongo.collections import TimeUnreadable, Version, Void
from cdc.mongo.connection import (
    TIME_UNREADABLE,
    Client,
    connect,
    reconnecting_if_sessions_are_refused,
    reply_time,
    translate_error,
)
from cdc.mongo.topology import sharded_ranges
from cdc.mongo.topology.replica_set import ReplicaSet

# By default a first reply ends after 101 entries.
_ALL = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Metadata:
    """The metadata of the cluster that `uri` names; `parts` are its shards."""

    uri: str
    timeout_ms: int
    parts: Mapping[str, ReplicaSet]

    @property
    def client(self) -> Client:
        """A client of a mongos or of the config servers."""
        return connect(self.uri, self.timeout_ms)

    def has_owned_since(self, shard: str, at: Timestamp) -> bool:
        """Return whether documents of the shard may have changed after `at`."""
        for coll, query in (("chunks", {"shard": shard}), ("databases", {"primary": shard})):
            entries = self.read_at(at, coll, [{"$match": query}, {"$limit": 1}])
            if entries is None or entries:
                return True
        # Chunks retain the history of their owners as long as that time could be read.
        owned_since = {"$elemMatch": {"shard": shard, "validAfter": {"$gt": at}}}
        return bool(self.find("chunks", {"history": owned_since}, limit=1))

    def read_at(
        self, at: Timestamp, coll: str, stages: list[dict[str, Any]]
    ) -> list[dict[str, Any]] | None:
        """Return what an aggregation of `config.<coll>` gave at the time `at`.

        The shards must have reached that time. None means that it is too old to be read.
        """
        concern = {"level": "snapshot", "atClusterTime": at}
        command = {
            "aggregate": coll,
            "pipeline": stages,
            "cursor": {"batchSize": _ALL},
            "readConcern": concern,
            "maxTimeMS": self.timeout_ms,
        }
        what = f"Reading config.{coll} as of {at}"
        with self._session_after_shards(what, waits=False) as (client, session):
            try:
                reply = client.get_database("config").command(command, session=session)
            except pymongo.errors.OperationFailure as error:
                if error.code not in TIME_UNREADABLE:
                    raise
                return None
        entries: list[dict[str, Any]] = reply["cursor"]["firstBatch"]
        return entries

    def read_at_or_newest(
        self, at: Timestamp, coll: str, stages: list[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """Return the same as `read_at`, or the newest metadata if that time is too old."""
        entries = self.read_at(at, coll, stages)
        if entries is None:
            with self._session_after_shards(f"Reading config.{coll}") as (client, session):
                cursor = config(client)[coll].aggregate(
                    stages, session=session, maxTimeMS=self.timeout_ms
                )
                entries = list(cursor)
        return entries

    def owners(self, split: SnapshotSplit) -> list[str]:
        """Return the shards that owned a part of the collection at the split's time.

        Raises TimeUnreadable if the metadata no longer knows, and Void if the incarnation is gone.
        """
        if split.shard:
            return [split.shard]
        chunks_of_it = _chunks_of(self._collection_entry(split))
        owner = {
            "$filter": {
                "input": "$history",
                "cond": {"$lte": ["$$this.validAfter", split.at]},
            }
        }
        stages: list[dict[str, Any]] = [
            {"$match": chunks_of_it},
            {"$group": {"_id": {"$arrayElemAt": [owner, 0]}}},
            {"$group": {"_id": "$_id.shard"}},
        ]
        what = f"Reading the owners of {split.namespace}"
        with self._session_after_shards(what) as (client, session):
            chunks = config(client)["chunks"]
            cursor = chunks.aggregate(stages, session=session, maxTimeMS=self.timeout_ms)
            owners = [entry["_id"] for entry in cursor]
        if not owners:
            raise TransientError(
                f"Copying {split.namespace}: the metadata of its chunks is changing."
            )
        if None in owners:
            raise TimeUnreadable
        return sorted(owners)

    def incarnation(self, namespace: Namespace) -> bytes | None:
        """Return the UUID of a sharded collection; None if it is not sharded."""
        entries = self.find("collections", {"_id": str(namespace)})
        return bytes(entries[0]["uuid"]) if entries else None

    def version(self, split: SnapshotSplit, shard: str) -> Version | None:
        """Return the version that a read of the shard must carry; None if it is not sharded.

        Raises Void if the incarnation is gone. A shard may still have the documents that it owned,
        and others.
        """
        if split.shard:
            return None
        collection = self._collection_entry(split)
        query = {**_chunks_of(collection), "shard": shard}
        newest = self.find("chunks", query, sort=[("lastmod", -1)], limit=1)
        version = newest[0]["lastmod"] if newest else NEVER
        return Version(collection["lastmodEpoch"], collection.get("timestamp"), version)

    def lesser_key(self, namespace: Namespace, one: bytes, other: bytes) -> bytes:
        """Return the lesser of two keys, or any of them if the collection is empty."""
        return sharded_ranges.lesser_key(self.parts, namespace, one, other)

    @contextmanager
    def void_if_gone(self, split: SnapshotSplit) -> Iterator[None]:
        """Check a Void from this context against the metadata.

        A shard may report a collection as gone that has not arrived there yet. Shards learn the
        metadata one after the other, and a void split must be void for the planner too. So the
        metadata decides: if it lists the incarnation, TransientError is raised instead.
        """
        try:
            yield
        except Void as void:
            if not split.shard:
                self._collection_entry(split)
                raise TransientError(
                    f"Copying {split.namespace}: a shard lacks it, although the metadata lists it.",
                    "Check that no sharding operation is stuck.",
                ) from void
            raise

    def _collection_entry(self, split: SnapshotSplit) -> dict[str, Any]:
        """Return the entry of the split's incarnation. Raises Void if its name has none."""
        query = {"_id": str(split.namespace), "uuid": bson.Binary(split.uuid, 4)}
        for entry in self.find("collections", query):
            return entry
        raise Void

    def find(self, coll: str, query: dict[str, Any], **options: Any) -> list[dict[str, Any]]:
        """Return the newest entries of `config.<coll>` that match the query."""
        with self._session_after_shards(f"Reading config.{coll}") as (client, session):
            options = {"session": session, "max_time_ms": self.timeout_ms, **options}
            return list(config(client)[coll].find(query, **options))

    @contextmanager
    def _session_after_shards(
        self, what: str, waits: bool = True
    ) -> Iterator[tuple[Client, ClientSession]]:
        """Yield a client of the metadata's server, and a session that passes it the shards' time.

        What the server does next is later than that time. With `waits`, its replies are also from
        a moment after everything that was read from the shards. A majority read alone may be older
        than a change of the metadata that shards apply already. The client may be another one at
        the next call.
        """
        newest, client = self._time_of_the_shards(), self.client
        with client.start_session(causal_consistency=waits) as session:
            session.advance_cluster_time(newest)
            session.advance_operation_time(newest["clusterTime"])
            try:
                with reconnecting_if_sessions_are_refused(client):
                    yield client, session
            except pymongo.errors.ExecutionTimeout as error:
                raise TransientError(
                    f"{what}: the config servers have not reached the time of the shards.",
                    "Check that a majority of the config servers is up.",
                ) from error
            except pymongo.errors.PyMongoError as error:
                raise translate_error(error, what) from error

    def _time_of_the_shards(self) -> dict[str, Any]:
        """Return the newest `$clusterTime` that one shard knows.

        The first shard that answers is enough: each has reached what was read from any of them.
        """
        for left, part in zip(itertools.count(1 - len(self.parts)), self.parts.values()):
            try:
                reply = part.client.admin.command("ping")
                return dict(reply_time(reply, "$clusterTime"))
            except pymongo.errors.PyMongoError as error:
                if left == 0:
                    raise translate_error(error, "Reading the time of the shards") from error
        raise AssertionError("a cluster has a shard")


def _chunks_of(collection: dict[str, Any]) -> dict[str, Any]:
    """A query for its chunks; by name, as they are indexed, with feature compatibility 4.4."""
    is_by_uuid = "timestamp" in collection
    return {"uuid": collection["uuid"]} if is_by_uuid else {"ns": collection["_id"]}


def config(client: Client) -> Database[dict[str, Any]]:
    """Return the database `config` for reads of its newest majority-committed state."""
    return client.get_database(
        "config", read_preference=Primary(), read_concern=ReadConcern("majority")
    )
