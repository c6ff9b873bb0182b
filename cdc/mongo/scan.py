"""One pass of a server over a key range of one incarnation of a collection."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import bson
import pymongo.errors
from bson import ObjectId
from bson.max_key import MaxKey
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp

from cdc.errors import TransientError
from cdc.model.excerpt import Excerpt
from cdc.model.selection import Namespace
from cdc.model.split import MAX_KEY, SnapshotSplit, key_of
from cdc.mongo import excerpts
from cdc.mongo.batch import Batch
from cdc.mongo.client import CONFIRM_MS, STALL_SECONDS, Member
from cdc.mongo.codes import FIELD_UNKNOWN, INCARNATION_GONE, SNAPSHOT_REFUSED

_BATCH = 10_000


class Documents(NamedTuple):
    """Raw documents as of a split's time; or, with `exact_from`, each of them in a state between
    that time and `exact_from` (only where before-images are missing). `is_void`: that was not all
    of them, and the rest is not to be had."""

    raw: Sequence[bytes]
    exact_from: Timestamp | None = None
    is_void: bool = False


class Void(Exception):
    """The split's incarnation of the collection is no longer there under its name."""


class TimeUnreadable(Exception):
    """The state of the split's time is not to be had any more."""


def no_version() -> None:
    """A replica set owns what it holds."""


class Version(NamedTuple):
    """What a read of a shard carries for it to leave out what it did not own: the distribution of
    the collection that is meant, and the newest of the shard's chunks. A cluster whose feature
    compatibility version is 4.4 keeps no timestamps."""

    epoch: ObjectId
    timestamp: Timestamp | None
    newest: Timestamp

    @property
    def document(self) -> dict[str, Any]:
        return {"e": self.epoch, "t": self.timestamp, "v": self.newest}

    @property
    def array(self) -> list[Any]:
        """As it is taken before 6.0."""
        return [self.newest, self.epoch, *([self.timestamp] if self.timestamp else [])]


class Rest:
    """What is still to be read of a split: from `lower`, without `lower` itself once `begun`.

    `version` gives that of a shard's sharded collection, else None. `names_it`: no server was found
    yet that does not know `collectionUUID`.
    """

    def __init__(
        self, split: SnapshotSplit, version: Callable[[], Version | None] = no_version
    ) -> None:
        self.split, self.version = split, version
        self.lower = split.range.lower
        self.begun = False
        self.names_it = True

    def passed(self, documents: Sequence[bytes]) -> None:
        self.lower, self.begun = key_of(documents[-1]), True

    @property
    def is_empty(self) -> bool:
        return self.begun and self.lower == MAX_KEY

    def without_lower(self, documents: Sequence[bytes]) -> Sequence[bytes]:
        """A resumed range begins with the last document already handed out, if it still exists."""
        if self.begun and documents and key_of(documents[0]) == self.lower:
            return documents[1:]
        return documents


def scan(
    member: Member, rest: Rest, concern: dict[str, Any]
) -> Iterator[tuple[Sequence[bytes], Timestamp]]:
    """Non-empty batches of raw documents in key order, each with its reply's operation time.

    The range is given as index bounds: comparison operators are bracketed by BSON type and would
    miss documents whose `_id` is of another type.

    Raises Void once a majority confirms that the incarnation is gone, TransientError for a member
    that does not come to the split's time, and the driver's errors.
    """
    split = rest.split
    _await(member, split)
    bounds: dict[str, Any] = {"min": RawBSONDocument(rest.lower), "hint": {"_id": 1}}
    if not split.range.is_last:
        bounds["max"] = RawBSONDocument(split.range.upper)
    try:
        if rest.lower != MAX_KEY:  # there is no range above it (51175)
            yield from _find(member, rest, {**bounds, "readConcern": concern})
        if split.range.is_last:
            # A range without `max` ends below a document whose _id is MaxKey itself.
            yield from _find(member, rest, {"readConcern": concern}, {"_id": MaxKey()})
    except Void:
        _confirm(member, rest)
        raise


def _await(member: Member, split: SnapshotSplit) -> None:
    """Waits for a member that lags, as a read at that time would; but that would also wait for ever
    for one that is cut off from the others."""
    concern = {"level": "majority", "afterClusterTime": split.at}
    probe = {"find": split.namespace.coll, **_ANY, "readConcern": concern, "maxTimeMS": CONFIRM_MS}
    reached, moved = None, time.monotonic()
    while True:
        try:
            member.command(split.namespace.db, probe)
            return
        except pymongo.errors.ExecutionTimeout as late:
            now, written = time.monotonic(), member.hello()["lastWrite"]["opTime"]["ts"]
            if written != reached:
                reached, moved = written, now
            elif now - moved > STALL_SECONDS:
                raise TransientError(
                    f"Copying {split.namespace} at {split.at}: the server has not passed {reached}"
                    f" for {STALL_SECONDS:.0f} s.",
                    "Check that a majority of the replica set is up.",
                ) from late


