"""What stands behind the URI, and its live edge: the newest time that no failover can take back."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import pymongo.errors
from bson.timestamp import Timestamp
from pymongo.read_preferences import Nearest, Primary

from cdc.errors import UnsuitableSource
from cdc.model.offset import NEVER, Copying, Offset, Times
from cdc.model.selection import Selection
from cdc.model.split import KeyRange
from cdc.mongo.client import Client, Member, connect, hello, hello_of, hello_of_preferred, member
from cdc.mongo.codes import translated
from cdc.mongo.enumerator import Listing, listing, ranges
from cdc.mongo.refusals import logged_if_slow


@dataclass(frozen=True, slots=True)
class ReplicaSet:
    """A replica set as its driver's client sees it; `shard` (`name/host:port,…`) if it is one of a
    cluster that `uri` leads to."""

    uri: str
    timeout_ms: int
    name: str
    shard: str = ""

    @property
    def client(self) -> Client:
        return connect(self.uri, self.timeout_ms, self.shard)

    @property
    def shards(self) -> tuple[str, ...]:
        """The parts that have a change stream of their own, as splits name them."""
        return ("",)

    @property
    def clients(self) -> Mapping[str, Client]:
        """One for each of `shards`, and one without a name for what `uri` leads to."""
        return {"": self.client}

    def open(self, shard: str) -> Member:
        """A member for reading a split of that part."""
        return member(self.uri, self.timeout_ms, self.shard)

    def primary(self) -> Member:
        """The member that knows most; it answers also when it is the primary no more."""
        return member(self.uri, self.timeout_ms, self.shard, Primary())

    def listing(self, selection: Selection) -> Listing:
        return listing(self.client, selection)

    def ranges(self, copying: Copying, most: int, split_bytes: int) -> list[KeyRange]:
        """At most `most` adjacent ranges from the frontier on; see `enumerator.ranges`."""
        label = self.name if self.shard else ""
        return ranges(self.client, copying.namespace, copying.below, most, split_bytes, label)

    def tells(self, shard: str, event: Mapping[str, Any]) -> bool:
        """Whether a DDL event of that part is to be told, or another part tells it too."""
        return True

    def late(self, time: Timestamp) -> Times:
        """By shard, the times behind `time` of events that belong before it; see `Offset`."""
        return ()

    def current(self) -> ReplicaSet:
        """The source as it is at some moment after all that was read of it; itself, if its parts
        are the same."""
        return self

    @property
    def topology_time(self) -> Timestamp:
        """When shards joined or left last: never."""
        return NEVER

    def require_told(self, offset: Offset) -> None:
        """Raises HistoryLost if a part that is gone had more to tell than the offset says."""

    def live_edge(self, floor: Timestamp) -> Timestamp:
        """The newest majority-committed time that any member knows, but never below `floor`.

        A member that is down, recovering or behind only makes the answer older, never wrong.
        """
        return live_edge(self._hellos(), floor)

    def confirmed(self, found: Listing, patience: float) -> Timestamp | None:
        """A live edge at or after the listing's time; None if the majority does not have what the
        primary listed within `patience` seconds, or went on under another primary.

        Times alone would not do: what a deposed primary had at a time is rolled back, and the new
        one's time passes it.
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
    def unconfirmed(self) -> tuple[str, str]:
        """What to say, and to do, where `confirmed` stays None."""
        return (
            "The majority of the replica set does not keep up with its primary.",
            "Check that a majority of its members is up.",
        )

    def _hellos(self) -> Iterable[Mapping[str, Any]]:
        answers = (
            hello_of(self.uri, host, port or 27017) for host, port in sorted(self.client.nodes)
        )
        found = [answer for answer in answers if answer is not None]
        if not found:  # none known at the moment: let the driver look for one
            try:
                found = [hello(self.client, read_preference=Nearest())]
            except pymongo.errors.PyMongoError as error:
                raise translated(error, f"Asking replica set '{self.name}' for its time") from error
        return found


class OpTime(NamedTuple):
    """A time, and the term of the primary that gave it out."""

    time: Timestamp
    term: int


def majority(hello: Mapping[str, Any]) -> OpTime | None:
    """The newest majority-committed time a member knows; a recovering member's reply has none."""
    known = hello.get("lastWrite", {}).get("majorityOpTime", {})
    ts, term = known.get("ts"), known.get("t")
    return OpTime(ts, int(term)) if isinstance(ts, Timestamp) and term is not None else None


def live_edge(hellos: Iterable[Mapping[str, Any]], floor: Timestamp) -> Timestamp:
    """The largest majority time in replies to `hello`."""
    return max([floor, *(edge.time for hello in hellos if (edge := majority(hello)))])


def discover(uri: str, timeout_ms: int) -> ReplicaSet:
    """The replica set behind a URI.

    Raises BadOption, SourceUnreachable, NotPermitted, UnsuitableSource.
    """
    client = connect(uri, timeout_ms)
    try:
        with logged_if_slow(client, timeout_ms):
            client.admin.command("ping")  # authenticates: `hello` alone would not
        reply = hello(client)
        hello_of_preferred(client)  # now, rather than in every task, each for as long as it retries
    except pymongo.errors.PyMongoError as error:
        raise translated(error, "Connecting to MongoDB") from error
    if reply.get("msg") == "isdbgrid":
        raise UnsuitableSource(
            "'uri' leads to a mongos, and changes are read from replica sets.",
            "Set 'shards.direct', after reading what the README says of it.",
        )
    if "setName" not in reply:
        raise UnsuitableSource(
            "The server is not a member of a replica set, so it has no oplog to read changes from.",
            "Start mongod with --replSet and run rs.initiate() once; one member is enough.",
        )
    return ReplicaSet(uri, timeout_ms, reply["setName"])
