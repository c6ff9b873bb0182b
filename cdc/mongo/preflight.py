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
from cdc.mongo.client import Client, translated
from cdc.mongo.cluster import Source
from cdc.mongo.cuts import SINGLE, Choice, chosen, size_of
from cdc.mongo.enumerator import Collection, Listing
from cdc.mongo.privileges import OPLOG, Need, named
from cdc.mongo.topology import ReplicaSet


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
    with named(source.client, wanted.selection):
        found = source.listing(wanted.selection)
    for problem in _problems(source, wanted, found):
        raise problem
    return found


def _problems(source: Source, wanted: Wanted, found: Listing) -> Iterator[CdcError]:
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
    for part in source.replica_sets:
        try:
            with named(part.client, wanted.selection):
                _open_stream(part.client, wanted.selection, start)
        except CdcError as error:
            yield error


def _open_stream(client: Client, selection: Selection, start: Timestamp | None) -> None:
    """Opens a stream as a run would. One in the past is asked for an event at once: the server
    looks only then whether its oplog reaches back so far."""
    scope = client if selection.database is None else client[selection.database]
    since = None if start is None else timestamp.before(start)
    try:
        scope.watch(start_at_operation_time=since, batch_size=1).close()
    except pymongo.errors.PyMongoError as error:
        where = f"database {selection.database}" if selection.database else "the deployment"
        raise translated(error, f"Reading changes of {where}") from error


# --- about how much there is to do ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Work:
    """One collection, about how large it is, and how it would be copied. All of it estimates."""

    namespace: Namespace
    documents: int
    bytes: int
    size_by: str
    strategy: str
    reason: str
    splits: int
    images: bool


@dataclass(frozen=True, slots=True)
class Window:
    """How far the oplog of the member that answered reaches back, and who told."""

    first: Timestamp
    last: Timestamp
    told_by: str

    @property
    def seconds(self) -> int:
        return self.last.time - self.first.time


@dataclass(frozen=True, slots=True)
class Examination:
    """What `examine` found out. `lacking` is None where nobody is logged in; `window` is None where
    the user may not know it. With a problem a run cannot succeed."""

    source: str
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


def examine(source: ReplicaSet, wanted: Wanted, split_bytes: int) -> Examination:
    """Asks for everything that `check` asks for, and for sizes, strategies and the oplog's window.

    No document is read, but for the average of a hundred where collStats is refused. Raises
    SourceUnreachable and other passing errors.
    """
    client, problems = source.client, list[CdcError]()
    collections: tuple[Collection, ...] = ()
    with _noted(problems, "Listing collections"), named(client, wanted.selection):
        found = source.listing(wanted.selection)
        collections = found.collections
        problems += _problems(source, wanted, found)
    required = privileges.required(wanted.selection)
    optional = privileges.optional(each.namespace for each in collections)
    work: list[Work] = []
    with _noted(problems, "Asking for sizes"):
        work += (_work(client, each, wanted.copies, split_bytes) for each in collections)
    return Examination(
        source.name,
        wanted.selection.database,
        required,
        optional,
        privileges.missing(client, [*required, *optional]),
        oplog_window(client),
        work,
        problems,
    )


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


def _work(client: Client, collection: Collection, copies: bool, split_bytes: int) -> Work:
    namespace = collection.namespace
    size = size_of(client, namespace)
    choice, splits = Choice("none", "in this mode nothing is copied"), 0
    if copies:
        choice = chosen(client, namespace, size, split_bytes)
        splits = 1 if choice.strategy == SINGLE else math.ceil(size.bytes / split_bytes)
    return Work(namespace, *size, *choice, splits, collection.has_images)


def oplog_window(client: Client) -> Window | None:
    """From the oplog itself, or from serverStatus; None if the user may read neither."""
    for ask in (_by_oplog, _by_status):
        try:
            return ask(client)
        except pymongo.errors.PyMongoError as error:
            problem = translated(error, "Asking for the oplog's window")
            if isinstance(problem, TransientError):
                raise problem from error
    return None


def _by_oplog(client: Client) -> Window:
    entries = client[OPLOG.db][OPLOG.coll]
    first, last = (
        next(entries.find({}, {"ts": 1}).sort("$natural", order).limit(1))["ts"]
        for order in (1, -1)
    )
    return Window(first, last, str(OPLOG))


def _by_status(client: Client) -> Window:
    told = client.admin.command({"serverStatus": 1, "oplog": 1})["oplog"]
    return Window(told["earliestOptime"], told["latestOptime"], "serverStatus")
