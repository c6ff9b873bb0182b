"""A replica set as a source, and its live edge.

The live edge is the newest cluster time that no failover can roll back.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import pymongo.errors
from bson.timestamp import Timestamp
from pymongo.read_preferences import Nearest, Primary

from cdc.model import NEVER, Copying, KeyRange, Selection
from cdc.mongo.collections import Listing, list_collections, ranges
from cdc.mongo.connection import (
    UNLIMITED,
    Client,
    Member,
    Pace,
    connect,
    each_member,
    hello,
    hello_of,
    member,
    translate_error,
)
from cdc.mongo.topology.source import OnePart


@dataclass(frozen=True, slots=True)
class ReplicaSet(OnePart):
    """A replica set, as the driver's client sees it.

    Attributes:
        uri: the option `uri`.
        timeout_ms: milliseconds to look for a server.
        name: the name of the source: that of the set. Reading does not need it.
        shard: `name/host:port,…` if it is a shard of the cluster that `uri` names.
        comment: the comment of each cursor.
        pace: the pace of all reads.
    """

    uri: str
    timeout_ms: int
    name: str
    shard: str = ""
    comment: str = ""
    pace: Pace = UNLIMITED

    @property
    def client(self) -> Client:
        return connect(self.uri, self.timeout_ms, self.shard)

    @property
    def clients(self) -> Mapping[str, Client]:
        return {"": self.client}

    def each_member(self) -> Iterator[tuple[str, Client]]:
        return (("", member) for member in each_member(self.client, self.uri))

    @property
    def names_one_member(self) -> bool:
        return bool(self.client.topology_description.topology_type_name == "Single")

    def configure(self, comment: str, pace: Pace) -> Self:
        return replace(self, comment=comment, pace=pace)

    def open(self, shard: str) -> Member:
        """Return the member that the read preference of `uri` selects now."""
        opened = member(self.uri, self.timeout_ms, self.shard)
        return opened.configure(self.comment, self.pace)

    def primary(self) -> Member:
        """Return the primary, which knows most. It goes on answering when it has stepped down."""
        return member(self.uri, self.timeout_ms, self.shard, Primary())

    def list_collections(self, selection: Selection) -> Listing:
        return list_collections(self.client, selection)

    def ranges(self, copying: Copying, most: int, split_bytes: int) -> list[KeyRange]:
        """Return at most `most` adjacent ranges from the frontier on, see `enumerator.ranges`."""
        label = self.name if self.shard else ""
        return ranges(self.client, copying, most, split_bytes, label)

    def live_edge(self, floor: Timestamp) -> Timestamp:
        """Return the newest majority-committed time that any member knows, at least `floor`.

        A member that is down, recovering or lagging only makes the result older, never wrong.
        """
        return live_edge(self._hellos(), floor)

    def present(self) -> Timestamp:
        return self.live_edge(NEVER)

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
