"""What stands behind the URI, and its live edge: the newest time that no failover can take back."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pymongo.errors
from bson.timestamp import Timestamp
from pymongo.read_preferences import Nearest

from cdc.errors import UnsuitableSource
from cdc.mongo.client import Client, connect, hello_of, translated


@dataclass(frozen=True, slots=True)
class ReplicaSet:
    """A replica set as its driver's client sees it."""

    uri: str
    timeout_ms: int
    name: str

    @property
    def client(self) -> Client:
        return connect(self.uri, self.timeout_ms)

    def live_edge(self, floor: Timestamp) -> Timestamp:
        """The newest majority-committed time that any member knows, but never below `floor`.

        A member that is down, recovering or behind only makes the answer older, never wrong.
        """
        return live_edge(self._hellos(), floor)

    def live_edge_from(self, time_seen: Timestamp, patience: float) -> Timestamp | None:
        """A live edge at or after `time_seen`, which some member has applied but the majority may
        not have yet; None if it takes longer than `patience` seconds."""
        deadline = time.monotonic() + patience
        while (edge := self.live_edge(Timestamp(0, 0))) < time_seen:
            if time.monotonic() > deadline:
                return None
            time.sleep(0.005)
        return edge

    def _hellos(self) -> Iterable[Mapping[str, Any]]:
        answers = (
            hello_of(self.uri, host, port or 27017) for host, port in sorted(self.client.nodes)
        )
        found = [answer for answer in answers if answer is not None]
        if not found:  # none known at the moment: let the driver look for one
            try:
                found = [self.client.admin.command("hello", read_preference=Nearest())]
            except pymongo.errors.PyMongoError as error:
                raise translated(error, f"Asking replica set '{self.name}' for its time") from error
        return found


def live_edge(hellos: Iterable[Mapping[str, Any]], floor: Timestamp) -> Timestamp:
    """The largest majority time in replies to `hello`; a recovering member's reply has none."""
    times = (hello.get("lastWrite", {}).get("majorityOpTime", {}).get("ts") for hello in hellos)
    return max([floor, *(time for time in times if isinstance(time, Timestamp))])


def discover(uri: str, timeout_ms: int) -> ReplicaSet:
    """The replica set behind a URI.

    Raises BadOption, SourceUnreachable, NotPermitted, UnsuitableSource.
    """
    client = connect(uri, timeout_ms)
    try:
        client.admin.command("ping")  # authenticates: `hello` alone would not
        hello = client.admin.command("hello")
    except pymongo.errors.PyMongoError as error:
        raise translated(error, "Connecting to MongoDB") from error
    if hello.get("msg") == "isdbgrid":
        raise UnsuitableSource(
            "'uri' leads to a mongos; this release reads replica sets.",
            "Run one pipeline per shard's replica set, or wait for sharded clusters.",
        )
    if "setName" not in hello:
        raise UnsuitableSource(
            "The server is not a member of a replica set, so it has no oplog to read changes from.",
            "Start mongod with --replSet and run rs.initiate() once; one member is enough.",
        )
    return ReplicaSet(uri, timeout_ms, hello["setName"])
