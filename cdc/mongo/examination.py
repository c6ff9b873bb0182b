"""What a run would meet, for those who only ask: sizes, strategies, privileges, problems.

It goes on after a problem where it can.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import pymongo.errors

from cdc.errors import CdcError, NotPermitted, TransientError
from cdc.model.selection import Namespace
from cdc.mongo import privileges
from cdc.mongo.cluster import Source
from cdc.mongo.codes import translated
from cdc.mongo.cuts import SINGLE, Choice, Size, chosen, size_of
from cdc.mongo.enumerator import Collection
from cdc.mongo.missing import missing
from cdc.mongo.oplog import Window, oplog_window
from cdc.mongo.preflight import Wanted, log_in, problems_of, required, shards_of
from cdc.mongo.privileges import Need, named


@dataclass(frozen=True, slots=True)
class Work:
    """One collection, about how large it is, and how it would be copied. All of it estimates.

    Over several `shards` the sizes are sums, in which orphans may be counted.
    """

    namespace: Namespace
    documents: int
    bytes: int
    size_by: str
    strategy: str
    reason: str
    splits: int
    images: bool
    shards: tuple[str, ...] = ("",)


@dataclass(frozen=True, slots=True)
class Examination:
    """What `examine` found out. `missing` is what matches no collection. `lacking` is None where
    nobody is logged in; `window` is the shortest of all shards, and None where the user may not
    know it. With a problem a run cannot succeed."""

    source: str
    shards: tuple[str, ...]
    database: str | None
    required: list[Need]
    optional: list[Need]
    lacking: list[Need] | None
    window: Window | None
    missing: list[str] = field(default_factory=list)
    work: list[Work] = field(default_factory=list)
    problems: list[CdcError] = field(default_factory=list)

    @property
    def needs(self) -> list[Need]:
        return [*self.required, *self.optional]


def examine(source: Source, wanted: Wanted, split_bytes: int) -> Examination:
    """Asks for everything that `check` asks for, and for sizes, strategies and the oplog's window.

    No document is read, but for the average of a hundred where collStats is refused. Raises
    SourceUnreachable and other passing errors.
    """
    log_in(source)
    problems: list[CdcError] = []
    collections: tuple[Collection, ...] = ()
    absent: list[str] = []
    needed = required(source, wanted)
    with _noted(problems, "Listing collections"), named(source.clients, needed):
        found = source.listing(wanted.selection)
        collections, absent = found.collections, missing(wanted.selection, found)
        told = {str(problem): problem for problem in problems_of(source, wanted, found)}
        problems += told.values()
    optional = [
        need
        for shard in source.shards
        for need in privileges.optional(_held_by(source, shard, collections), shard)
    ]
    work: list[Work] = []
    with _noted(problems, "Asking for sizes"):
        work += (_work(source, each, wanted.start.copies, split_bytes) for each in collections)
    return Examination(
        source.name,
        source.shards,
        wanted.selection.database,
        needed,
        optional,
        privileges.missing(source.clients, [*needed, *optional]),
        _shortest_window(source),
        absent,
        work,
        problems,
    )


def _held_by(source: Source, shard: str, collections: tuple[Collection, ...]) -> list[Namespace]:
    return [each.namespace for each in collections if shard in shards_of(source, each)]


@contextmanager
def _noted(problems: list[CdcError], attempted: str) -> Iterator[None]:
    """What is raised inside becomes a problem, unless it may pass, or only repeats a refusal."""
    try:
        yield
    except (pymongo.errors.PyMongoError, CdcError) as error:
        problem = error if isinstance(error, CdcError) else translated(error, attempted)
        if isinstance(problem, TransientError):
            raise problem from error
        if not any(isinstance(known, NotPermitted) for known in problems):
            problems.append(problem)


class _Part(NamedTuple):
    """What one shard holds of a collection, and how that would be cut."""

    shard: str
    size: Size
    choice: Choice
    cuts: int = 0

    @property
    def reason(self) -> str:
        return f"{self.shard}: {self.choice.reason}" if self.shard else self.choice.reason


def _work(source: Source, collection: Collection, copies: bool, split_bytes: int) -> Work:
    shards = shards_of(source, collection)
    parts = [_part(source, shard, collection.namespace, copies, split_bytes) for shard in shards]
    # The largest that is cut in some way speaks for all that are.
    spoken: dict[str, _Part] = {}
    for part in sorted(parts, key=lambda part: part.size.bytes, reverse=True):
        spoken.setdefault(part.choice.strategy, part)
    return Work(
        collection.namespace,
        sum(part.size.documents for part in parts),
        sum(part.size.bytes for part in parts),
        "; ".join(dict.fromkeys(part.size.origin for part in parts)),
        ", ".join(spoken),
        "; ".join(part.reason for part in spoken.values()),
        1 + sum(part.cuts for part in parts) if copies else 0,
        collection.has_images,
        shards,
    )


def _part(
    source: Source, shard: str, namespace: Namespace, copies: bool, split_bytes: int
) -> _Part:
    client = source.clients[shard]
    size = size_of(client, namespace)
    if not copies:
        return _Part(shard, size, Choice("none", "in this mode nothing is copied"))
    choice = chosen(client, namespace, size, split_bytes)
    cuts = 0 if choice.strategy == SINGLE else math.ceil(size.bytes / split_bytes) - 1
    return _Part(shard, size, choice, cuts)


def _shortest_window(source: Source) -> Window | None:
    """None if that of any shard is unknown."""
    found = [oplog_window(source.clients[shard], shard) for shard in source.shards]
    known = [window for window in found if window is not None]
    return min(known, key=lambda window: window.seconds) if len(known) == len(found) else None
