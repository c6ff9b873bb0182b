"""A simulated replica set: what was written when, and what each of its members knows of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import bson
from bson.max_key import MaxKey
from bson.timestamp import Timestamp

from cdc.model import MAX_KEY, MIN_KEY, Namespace, resume_token

SELECTED = tuple(Namespace("shop", letter) for letter in "abcd")
OTHER = Namespace("shop", "tmp")
# The last key of all is MaxKey itself, which a document may have.
LAST_KEY = 5
ROW_OPS = ("insert", "update", "replace", "delete")
EMPTYING_OPS = ("drop", "rename")


def moment(number: int) -> Timestamp:
    return Timestamp(1 + number // 4, number % 4)


def number_of(time: Timestamp) -> int:
    return (time.time - 1) * 4 + time.inc


def encoded(key: int) -> bytes:
    return MAX_KEY if key == LAST_KEY else bson.encode({"_id": key})


def rank(bound: bytes) -> float:
    """Where a bound lies among the keys: MinKey before all, MaxKey at the last."""
    if bound == MIN_KEY:
        return -1
    value = bson.decode(bound)["_id"]
    return LAST_KEY if isinstance(value, MaxKey) else value


class Event(NamedTuple):
    op: str
    time: int
    position: str
    namespace: Namespace
    key: int | None = None
    before: int | None = None
    after: int | None = None
    to: Namespace | None = None


class Migrated(Event):
    """An insert with the mark of a migration: a stream has to be asked for it."""

    __slots__ = ()


class Collection(NamedTuple):
    """One incarnation; `documents` is never changed in place."""

    uuid: int
    documents: Mapping[int, int]


Write = tuple[Namespace, int, str]
Catalog = Mapping[Namespace, Collection]


@dataclass
class Deployment:
    """Member 0 is the primary. History is by time, without gaps; times are whole numbers."""

    events: list[list[Event]] = field(default_factory=lambda: [[]])
    catalogs: list[Catalog] = field(default_factory=lambda: [{}])
    applied: list[int] = field(default_factory=lambda: [0, 0, 0])
    term: int = 1
    _unique: int = 0

    @property
    def head(self) -> int:
        return len(self.catalogs) - 1

    @property
    def committed(self) -> int:
        """The majority's time: no failover takes back what is not after it."""
        return sorted(self.applied)[1]

    def between(self, after: int, upto: int) -> Iterator[Event]:
        for events in self.events[after + 1 : upto + 1]:
            yield from events

    # --- writes, each with a time of its own unless they are one transaction ---

    def write(self, writes: list[Write], transaction: bool) -> None:
        """Each to (namespace, key): an insert if the key is absent, else `how`."""
        for namespace in {namespace for namespace, _, _ in writes}:
            self.create(namespace)
        for group in [writes] if transaction else [[write] for write in writes]:
            catalog, events = dict(self.catalogs[-1]), list[Event]()
            for namespace, key, how in group:
                uuid, documents = catalog[namespace]
                documents = dict(documents)
                before, after = documents.pop(key, None), None
                op = "insert" if before is None else how
                if op != "delete":
                    after = documents[key] = self._next()
                catalog[namespace] = Collection(uuid, documents)
                at = (self.head + 1, len(events))
                position = _position(*at)
                events.append(Event(op, at[0], position, namespace, key, before, after))
            self._append(catalog, events)

    def create(self, namespace: Namespace) -> None:
        if namespace not in self.catalogs[-1]:
            catalog = {**self.catalogs[-1], namespace: Collection(self._next(), {})}
            self._append(catalog, [self._ddl("create", namespace)])

    def drop(self, namespace: Namespace) -> None:
        if namespace in self.catalogs[-1]:
            catalog = {n: c for n, c in self.catalogs[-1].items() if n != namespace}
            self._append(catalog, [self._ddl("drop", namespace)])

    def rename(self, source: Namespace, target: Namespace) -> None:
        """With dropTarget: what stood at the target is gone without an event of its own."""
        if source in self.catalogs[-1] and source != target:
            catalog = dict(self.catalogs[-1])
            catalog[target] = catalog.pop(source)
            self._append(catalog, [self._ddl("rename", source, target)])

    def out(self, target: Namespace, keys: frozenset[int]) -> None:
        """`$out`: another collection is filled and renamed onto the target."""
        self.create(OTHER)
        if keys:
            self.write([(OTHER, key, "update") for key in sorted(keys)], transaction=False)
        self.rename(OTHER, target)

    def clone(self, source: Namespace, target: Namespace) -> None:
        """`cloneCollectionAsCapped`: a new collection, and inserts that look like a migration's."""
        if source in self.catalogs[-1] and target not in self.catalogs[-1]:
            keys = sorted(self.catalogs[-1][source].documents)
            self.create(target)
            self.write([(target, key, "update") for key in keys], transaction=False)
            for time in range(self.head + 1 - len(keys), self.head + 1):
                self.events[time] = [Migrated(*event) for event in self.events[time]]

    def detour(self, namespace: Namespace, key: int) -> None:
        """Away, written to under a name that nobody selected, and back."""
        if namespace in self.catalogs[-1]:
            self.rename(namespace, OTHER)
            self.write([(OTHER, key, "update")], transaction=False)
            self.rename(OTHER, namespace)

    # --- members ---

    def replicate(self, member: int, count: int) -> None:
        self.applied[member] = min(self.head, self.applied[member] + count)

    def catch_up(self, member: int) -> None:
        self.applied[member] = self.head

    def fail_over(self, entries: int) -> None:
        """What the majority does not have is taken back, its times are given out again: so many of
        them by the new primary at once, for entries that are no events."""
        kept = self.committed + 1
        del self.catalogs[kept:], self.events[kept:]
        self.applied = [min(time, self.head) for time in self.applied]
        for _ in range(entries):
            self._append(self.catalogs[-1], [])
        self.applied[:2] = [self.head] * 2
        self.term += 1

    def _append(self, catalog: Catalog, events: list[Event]) -> None:
        self.catalogs.append(catalog)
        self.events.append(events)
        self.applied[0] = self.head

    def _ddl(self, op: str, namespace: Namespace, to: Namespace | None = None) -> Event:
        return Event(op, self.head + 1, _position(self.head + 1, 0), namespace, to=to)

    def _next(self) -> int:
        self._unique += 1
        return self._unique


def _position(time: int, index: int) -> str:
    """Like a real token: after the high-water mark of its time, in the order of a transaction."""
    at = moment(time)
    position = f"82{at.time:08X}{at.inc:08X}2B022C01{index:02X}296E5A1004"
    assert resume_token.high_water_mark(at) < position
    return position
