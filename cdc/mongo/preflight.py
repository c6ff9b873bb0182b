"""What can be known before a run begins: whether it could succeed, and about how much it has to do.

Whoever starts a run calls `check`, which raises the first problem. `examine` is for those who only
ask: it goes on after a problem where it can.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import bson
import pymongo.errors
from bson.timestamp import Timestamp

from cdc.errors import (
    BadOption,
    CdcError,
    ImagesMissing,
    NotPermitted,
    TransientError,
    UnsuitableSource,
)
from cdc.model import timestamp
from cdc.model.selection import Namespace, Selection
from cdc.mongo import privileges
from cdc.mongo.client import FIELD_UNKNOWN, Client, translated
from cdc.mongo.cluster import Source
from cdc.mongo.cuts import SINGLE, Choice, Size, chosen, size_of
from cdc.mongo.enumerator import Collection, Listing
from cdc.mongo.privileges import OPLOG, Need, named, on


class Wanted(NamedTuple):
    """What a run asks for. Without `follows` it reads no changes; without `copies` nothing else;
    `start` is the first moment to read changes of, or None."""

    selection: Selection
    images_required: bool = False
    is_new: bool = True
    follows: bool = True
    copies: bool = True
    start: Timestamp | None = None


def check(source: Source, wanted: Wanted) -> Listing:
    """The collections that a run finds. With a checkpoint (`is_new` False) a collection may be
    gone, or not be there yet, for good reason.

    Raises NotPermitted, which names what the user lacks; ImagesMissing; UnsuitableSource if a
    collection is missing that a new run begins with; BadOption or HistoryLost for `start`.
    """
    _log_in(source)
    with named(source.clients, _required(source, wanted)):
        found = source.listing(wanted.selection)
    for problem in _problems(source, wanted, found):
        raise problem
    return found


def shards_of(source: Source, collection: Collection) -> tuple[str, ...]:
    """The shards that may hold some of it."""
    return (collection.shard,) if collection.shard else source.shards


def _log_in(source: Source) -> None:
    """A user may be unknown to a shard, or its address to this machine: here it is said which."""
    for shard, client in source.clients.items():
        try:
            client.admin.command("ping")
        except pymongo.errors.PyMongoError as error:
            raise translated(error, f"Connecting to {shard or 'MongoDB'}") from error


def _required(source: Source, wanted: Wanted) -> list[Need]:
    return privileges.required(wanted.selection, source.shards)


def _problems(source: Source, wanted: Wanted, found: Listing) -> Iterator[CdcError]:
    yield from _outdated(source)
    yield from _unreadable(source, wanted)
    if wanted.is_new:
        yield from _absent(wanted.selection, found)
    without = [c.namespace for c in found.collections if not c.has_images]
    if wanted.images_required and without:
        yield ImagesMissing(
            f"{', '.join(map(str, without))} does not record pre- and post-images.",
            f"Run db.getSiblingDB('{without[0].db}').runCommand({{collMod: '{without[0].coll}',"
            " changeStreamPreAndPostImages: {enabled: true}}), or set images to auto.",
        )
    if wanted.follows:
        yield from _unfollowable(source, wanted, found.time)


def _outdated(source: Source) -> Iterator[CdcError]:
    """Before 6.0 a find does not take both the version of a shard's chunks and an incarnation."""
    probe = {"find": "transactions", "collectionUUID": bson.Binary(bytes(16), 4), "limit": 1}
    for shard in filter(None, source.shards):
        try:
            source.clients[shard]["config"].command(probe)
        except pymongo.errors.PyMongoError as error:
            if getattr(error, "code", None) in FIELD_UNKNOWN:
                yield UnsuitableSource(
                    f"Shard {shard} is of a version before 6.0, whose shards cannot be read"
                    " directly.",
                    "Upgrade the cluster to 6.0 or later.",
                )
                return


def _unreadable(source: Source, wanted: Wanted) -> Iterator[CdcError]:
    """Asks for what a run may come to only later: the history of the chunks, or the list of a
    shard that a database moves to."""
    needs = _required(source, wanted)
    try:
        with named(source.clients, needs):
            for need in needs:
                _ask(source.clients[need.shard], need)
    except CdcError as error:
        yield error


