"""What a cluster's metadata knows: which shards own what, and owned at a time.

Every answer is of a moment after all that has been read of the shards: they go by the metadata as
soon as it is written, and a majority of the config servers may have it later.
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
from cdc.model.offset import NEVER
from cdc.model.selection import Namespace
from cdc.model.split import SnapshotSplit
from cdc.mongo.client import Client, connect, takes_sessions, time_told
from cdc.mongo.codes import TIME_UNREADABLE, translated
from cdc.mongo.incarnation import Version, Void
from cdc.mongo.scan import TimeUnreadable
from cdc.mongo.topology import ReplicaSet


@dataclass(frozen=True, slots=True)
class Metadata:
    """Of the cluster behind `uri`, whose shards are `parts`."""

    uri: str
    timeout_ms: int
    parts: Mapping[str, ReplicaSet]

    @property
    def client(self) -> Client:
        """Of a mongos, or of the config servers."""
        return connect(self.uri, self.timeout_ms)

    def owned_something(self, shard: str, at: Timestamp) -> bool:
        """Whether documents of the shard may have changed at a later time."""
        for coll, query in (("chunks", {"shard": shard}), ("databases", {"primary": shard})):
            found = self.at(at, coll, [{"$match": query}, {"$limit": 1}])
            if found is None or found:
                return True
        # Chunks keep the history of their owners for as long as that time could be read.
        owned_since = {"$elemMatch": {"shard": shard, "validAfter": {"$gt": at}}}
        return bool(self.find("chunks", {"history": owned_since}, limit=1))

    def at(
        self, at: Timestamp, coll: str, stages: list[dict[str, Any]]
    ) -> list[dict[str, Any]] | None:
        """As it was at a time that the shards have reached; None if nobody knows any more."""
        concern = {"level": "snapshot", "atClusterTime": at}
        command = {
            "aggregate": coll,
            "pipeline": stages,
            "cursor": {},
            "readConcern": concern,
            "maxTimeMS": self.timeout_ms,
        }
        what = f"Reading config.{coll} as of {at}"
        with self._behind_the_shards(what, waits=False) as (client, session):
            try:
                reply = client.get_database("config").command(command, session=session)
            except pymongo.errors.OperationFailure as error:
                if error.code not in TIME_UNREADABLE:
                    raise
                return None
        found: list[dict[str, Any]] = reply["cursor"]["firstBatch"]
        return found

    def then(self, at: Timestamp, coll: str, stages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Metadata as of a time, or the newest if nobody knows any more."""
        found = self.at(at, coll, stages)
        if found is None:
            with self._behind_the_shards(f"Reading config.{coll}") as (client, session):
                asked = config(client)[coll].aggregate(
                    stages, session=session, maxTimeMS=self.timeout_ms
                )
                found = list(asked)
        return found

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
        with self._behind_the_shards(f"Asking who held {split.namespace}") as (client, session):
            chunks = config(client)["chunks"]
            asked = chunks.aggregate(stages, session=session, maxTimeMS=self.timeout_ms)
            found = [entry["_id"] for entry in asked]
        if not found:
            raise TransientError(f"Copying {split.namespace}: the metadata of its chunks changes.")
        if None in found:
            raise TimeUnreadable
        return sorted(found)

    def incarnation(self, namespace: Namespace) -> bytes | None:
        """The UUID of a sharded collection; None if it is not sharded."""
        found = self.find("collections", {"_id": str(namespace)})
        return bytes(found[0]["uuid"]) if found else None

    def version(self, split: SnapshotSplit, shard: str) -> Version | None:
        """What a read of the shard has to carry; None if the collection is not sharded.

        Raises Void if the incarnation is gone: a shard may still hold what it owned, and more.
        """
        if split.shard:
            return None
        collection = self._sharded(split)
        its = {**_chunks_of(collection), "shard": shard}
        newest = self.find("chunks", its, sort=[("lastmod", -1)], limit=1)
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
        for found in self.find("collections", its):
            return found
        raise Void

    def find(self, coll: str, query: dict[str, Any], **how: Any) -> list[dict[str, Any]]:
        """The newest entries of a collection of `config`."""
        with self._behind_the_shards(f"Reading config.{coll}") as (client, session):
            how = {"session": session, "max_time_ms": self.timeout_ms, **how}
            return list(config(client)[coll].find(query, **how))

    @contextmanager
    def _behind_the_shards(
        self, what: str, waits: bool = True
    ) -> Iterator[tuple[Client, ClientSession]]:
        """A client of the metadata's server, which may be another one at the next call, and a
        session of that client, by which the server learns the time of the shards: what it does
        next is later. With `waits`, its answers are of a moment after all that has been read:
        a majority read alone may be older than a change of the metadata that shards go by already.
        """
        known, client = self._time_of_the_shards(), self.client
        with client.start_session(causal_consistency=waits) as session:
            session.advance_cluster_time(known)
            session.advance_operation_time(known["clusterTime"])
            try:
                with takes_sessions(client):
                    yield client, session
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
                known = part.client.admin.command("ping")
                return dict(time_told(known, "$clusterTime"))
            except pymongo.errors.PyMongoError as error:
                if left == 0:
                    raise translated(error, "Asking the shards for their time") from error
        raise AssertionError("a cluster has a shard")


def _chunks_of(collection: dict[str, Any]) -> dict[str, Any]:
    """By name, as the index, where the cluster's feature compatibility version is 4.4."""
    of_5_0 = "timestamp" in collection
    return {"uuid": collection["uuid"]} if of_5_0 else {"ns": collection["_id"]}


def config(client: Client) -> Database[dict[str, Any]]:
    """The newest that no failover can take back."""
    return client.get_database(
        "config", read_preference=Primary(), read_concern=ReadConcern("majority")
    )
