"""A sharded cluster whose shards are read directly, all as of one time.

Each shard has a change stream of its own. The frontier is one `_id` for all shards. Each shard
filters the documents of a range itself: a read carries the shard's version, as a router's read
does. It returns the documents that the shard *owned at the time of the read*, by the history of the
chunks. So a read sees neither orphans nor migrating chunks, whatever the shard key is.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import pymongo.errors
from bson.timestamp import Timestamp

from cdc.errors import HistoryLost, UnsuitableSource
from cdc.model import (
    INTERNAL_DATABASES,
    NEVER,
    Copying,
    KeyRange,
    Namespace,
    Offset,
    Selection,
    ShardKey,
    Times,
)
from cdc.mongo.collections import Listing, list_collections
from cdc.mongo.connection import (
    UNLIMITED,
    Client,
    Member,
    Pace,
    connect,
    log_if_slow,
    metadata_needs,
    name_missing_needs,
    reply_time,
    translate_error,
)
from cdc.mongo.query import CUTTING_EVENTS
from cdc.mongo.topology import commit_point, sharded_ranges
from cdc.mongo.topology.config_metadata import Metadata, config
from cdc.mongo.topology.replica_set import ReplicaSet

# DDL done by each shard that has the collection, and DDL done by each shard that owns a part of it.
_BY_ALL = ("create", "shardCollection", *CUTTING_EVENTS)
_BY_OWNERS = ("createIndexes", "dropIndexes", "modify")


@dataclass(frozen=True, slots=True)
class Cluster:
    """The shards of a cluster, as its metadata listed them when it was discovered.

    Attributes:
        name: the name of the source: the cluster's id.
        metadata: the cluster's metadata, and its shards.
        changed_at: for each shard, when it joined, or when it was later notified that another shard
            was removed.
        comment: the comment of each command.
        pace: the pace of all reads.
    """

    name: str
    metadata: Metadata
    changed_at: Mapping[str, Timestamp]
    comment: str = ""
    pace: Pace = UNLIMITED

    has_oplog = True
    drops_are_final = True  # the planner knows which shard reports a drop
    reads_match_events = True
    names_one_member = False

    @property
    def parts(self) -> Mapping[str, ReplicaSet]:
        return self.metadata.parts

    @property
    def shards(self) -> tuple[str, ...]:
        return tuple(sorted(self.parts))

    @property
    def clients(self) -> Mapping[str, Client]:
        """A client of each shard, and one with the empty name for the metadata."""
        return {
            "": self.metadata.client,
            **{shard: part.client for shard, part in self.parts.items()},
        }

    def each_member(self) -> Iterator[tuple[str, Client]]:
        for shard, part in self.parts.items():
            yield from ((shard, member) for _, member in part.each_member())

    @property
    def ownership(self) -> Metadata:
        return self.metadata

    def configure(self, comment: str, pace: Pace) -> Self:
        return replace(self, comment=comment, pace=pace)

    def open(self, shard: str) -> Member:
        """Open a member to read a split of that shard.

        Raises HistoryLost if the shard no longer belongs to the cluster.
        """
        return self._part(shard).open(shard).configure(self.comment, self.pace)

    def _part(self, shard: str) -> ReplicaSet:
        if shard not in self.parts:
            raise removed_shard_error(f"Shard {shard}")
        return self.parts[shard]

    # --- the live edge ---

    def live_edge(self, floor: Timestamp) -> Timestamp:
        """Return the newest time that a majority of every shard has reached, at least `floor`.

        Every transaction across shards is decided up to that time.
        """
        return max(floor, commit_point.edge(self.parts, floor=floor))

    def present(self) -> Timestamp:
        """Return a live edge for which lagging shards are made to advance."""
        return commit_point.edge(self.parts, together=True)

    def late_times(self, time: Timestamp) -> Times:
        return commit_point.late_times(self.parts, time)

    def confirm(self, found: Listing, patience: float) -> Timestamp | None:
        """Return a live edge at or after the listing's time.

        None means that it was not reached within `patience` seconds, or that a shard has elected
        another primary since the listing.
        """
        for shard, part in found.parts:
            if self._part(shard).confirm(part, patience) is None:
                return None
        deadline = time.monotonic() + patience
        while True:
            edge = commit_point.edge(self.parts, at_least=found.time)
            if edge >= found.time:
                return edge
            if time.monotonic() > deadline:
                return None
            time.sleep(0.005)

    @property
    def unconfirmed_error(self) -> tuple[str, str]:
        return (
            "The majority of a shard lags its primary, or a transaction across shards remains"
            " undecided.",
            "Check that a majority of each shard's members is up, and look for the state 'prepared'"
            " in each shard's config.transactions.",
        )

    # --- shards that join and leave ---

    def refresh(self) -> Self:
        uri, timeout_ms = self.metadata.uri, self.metadata.timeout_ms
        metadata, changed_at = _of_shards(uri, timeout_ms, self.metadata.find("shards", {}))
        now = replace(self, metadata=metadata, changed_at=changed_at)
        return self if now == self else now

    @property
    def topology_time(self) -> Timestamp:
        return max(self.changed_at.values())

    def require_all_read(self, offset: Offset) -> None:
        gone = [shard for shard in offset.shards if shard not in self.parts]
        if any(self.metadata.has_owned_since(shard, offset.time) for shard in gone):
            raise removed_shard_error(f"Shard {', '.join(gone)}")
        changed = [self.changed_at[shard] for shard in offset.shards if shard in self.parts]
        # All shards of the offset are still there, but one of them was notified of a removal: the
        # removed shard had joined and left after the offset.
        if not gone and max(changed) > offset.topology_time:
            raise removed_shard_error("A shard that had joined since the checkpoint")

    # --- collections ---

    def list_collections(self, selection: Selection) -> Listing:
        """List each selected collection as the primary shard of its database lists it.

        The result is empty if no database may contain a selected collection.
        """
        parts = []
        for shard, databases in sorted(self._databases(selection).items()):
            parts.append((shard, list_collections(self._part(shard).client, selection, databases)))
        if not parts:
            # A shard drops its data before the metadata loses the database. So at this time no
            # selected collection is left.
            moment = self._newest_time()
            return Listing((), moment, moment, None)
        names = [str(c.namespace) for _, part in parts for c in part.collections]
        # The incarnation of a sharded collection comes from the metadata, as for those who read it.
        sharded: dict[str, dict[str, Any]] = {
            entry["_id"]: {"uuid": bytes(entry["uuid"])}
            for entry in self.metadata.find("collections", {"_id": {"$in": names}})
        }
        collections = [
            replace(c, **sharded.get(str(c.namespace), {"shard": shard}))
            for shard, part in parts
            for c in part.collections
        ]
        return Listing(
            tuple(sorted(collections, key=lambda collection: str(collection.namespace))),
            min(part.since for _, part in parts),
            max(part.time for _, part in parts),
            None,
            tuple(parts),
        )

    def _newest_time(self) -> Timestamp:
        """Return the newest cluster time that a shard knows.

        It is at or after every write of any shard so far.
        """
        try:
            replies = [part.client.admin.command("ping") for part in self.parts.values()]
        except pymongo.errors.PyMongoError as error:
            raise translate_error(error, "Reading the cluster time of the shards") from error
        times: list[Timestamp] = [reply_time(r, "$clusterTime")["clusterTime"] for r in replies]
        return max(times)

    def _databases(self, selection: Selection) -> dict[str, list[str]]:
        """Return the databases that may have selected collections, by their primary shard."""
        wanted, named = selection.databases, {name.db for name in selection.names}
        by_shard: dict[str, list[str]] = {}
        for entry in self.metadata.find("databases", {}):
            database = entry["_id"]
            is_any = wanted is None and database not in INTERNAL_DATABASES
            if is_any or database in (wanted or named):
                by_shard.setdefault(entry["primary"], []).append(database)
        return by_shard

    def require_mirrorable(self, selection: Selection) -> None:
        """Each batch has both halves of a move, and knows their shards."""

    def shard_keys(
        self, selection: Selection, after: Timestamp
    ) -> Mapping[Namespace, ShardKey] | None:
        """Return None: each batch has both halves of a move, so the `_id` is enough."""
        return None

    def reports_ddl(self, shard: str, event: Mapping[str, Any]) -> bool:
        """Return whether that shard reports a DDL event that several shards may see.

        The primary shard of the database at that time reports it: where all shards do the DDL, it
        is the last to do it. It does the DDL on indexes and options only if it owned a part of the
        collection. Otherwise the first owner, by name, reports that DDL. An unknown kind of event
        is reported by each shard: an extra row is better than a missing one.
        """
        operation, at = event["operationType"], event["clusterTime"]
        if operation not in (*_BY_ALL, *_BY_OWNERS):
            return True
        primary = self.metadata.read_at_or_newest(
            at, "databases", [{"$match": {"_id": event["ns"]["db"]}}]
        )
        if not primary:
            return True
        reporters = {primary[0]["primary"]}
        if operation in _BY_OWNERS:
            stages: list[dict[str, Any]] = [
                {"$match": {"uuid": event.get("collectionUUID")}},
                {"$group": {"_id": "$shard"}},
            ]
            owners = {
                owner["_id"] for owner in self.metadata.read_at_or_newest(at, "chunks", stages)
            }
            reporters = reporters & owners or owners or reporters
        return bool(shard == min(reporters))

    def ranges(self, copying: Copying, most: int, split_bytes: int) -> list[KeyRange]:
        """Return at most `most` adjacent ranges, each of about `split_bytes` or less on any shard.

        They start at the frontier.
        """
        if copying.shard:
            return self._part(copying.shard).ranges(copying, most, split_bytes)
        return sharded_ranges.ranges(self.parts, copying, most, split_bytes)


def discover(uri: str, timeout_ms: int) -> Cluster:
    """Return the cluster to which a mongos or the config servers belong.

    Raises BadOption, SourceUnreachable, NotPermitted, UnsuitableSource.
    """
    client = connect(uri, timeout_ms)
    database = config(client)
    with name_missing_needs({"": client}, metadata_needs()):
        try:
            with log_if_slow(client, timeout_ms):
                version, shards = database["version"].find_one(), list(database["shards"].find())
        except pymongo.errors.PyMongoError as error:
            raise translate_error(error, "Listing the shards") from error
    if not version or "clusterId" not in version or not shards:
        raise UnsuitableSource(
            "Option 'shards.direct' is set, but 'uri' does not name a sharded cluster.",
            "Name a mongos or the config servers in 'uri', or remove the option.",
        )
    return Cluster(f"cluster {version['clusterId']}", *_of_shards(uri, timeout_ms, shards))


def removed_shard_error(which: str) -> HistoryLost:
    """Return the error for a shard that left before all of its changes were read."""
    return HistoryLost(
        f"{which} was removed before all of its changes were read.",
        "Start with a new checkpoint and new tables.",
    )


def _of_shards(
    uri: str, timeout_ms: int, shards: list[dict[str, Any]]
) -> tuple[Metadata, dict[str, Timestamp]]:
    """Return the metadata and the times of change by the entries of `config.shards`."""
    parts = {s["_id"]: ReplicaSet(uri, timeout_ms, s["_id"], s["host"]) for s in shards}
    changed_at = {s["_id"]: s.get("topologyTime", NEVER) for s in shards}
    return Metadata(uri, timeout_ms, parts), changed_at
