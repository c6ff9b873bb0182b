"""A replica set as a source, and its live edge.

The live edge is the newest cluster time that no failover can roll back.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import pymongo.errors
from bson.timestamp import Timestamp
from pymongo.read_preferences import Nearest, Primary

from cdc.errors import UnsuitableSource
from cdc.model import NEVER, Copying, KeyRange, Offset, Selection, Times
from cdc.mongo.collections import Listing, list_collections, ranges
from cdc.mongo.connection import (
    Client,
    Member,
    connect,
    hello,
    hello_of,
    hello_of_preferred,
    log_if_slow,
    member,
    translate_error,
)


@dataclass(frozen=True, slots=True)
class ReplicaSet:
    """A replica set, as the driver's client sees it.

    `shard` (`name/host:port,…`) is set if it is a shard of the cluster that `uri` names.
    """

    uri: str
    timeout_ms: int
    name: str
    shard: str = ""

    @property
    def client(self) -> Client:
        return connect(self.uri, self.timeout_ms, self.shard)

    @property
    def shards(self) -> tuple[str, ...]:
        """The parts of the source with their own change streams, as splits name them."""
        return ("",)

    @property
    def clients(self) -> Mapping[str, Client]:
        """A client of each of `shards`; under an empty name that of the server in `uri`."""
        return {"": self.client}

    def open(self, shard: str) -> Member:
        """Return a member for reading a split of that part."""
        return member(self.uri, self.timeout_ms, self.shard)

    def primary(self) -> Member:
        """Return the primary, which knows most. It goes on answering when it has stepped down."""
        return member(self.uri, self.timeout_ms, self.shard, Primary())

    def list_collections(self, selection: Selection) -> Listing:
        return list_collections(self.client, selection)

    def ranges(self, copying: Copying, most: int, split_bytes: int) -> list[KeyRange]:
        """Return at most `most` adjacent ranges from the frontier on, see `enumerator.ranges`."""
        label = self.name if self.shard else ""
        return ranges(self.client, copying.namespace, copying.below, most, split_bytes, label)

    def reports_ddl(self, shard: str, event: Mapping[str, Any]) -> bool:
        """Return whether this part reports a DDL event that several parts may see: always."""
        return True

    def late_times(self, time: Timestamp) -> Times:
        """Return, by shard, the times after `time` of events that belong before it: none.

        See `Offset.late`.
        """
        return ()

    def refresh(self) -> ReplicaSet:
        """Return the source as it is at some moment after everything that was read from it.

        It returns itself if the parts are the same.
        """
        return self

    @property
    def topology_time(self) -> Timestamp:
        """When a shard last joined or left: never."""
        return NEVER

    def require_all_read(self, offset: Offset) -> None:
        """Raise HistoryLost if a removed part has changes after the offset: it never has."""

    def live_edge(self, floor: Timestamp) -> Timestamp:
        """Return the newest majority-committed time that any member knows, at least `floor`.

        A member that is down, recovering or lagging only makes the result older, never wrong.
        """
        return live_edge(self._hellos(), floor)

    def confirm(self, found: Listing, patience: float) -> Timestamp | None:
        """Return a live edge at or after the listing's time.

        None means that the majority did not reach the primary's listing within `patience` seconds,
        or that another primary was elected. Comparing times is not enough. What a deposed primary
        knew is rolled back, and the time of the new primary passes it.
        """
        deadline = time.monotonic() + patience
        while found.term is not None:
            hellos = list(self._hellos())
            edges = [edge for hello in hellos if (edge := majority(hello))]
            if any(edge.term == found.term and edge.time >= found.time for edge in edges):
                return live_edge(hellos, found.time)
            if any(edge.term > found.term for edge in edges) or time.monotonic() > deadline:
                return None
            time.sleep(0.005)
        return None

    @property
    def unconfirmed_error(self) -> tuple[str, str]:
        """Message and remedy for an error if `confirm` keeps returning None."""
        return (
            "The majority of the replica set lags its primary.",
            "Check that a majority of its members is up.",
        )

    def _hellos(self) -> Iterable[Mapping[str, Any]]:
        answers = (
            hello_of(self.uri, host, port or 27017) for host, port in sorted(self.client.nodes)
        )
        hellos = [answer for answer in answers if answer is not None]
        if not hellos:  # The driver knows no member that answers: it has to look for one.
            try:
                hellos = [hello(self.client, read_preference=Nearest())]
            except pymongo.errors.PyMongoError as error:
                raise translate_error(
                    error, f"Reading the time of replica set '{self.name}'"
                ) from error
        return hellos


class OpTime(NamedTuple):
    """A time, and the term of the primary that assigned it."""

    time: Timestamp
    term: int


def majority(hello: Mapping[str, Any]) -> OpTime | None:
    """Return the newest majority-committed time in a `hello`; a recovering member has none."""
    known = hello.get("lastWrite", {}).get("majorityOpTime", {})
    ts, term = known.get("ts"), known.get("t")
    return OpTime(ts, int(term)) if isinstance(ts, Timestamp) and term is not None else None


def has_committed(hello: Mapping[str, Any], time: Timestamp) -> bool:
    """Whether the majority commit point in a `hello` is at or after `time`."""
    edge = majority(hello)
    return edge is not None and edge.time >= time


def live_edge(hellos: Iterable[Mapping[str, Any]], floor: Timestamp) -> Timestamp:
    """Return the largest majority-committed time in replies to `hello`, at least `floor`."""
    return max([floor, *(edge.time for hello in hellos if (edge := majority(hello)))])


def discover(uri: str, timeout_ms: int) -> ReplicaSet:
    """Return the replica set that a URI names.

    Raises BadOption, SourceUnreachable, NotPermitted, UnsuitableSource.
    """
    client = connect(uri, timeout_ms)
    try:
        with log_if_slow(client, timeout_ms):
            client.admin.command("ping")  # authenticates: `hello` alone would not
        reply = hello(client)
        # A preference that no member satisfies fails here, not after the retries of each task.
        hello_of_preferred(client)
    except pymongo.errors.PyMongoError as error:
        raise translate_error(error, "Connecting to MongoDB") from error
    if reply.get("msg") == "isdbgrid":
        raise UnsuitableSource(
            "'uri' names a mongos, and changes are read from replica sets.",
            "Set 'shards.direct' after reading docs/concepts/topologies.md.",
        )
    if "setName" not in reply:
        raise UnsuitableSource(
            "The server is not a member of a replica set, so it has no oplog to read changes from.",
            "Start mongod with --replSet and run rs.initiate() once; one member is enough.",
        )
    return ReplicaSet(uri, timeout_ms, reply["setName"])
