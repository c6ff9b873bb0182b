"""Estimate of a run before it starts: sizes, strategies, privileges, problems.

The examination continues after a problem where that is possible.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import pymongo.errors

from cdc.errors import CdcError, NotPermitted, TransientError
from cdc.model import Namespace
from cdc.mongo.collections import (
    Choice,
    Collection,
    Size,
    choose_strategy,
    count_splits,
    estimate_size,
)
from cdc.mongo.connection import Need, name_missing_needs, privileges, translate_error
from cdc.mongo.inspect.preflight import Wanted, find_problems, list_needs, log_in, shards_of
from cdc.mongo.plan import missing_items
from cdc.mongo.topology import Source, Window, oplog_window


@dataclass(frozen=True, slots=True)
class Work:
    """The estimated size of one collection, and how it would be copied.

    For several `shards` the sizes are sums, which may include orphans.
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
    """The result of `examine`.

    Attributes:
        source: the name of the source.
        shards: its shards; one without a name for a replica set.
        database: the only database with selected collections; None if there may be several.
        required: the privileges that a run needs.
        optional: the privileges that a run can do without, but that improve it.
        lacking: the needed privileges that the user lacks; None if nobody is logged in.
        window: the shortest oplog window of all shards; None if the user may not read one.
        missing: the names and expressions that match no collection.
        work: the estimate of each collection.
        problems: the errors with which a run would fail.
        why_streams: why changes are read by change streams; None if they are read from the oplog.
        requires_oplog: changes that the oplog does not have end the run.
        has_oplog: False for a router: then window and split points of the server do not exist.
    """

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
    why_streams: str | None = None
    requires_oplog: bool = False
    has_oplog: bool = True

    @property
    def needs(self) -> list[Need]:
        return [*self.required, *self.optional]


def examine(source: Source, wanted: Wanted, split_bytes: int) -> Examination:
    """Check the source as `check` does, and estimate sizes, strategies and the oplog window.

    It reads no documents. Only if the server refuses collStats, it reads a hundred of a collection
    for their average size. Raises SourceUnreachable and other transient errors.
    """
    log_in(source)
    problems: list[CdcError] = []
    collections: tuple[Collection, ...] = ()
    absent: list[str] = []
    needed = list_needs(source, wanted)
    with (
        _collect_errors(problems, "Listing collections"),
        name_missing_needs(source.clients, needed),
    ):
        listing = source.list_collections(wanted.selection)
        collections, absent = listing.collections, missing_items(wanted.selection, listing)
        distinct = {str(problem): problem for problem in find_problems(source, wanted, listing)}
        problems += distinct.values()
    optional = [
        need
        for shard in source.shards
        for need in privileges.optional_needs(
            _namespaces_on(source, shard, collections), shard, source.has_oplog
        )
    ]
    work: list[Work] = []
    with _collect_errors(problems, "Reading the sizes of collections"):
        copies = wanted.start.copies
        work += (_estimate_work(source, each, copies, split_bytes) for each in collections)
    return Examination(
        source.name,
        source.shards,
        wanted.selection.database,
        needed,
        optional,
        privileges.missing_needs(source.clients, [*needed, *optional]),
        _shortest_window(source),
        absent,
        work,
        problems,
        has_oplog=source.has_oplog,
    )


def _namespaces_on(
    source: Source, shard: str, collections: tuple[Collection, ...]
) -> list[Namespace]:
    return [each.namespace for each in collections if shard in shards_of(source, each)]


@contextmanager
def _collect_errors(problems: list[CdcError], attempted: str) -> Iterator[None]:
    """Append an error raised in this context to the problems.

    A transient error is raised. An error after a known lack of privileges is dropped: it most
    likely has the same cause.
    """
    try:
        yield
    except (pymongo.errors.PyMongoError, CdcError) as error:
        problem = error if isinstance(error, CdcError) else translate_error(error, attempted)
        if isinstance(problem, TransientError):
            raise problem from error
        if not any(isinstance(known, NotPermitted) for known in problems):
            problems.append(problem)


class _Part(NamedTuple):
    """A collection's documents on one shard, and how they would be cut into splits."""

    shard: str
    size: Size
    choice: Choice
    cuts: int = 0

    @property
    def reason(self) -> str:
        return f"{self.shard}: {self.choice.reason}" if self.shard else self.choice.reason


def _estimate_work(source: Source, collection: Collection, copies: bool, split_bytes: int) -> Work:
    shards, namespace = shards_of(source, collection), collection.namespace
    parts = [_estimate_part(source, shard, namespace, copies, split_bytes) for shard in shards]
    # For each strategy only the reason of the largest part is reported.
    largest: dict[str, _Part] = {}
    for part in sorted(parts, key=lambda part: part.size.bytes, reverse=True):
        largest.setdefault(part.choice.strategy, part)
    return Work(
        collection.namespace,
        sum(part.size.documents for part in parts),
        sum(part.size.bytes for part in parts),
        "; ".join(dict.fromkeys(part.size.origin for part in parts)),
        ", ".join(largest),
        "; ".join(part.reason for part in largest.values()),
        1 + sum(part.cuts for part in parts) if copies else 0,
        collection.has_images,
        shards,
    )


def _estimate_part(
    source: Source, shard: str, namespace: Namespace, copies: bool, split_bytes: int
) -> _Part:
    client = source.clients[shard]
    size = estimate_size(client, namespace)
    if not copies:
        return _Part(shard, size, Choice("none", "this mode copies nothing"))
    choice = choose_strategy(client, namespace, size, split_bytes)
    cuts = count_splits(choice.strategy, size, split_bytes) - 1
    return _Part(shard, size, choice, cuts)


def _shortest_window(source: Source) -> Window | None:
    """Return the shortest oplog window; None if that of any shard is unknown."""
    of_shards = [oplog_window(source.clients[shard], shard) for shard in source.shards]
    known = [window for window in of_shards if window is not None]
    return min(known, key=lambda window: window.seconds) if len(known) == len(of_shards) else None