def _find(
    member: Member, rest: Rest, command: dict[str, Any], condition: dict[str, Any] | None = None
) -> Iterator[tuple[Sequence[bytes], Timestamp]]:
    split = rest.split
    asked = excerpts.of_find(Excerpt.parse(split.excerpt), condition)
    reply = opened(member, rest, {"batchSize": _BATCH, **command, **asked})
    batch = Batch.of(reply)
    try:
        while True:
            documents = rest.without_lower(batch.documents)
            if documents:
                yield documents, reply["operationTime"]
            if not batch.cursor:
                return
            more = {"getMore": batch.cursor, "collection": split.namespace.coll}
            with _void_if_gone():
                reply = member.command(split.namespace.db, {**more, "batchSize": _BATCH})
            batch = Batch.of(reply)
    finally:
        if batch.cursor:
            member.kill_cursor(str(split.namespace), batch.cursor)


def opened(member: Member, rest: Rest, command: dict[str, Any]) -> RawBSONDocument:
    """The first reply of a find on the split's incarnation under the split's name.

    Raises Void if this member does not have it (a rollback may give it back), and the driver's
    errors. By name alone, a read of a collection dropped since would answer with zero rows and ok.
    """
    with _void_if_gone():
        return _opened(member, rest, command)


@contextmanager
def _void_if_gone() -> Iterator[None]:
    try:
        yield
    except pymongo.errors.OperationFailure as error:
        if error.code not in INCARNATION_GONE:
            raise
        raise Void from error


def _opened(member: Member, rest: Rest, command: dict[str, Any]) -> RawBSONDocument:
    split, version = rest.split, rest.version()
    by_name = {"find": split.namespace.coll, **command}
    if rest.names_it:
        named = {**by_name, "collectionUUID": bson.Binary(split.uuid, 4)}
        try:
            versioned = {"shardVersion": version.document} if version else {}
            return member.command(split.namespace.db, {**named, **versioned})
        except pymongo.errors.OperationFailure as error:
            if not _is_of_the_name(error.code, member, split.namespace):
                raise
            rest.names_it = False
    if version is None:
        return _by_uuid(member, split, command)
    # By UUID, a shard does not leave out what it does not own. A collection gets its name once: one
    # that is found under it before and behind the read is the one that was read.
    _by_uuid(member, split, _ANY)
    reply = member.command(split.namespace.db, {**by_name, "shardVersion": version.array})
    _by_uuid(member, split, _ANY)
    return reply


_ANY = {"limit": 1, "singleBatch": True, "projection": {"_id": 1}}


# The server takes no `collectionUUID`: it does not know it, or it does not take the version of a
# shard as a document (TypeMismatch), which is as old.
_UNNAMED = FIELD_UNKNOWN | {14}
_NOT_ENABLED = 72  # nor does 6.0 with a feature compatibility version of 5.0; see SNAPSHOT_REFUSED


def _is_of_the_name(code: int | None, member: Member, namespace: Namespace) -> bool:
    """Whether a find was refused because it named the incarnation."""
    if code != _NOT_ENABLED:
        return code in _UNNAMED
    probe = {"find": namespace.coll, "collectionUUID": bson.Binary(bytes(16), 4), **_ANY}
    try:
        member.command(namespace.db, probe)
    except pymongo.errors.OperationFailure as error:
        return error.code == _NOT_ENABLED
    return False


def _by_uuid(member: Member, split: SnapshotSplit, command: dict[str, Any]) -> RawBSONDocument:
    """A find by UUID follows a rename; one that has begun is killed by it (175)."""
    find = {"find": bson.Binary(split.uuid, 4), **command}
    reply = member.command(split.namespace.db, find)
    if reply["cursor"]["ns"] != str(split.namespace):
        raise Void
    return reply


def _confirm(member: Member, rest: Rest) -> None:
    """Waits until the drop or rename that a refused read has met is majority-committed.

    One that is rolled back instead would never be told by an event, and the range would be lost:
    then this fails with an error after which the rest is read again.
    """
    namespace = rest.split.namespace
    concern = {"level": "majority", "afterClusterTime": member.newest_known()}
    try:
        opened(member, rest, {**_ANY, "readConcern": concern, "maxTimeMS": CONFIRM_MS})
    except Void:
        return
    except pymongo.errors.ExecutionTimeout as late:
        raise TransientError(
            f"Copying {namespace}: its drop is not confirmed by a majority yet.",
            "Check that a majority of the replica set is up.",
        ) from late
    raise TransientError(f"Copying {namespace}: its drop was rolled back.")


def reads_at_a_time(member: Member, namespace: Namespace) -> bool:
    """Whether the server gives reads at a cluster time (5.0 and later).

    A member that lags refuses a time with the same code. None lags behind its own operation time,
    so a server that refuses that too refuses every time.
    """
    reached = member.command("admin", {"ping": 1})["operationTime"]
    probe = {"find": namespace.coll, "limit": 1, "singleBatch": True, "maxTimeMS": 10_000}
    concern = {"level": "snapshot", "atClusterTime": reached}
    try:
        member.command(namespace.db, {**probe, "readConcern": concern})
    except pymongo.errors.OperationFailure as refused:
        return refused.code != SNAPSHOT_REFUSED
    return True
