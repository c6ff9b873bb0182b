"""A sharded cluster whose shards are read directly: one change stream for each, all as of one time.

The frontier is a key of `_id` on every shard alike. What a shard returns of a range is filtered by
the shard itself: a read that carries the shard's version, as a router's does, holds the documents
that it *owned at the time of the read*, by the history of the chunks. So neither orphans nor chunks
on the move are seen, whatever the shard key is.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pymongo.errors
from bson.timestamp import Timestamp

from cdc.errors import HistoryLost, UnsuitableSource
from cdc.model.offset import NEVER, Copying, Offset, Times
from cdc.model.selection import Selection
from cdc.model.split import KeyRange
from cdc.mongo import settled, spread
from cdc.mongo.client import Client, Member, connect, time_told
from cdc.mongo.codes import translated
from cdc.mongo.enumerator import INTERNAL, Listing, listing
from cdc.mongo.metadata import Metadata, config
from cdc.mongo.pace import UNLIMITED, Pace
from cdc.mongo.pipeline import CUTTING_EVENTS
from cdc.mongo.privileges import named, of_metadata
from cdc.mongo.refusals import logged_if_slow
from cdc.mongo.topology import ReplicaSet

# DDL that each shard does that has the collection, and that each does that owns some of it.
_BY_ALL = ("create", "shardCollection", *CUTTING_EVENTS)
_BY_OWNERS = ("createIndexes", "dropIndexes", "modify")


@dataclass(frozen=True, slots=True)
class Cluster:
    """The shards of a cluster, as its metadata listed them when it was discovered.

    `changed_at` has for each when it joined or, later, was told that another one was removed. Its
    members are all asked with one `comment`, and at one `pace`.
    """

    name: str
    metadata: Metadata
    changed_at: Mapping[str, Timestamp]
    comment: str = ""
    pace: Pace = UNLIMITED

    @property
    def parts(self) -> Mapping[str, ReplicaSet]:
        return self.metadata.parts

    @property
    def shards(self) -> tuple[str, ...]:
        return tuple(sorted(self.parts))

    @property
    def clients(self) -> Mapping[str, Client]:
        """One for each shard, and one without a name for the metadata."""
        return {
            "": self.metadata.client,
            **{shard: part.client for shard, part in self.parts.items()},
        }

    def open(self, shard: str) -> Member:
        """A member for reading a split of that shard. Raises HistoryLost if it is one no more."""
        return self._part(shard).open(shard).asked(self.comment, self.pace)

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
        uri, timeout_ms = self.metadata.uri, self.metadata.timeout_ms
        found = _of_shards(uri, timeout_ms, self.name, self.metadata.find("shards", {}))
        return self if found == self else found

    @property
    def topology_time(self) -> Timestamp:
        """When shards joined or left last."""
        return max(self.changed_at.values())

    def require_told(self, offset: Offset) -> None:
        """Raises HistoryLost if a shard that was removed had more to tell than `offset` holds."""
        gone = [shard for shard in offset.shards if shard not in self.parts]
        if any(self.metadata.owned_something(shard, offset.time) for shard in gone):
            raise removed(f"Shard {', '.join(gone)}")
        told = [self.changed_at[shard] for shard in offset.shards if shard in self.parts]
        if not gone and max(told) > offset.topology_time:
            raise removed("A shard that had joined meanwhile")

    # --- what there is ---

    def listing(self, selection: Selection) -> Listing:
        """Each collection as the primary shard of its database lists it; none, where there is no
        database that may hold one."""
        parts = []
        for shard, databases in sorted(self._databases(selection).items()):
            parts.append((shard, listing(self._part(shard).client, selection, databases)))
        if not parts:
            # What the metadata has no more was dropped by a shard before.
            moment = self._newest_time()
            return Listing((), moment, moment, None)
        names = [str(c.namespace) for _, part in parts for c in part.collections]
        # Of what is spread the metadata tells the incarnation, here as to those who read it.
        spread: dict[str, dict[str, Any]] = {
            entry["_id"]: {"uuid": bytes(entry["uuid"])}
            for entry in self.metadata.find("collections", {"_id": {"$in": names}})
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

    def _newest_time(self) -> Timestamp:
        """Of those that the shards know: at or after all that any of them has written."""
        try:
            replies = [part.client.admin.command("ping") for part in self.parts.values()]
        except pymongo.errors.PyMongoError as error:
            raise translated(error, "Asking the shards for their time") from error
        times: list[Timestamp] = [time_told(r, "$clusterTime")["clusterTime"] for r in replies]
        return max(times)

    def _databases(self, selection: Selection) -> dict[str, list[str]]:
        """The databases that may hold something selected, by their primary shard."""
        wanted = {name.db for name in selection.names}
        by_shard: dict[str, list[str]] = {}
        for entry in self.metadata.find("databases", {}):
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
        primary = self.metadata.then(at, "databases", [{"$match": {"_id": event["ns"]["db"]}}])
        if not primary:
            return True
        tellers = {primary[0]["primary"]}
        if operation in _BY_OWNERS:
            of_collection = {"$match": {"uuid": event.get("collectionUUID")}}
            found = self.metadata.then(at, "chunks", [of_collection, {"$group": {"_id": "$shard"}}])
            owners = {owner["_id"] for owner in found}
            tellers = tellers & owners or owners or tellers
        return bool(shard == min(tellers))

    def ranges(self, copying: Copying, most: int, split_bytes: int) -> list[KeyRange]:
        """At most `most` adjacent ranges, none of them larger than `split_bytes` on any shard."""
        if copying.shard:
            return self._part(copying.shard).ranges(copying, most, split_bytes)
        return spread.ranges(self.parts, copying, most, split_bytes)


Source = ReplicaSet | Cluster


def discover(uri: str, timeout_ms: int) -> Cluster:
    """The cluster behind a mongos or a config server.

    Raises BadOption, SourceUnreachable, NotPermitted, UnsuitableSource.
    """
    client = connect(uri, timeout_ms)
    database = config(client)
    with named({"": client}, of_metadata()):
        try:
            with logged_if_slow(client, timeout_ms):
                version, shards = database["version"].find_one(), list(database["shards"].find())
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
    return Cluster(name, Metadata(uri, timeout_ms, parts), changed_at)
