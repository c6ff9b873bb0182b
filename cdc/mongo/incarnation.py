"""Reads of one incarnation of a collection, whatever stands under its name meanwhile; of a shard,
no more than it owned."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import bson
import pymongo.errors
from bson import ObjectId
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp

from cdc.model.selection import Namespace
from cdc.model.split import MAX_KEY, SnapshotSplit, key_of
from cdc.mongo.client import Member
from cdc.mongo.codes import FIELD_UNKNOWN, INCARNATION_GONE

# Any document, to see whether there is an answer.
ANY = {"limit": 1, "singleBatch": True, "projection": {"_id": 1}}


class Void(Exception):
    """The split's incarnation of the collection is no longer there under its name."""


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


def no_version() -> None:
    """A replica set owns what it holds."""


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


def opened(member: Member, rest: Rest, command: dict[str, Any]) -> RawBSONDocument:
    """The first reply of a find on the split's incarnation under the split's name.

    Raises Void if this member does not have it (a rollback may give it back), and the driver's
    errors. By name alone, a read of a collection dropped since would answer with zero rows and ok.
    """
    with void_if_gone():
        return _opened(member, rest, command)


@contextmanager
def void_if_gone() -> Iterator[None]:
    """For a reply to a read of an incarnation: its refusal because that is gone is a Void."""
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
    _by_uuid(member, split, ANY)
    reply = member.command(split.namespace.db, {**by_name, "shardVersion": version.array})
    _by_uuid(member, split, ANY)
    return reply


# The server takes no `collectionUUID`: it does not know it, or it does not take the version of a
# shard as a document (TypeMismatch), which is as old.
_UNNAMED = FIELD_UNKNOWN | {14}
# Nor does 6.0 with a feature compatibility version of 5.0; elsewhere it is SNAPSHOT_REFUSED.
_NOT_ENABLED = 72


def _is_of_the_name(code: int | None, member: Member, namespace: Namespace) -> bool:
    """Whether a find was refused because it named the incarnation."""
    if code != _NOT_ENABLED:
        return code in _UNNAMED
    probe = {"find": namespace.coll, "collectionUUID": bson.Binary(bytes(16), 4), **ANY}
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