def _ask(client: Client, need: Need) -> None:
    try:
        if need.action == "listCollections":
            client[need.db or "admin"].command("listCollections", filter={"name": ""})
        elif need.action == "find" and need.coll:
            client[need.db][need.coll].find_one({}, {"_id": 1})
    except pymongo.errors.PyMongoError as error:
        raise translated(error, f"Asking for {need}{on([need.shard])}") from error


def _absent(selection: Selection, found: Listing) -> Iterator[CdcError]:
    missing = [str(name) for name in selection.names if found.find(name) is None]
    if missing:
        yield UnsuitableSource(
            f"There is no collection {', '.join(missing)}.",
            "Check 'collections', and that the user may list it; create it if it comes later.",
        )
    if not missing and not found.collections:
        yield UnsuitableSource(
            f"No collection matches '{selection.text}'.", "The expression has to match db.coll."
        )


def _unfollowable(source: Source, wanted: Wanted, seen: Timestamp) -> Iterator[CdcError]:
    start = wanted.start
    if start is not None and start > source.live_edge(seen):
        yield BadOption("Option 'start' lies in the future of the server.", "Set it back.")
        return
    for shard in source.shards:
        try:
            with named(source.clients, _required(source, wanted)):
                _open_stream(source.clients[shard], wanted.selection, start, shard)
        except CdcError as error:
            yield error


def _open_stream(client: Client, selection: Selection, start: Timestamp | None, shard: str) -> None:
    """Opens a stream as a run would. One in the past is asked for an event at once: the server
    looks only then whether its oplog reaches back so far."""
    scope = client if selection.database is None else client[selection.database]
    since = None if start is None else timestamp.before(start)
    try:
        scope.watch(start_at_operation_time=since, batch_size=1).close()
    except pymongo.errors.PyMongoError as error:
        where = f"database {selection.database}" if selection.database else "the deployment"
        where += on([shard])
        raise translated(error, f"Reading changes of {where}") from error


# --- about how much there is to do ---------------------------------------------------------------


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
class Window:
    """How far the oplog of the member that answered reaches back, who told, and of which shard."""

    first: Timestamp
    last: Timestamp
    told_by: str
    shard: str = ""

    @property
    def seconds(self) -> int:
        return self.last.time - self.first.time


@dataclass(frozen=True, slots=True)
class Examination:
    """What `examine` found out. `lacking` is None where nobody is logged in; `window` is the
    shortest of all shards, and None where the user may not know it. With a problem a run cannot
    succeed."""

    source: str
    shards: tuple[str, ...]
    database: str | None
    required: list[Need]
    optional: list[Need]
    lacking: list[Need] | None
    window: Window | None
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
    _log_in(source)
    problems: list[CdcError] = []
    collections: tuple[Collection, ...] = ()
    required = _required(source, wanted)
    with _noted(problems, "Listing collections"), named(source.clients, required):
        found = source.listing(wanted.selection)
        collections = found.collections
        told = {str(problem): problem for problem in _problems(source, wanted, found)}
        problems += told.values()
    optional = [
        need
        for shard in source.shards
        for need in privileges.optional(_held_by(source, shard, collections), shard)
    ]
    work: list[Work] = []
    with _noted(problems, "Asking for sizes"):
        work += (_work(source, each, wanted.copies, split_bytes) for each in collections)
    return Examination(
        source.name,
        source.shards,
        wanted.selection.database,
        required,
        optional,
        privileges.missing(source.clients, [*required, *optional]),
        _shortest_window(source),
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


def oplog_window(client: Client, shard: str = "") -> Window | None:
    """From the oplog itself, or from serverStatus; None if the user may read neither."""
    for ask in (_by_oplog, _by_status):
        try:
            return Window(*ask(client), shard)
        except pymongo.errors.PyMongoError as error:
            problem = translated(error, "Asking for the oplog's window")
            if isinstance(problem, TransientError):
                raise problem from error
    return None


def _by_oplog(client: Client) -> tuple[Timestamp, Timestamp, str]:
    entries = client[OPLOG.db][OPLOG.coll]
    first, last = (
        next(entries.find({}, {"ts": 1}).sort("$natural", order).limit(1))["ts"]
        for order in (1, -1)
    )
    return first, last, str(OPLOG)


def _by_status(client: Client) -> tuple[Timestamp, Timestamp, str]:
    told = client.admin.command({"serverStatus": 1, "oplog": 1})["oplog"]
    return told["earliestOptime"], told["latestOptime"], "serverStatus"
