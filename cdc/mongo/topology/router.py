"""A sharded cluster that is read through its routers (mongos).

The router merges the change streams of all shards, so the cluster is one part with one stream. A
time T of such a source is a place in that stream: what was emitted up to T is the effect of all
events with times up to T. Each shard reports a transaction across shards at a time of its own. So a
batch may end between these times; `cdc.mongo.read.shards.stream_order` makes copies that fit.

No real router was available. All of this was tried with a stand-in of the tests, which routes to
real shards.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Self

import pymongo.errors
from bson.timestamp import Timestamp

from cdc.model import (
    NEVER,
    Copying,
    KeyRange,
    Namespace,
    Offset,
    Selection,
    ShardKey,
)
from cdc.mongo.collections import Listing, list_databases, list_once, ranges
from cdc.mongo.connection import (
    UNLIMITED,
    Client,
    Pace,
    RouterMember,
    connect,
    connect_to_router,
    each_member,
    linearizable_read,
    reply_time,
    router_member,
    translate_error,
)
from cdc.mongo.topology import router_time
from cdc.mongo.topology.router_metadata import (
    UNKNOWN,
    KnownShards,
    find_metadata,
    find_shard_keys,
    require_shard_keys,
)
from cdc.mongo.topology.source import OnePart


@dataclass(frozen=True, slots=True)
class Router(OnePart):
    """The cluster of the routers in `uri`.

    Attributes:
        uri: the option `uri`.
        timeout_ms: milliseconds to look for a server.
        name: the name of the source. Reading does not need it.
        database: the only database whose changes the user may have to read; None for several.
        comment: the comment of each cursor.
        pace: the pace of all reads.
        known: the shards, as far as the user may read them.
    """

    uri: str
    timeout_ms: int
    name: str
    database: str | None = None
    comment: str = ""
    pace: Pace = UNLIMITED
    known: KnownShards = UNKNOWN

    has_oplog = False
    drops_are_final = False
    reads_match_events = False
    names_one_member = False

    @property
    def client(self) -> Client:
        return connect(self.uri, self.timeout_ms)

    @property
    def clients(self) -> Mapping[str, Client]:
        return {"": self.client}

    def each_member(self) -> Iterator[tuple[str, Client]]:
        return (("", member) for member in each_member(self.client, self.uri))

    def configure(self, comment: str, pace: Pace) -> Self:
        return replace(self, comment=comment, pace=pace)

    @contextmanager
    def _asking(self, attempted: str) -> Iterator[RouterMember]:
        with _translated(attempted):
            member = self.open("")
            try:
                yield member
            finally:
                member.end()

    def open(self, shard: str) -> RouterMember:
        """Return one of the routers that answer. It reads by the read preference of `uri`."""
        return router_member(self.uri, self.timeout_ms).configure(self.comment, self.pace)

    # --- the live edge ---

    def live_edge(self, floor: Timestamp) -> Timestamp:
        """Return a time up to which each shard has a majority, see `router_time.live_edge`."""
        with self._asking("Reading the time of the shards") as member:
            return router_time.live_edge(member, self.database, floor)

    def present(self) -> Timestamp:
        """Return a live edge that all shards reach now, see `router_time.present`."""
        with self._asking("Reading the time of the shards") as member:
            return router_time.present(member, self.database)

    def confirm(self, found: Listing, patience: float) -> Timestamp | None:
        """Return a live edge at or after the listing's time.

        None means that it was not reached within `patience` seconds, or that the listing was not
        the same before and after a primary proved to be one.
        """
        deadline = time.monotonic() + patience
        while found.term is not None:
            edge = self.live_edge(NEVER)
            if edge >= found.time:
                return edge
            if time.monotonic() > deadline:
                return None
            time.sleep(0.005)
        return None

    @property
    def unconfirmed_error(self) -> tuple[str, str]:
        lagging = "Not every shard has reached the time at which the collections were listed."
        return lagging, router_time.LAGGING_REMEDY

    # --- shards that join and leave ---

    def refresh(self) -> Self:
        """Return the source with the shards of now; itself if they are the same.

        The router reads a shard that joins from then on.
        """
        known = self.known.renewed(self._find_metadata("shards"))
        return self if known == self.known else replace(self, known=known)

    @property
    def topology_time(self) -> Timestamp:  # type: ignore[override]
        return self.known.changed_at

    def require_all_read(self, offset: Offset) -> None:
        """Raise HistoryLost if a shard may have left since the offset."""
        self.known.require_all_read(offset)

    def _find_metadata(
        self, coll: str, after: Timestamp = NEVER, names: Sequence[str] | None = None
    ) -> list[Any] | None:
        with self._asking(f"Reading config.{coll}") as member:
            return find_metadata(member, coll, after, names)

    # --- collections ---

    def list_collections(self, selection: Selection) -> Listing:
        """List the selected collections, as the primary shards of their databases list them.

        A router reports no term. So one router lists them; then a linearizable read on each
        database goes to its primary shard; then the same router lists them again. The read is
        answered only by a primary that a majority still follows, after everything that it had
        before is committed. If both listings are equal, the listing is not rolled back.

        It does not cover a router that asks a deposed primary for both listings, and the new
        primary for the read in between: a router that found the new primary does not return to the
        deposed one as long as that reports an older term.

        The listing's `term` is 0 if both listings were equal, else None. A last linearizable read
        makes one shard pass the time of the listing, which `confirm` waits for.
        """
        with _translated("Listing collections"):
            client = connect_to_router(self.uri, self.timeout_ms)
            databases = list_databases(client, selection, [])
            if not databases:
                moment = _newest_time(client)
                return Listing((), moment, moment, term=0)
            before = list_once(client, selection, databases)
            since = min(_prove_primary(client, database) for database in databases)
            found = list_once(client, selection, databases)
            newest = _newest_time(client)
            _prove_primary(client, databases[0])
        is_same = before.collections == found.collections
        return replace(found, since=since, time=newest, term=0 if is_same else None)

    def require_mirrorable(self, selection: Selection) -> None:
        """Raise UnsuitableSource if the user may not read the shard keys."""
        require_shard_keys(self._find_metadata("collections", names=[]))

    def shard_keys(
        self, selection: Selection, after: Timestamp
    ) -> Mapping[Namespace, ShardKey] | None:
        """Return the shard keys of now; None if they may not be read."""
        names = None if selection.patterns else [str(name) for name in selection.names]
        return find_shard_keys(self._find_metadata("collections", after, names), selection)

    def ranges(self, copying: Copying, most: int, split_bytes: int) -> list[KeyRange]:
        """Return at most `most` adjacent ranges from the frontier on, see `enumerator.ranges`."""
        return ranges(self.client, copying, most, split_bytes)


def discover(uri: str, timeout_ms: int, database: str | None) -> Router:
    """Return the cluster of the routers in `uri`, with its id in the name if that may be read."""
    cluster = ""
    with suppress(pymongo.errors.OperationFailure):
        version = connect(uri, timeout_ms)["config"]["version"].find_one() or {}
        cluster = f" {version['clusterId']}" if "clusterId" in version else ""
    return Router(uri, timeout_ms, f"router of cluster{cluster}", database).refresh()


def _newest_time(client: Client) -> Timestamp:
    newest: Timestamp = reply_time(client.admin.command("ping"), "$clusterTime")["clusterTime"]
    return newest


def _prove_primary(client: Client, database: str) -> Timestamp:
    """Return a time that the primary of the database's primary shard has reached.

    A primary answers a linearizable read after a majority has confirmed an entry that it writes for
    it, so the time is later than all that the router knew before.
    """
    reply = client[database].command(linearizable_read())
    proven: Timestamp = reply_time(reply)
    return proven


@contextmanager
def _translated(attempted: str) -> Iterator[None]:
    try:
        yield
    except pymongo.errors.PyMongoError as error:
        raise translate_error(error, attempted) from error
