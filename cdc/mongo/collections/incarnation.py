"""Reads of one incarnation of a collection, never of another under its name.

A shard returns only the documents that it owned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import bson
import pymongo.errors
from bson import ObjectId
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp

from cdc.model import MAX_KEY, Namespace, SnapshotSplit, key_of, merge_key
from cdc.mongo.connection import FIELD_UNKNOWN, INCARNATION_GONE, Member

# Arguments of a find for any document: only whether the server answers is of interest.
FIND_ANY = {"limit": 1, "singleBatch": True, "projection": {"_id": 1}}


class Void(Exception):
    """The split's incarnation of the collection no longer exists under its name."""


class TimeUnreadable(Exception):
    """The server can no longer read the state at the split's time."""


class Version(NamedTuple):
    """The shard version that a read carries, so that the shard leaves out what it did not own.

    Attributes:
        epoch: identifies the distribution of the collection.
        timestamp: the same; None with feature compatibility version 4.4, which has no timestamps.
        newest: the newest version of the shard's chunks.
    """

    epoch: ObjectId
    timestamp: Timestamp | None
    newest: Timestamp

    @property
    def document(self) -> dict[str, Any]:
        return {"e": self.epoch, "t": self.timestamp, "v": self.newest}

    @property
    def array(self) -> list[Any]:
        """The form that servers before 6.0 accept."""
        return [self.newest, self.epoch, *([self.timestamp] if self.timestamp else [])]


def no_version() -> None:
    """Return no version: a replica set owns all its documents."""


class UnreadRange:
    """The part of a split that is still to be read.

    Attributes:
        split: the whole split.
        version: returns the version of a shard's sharded collection, else None.
        lower: the key from which to read.
        is_begun: something was read, so `lower` itself is excluded.
        rewound: the merge keys of the part that was rewound last, where a collation holds different
            keys equal: the next part may have documents of them.
        names_uuid: reads carry `collectionUUID`; False once a server did not accept it.
    """

    def __init__(
        self, split: SnapshotSplit, version: Callable[[], Version | None] = no_version
    ) -> None:
        self.split, self.version = split, version
        self.lower = split.range.lower
        self.is_begun = False
        self.rewound = frozenset[str]()
        self.names_uuid = True

    def record_read(self, documents: Sequence[bytes]) -> None:
        """Record that these documents were read and handed out."""
        self.lower, self.is_begun = key_of(documents[-1]), True

    @property
    def is_empty(self) -> bool:
        return self.is_begun and self.lower == MAX_KEY

    def without_lower(self, documents: Sequence[bytes]) -> Sequence[bytes]:
        """Drop the first document if its key was handed out before: a resumed range begins with it.

        Its `_id` may be another number of the same value meanwhile, such as 9.0 in place of 9.
        """
        if not self.is_begun or not documents:
            return documents
        is_lower = merge_key(key_of(documents[0])) == merge_key(self.lower)
        return documents[1:] if is_lower else documents


def find_incarnation(member: Member, rest: UnreadRange, command: dict[str, Any]) -> RawBSONDocument:
    """Return the first reply of a find on the split's incarnation under the split's name.

    A read by name alone, of a collection dropped since, would return zero rows and no error.

    Raises Void if this member does not have the incarnation (a rollback may restore it), and the
    driver's errors.
    """
    with void_if_gone():
        return _find(member, rest, command)


@contextmanager
def void_if_gone() -> Iterator[None]:
    """Turn the refusal of a read in this context into Void if the incarnation is gone."""
    try:
        yield
    except pymongo.errors.OperationFailure as error:
        if error.code not in INCARNATION_GONE:
            raise
        raise Void from error


def _find(member: Member, rest: UnreadRange, command: dict[str, Any]) -> RawBSONDocument:
    split, version = rest.split, rest.version()
    by_name = {"find": split.namespace.coll, **command}
    if rest.names_uuid:
        with_uuid = {**by_name, "collectionUUID": bson.Binary(split.uuid, 4)}
        try:
            versioned = {"shardVersion": version.document} if version else {}
            return member.command(split.namespace.db, {**with_uuid, **versioned})
        except pymongo.errors.OperationFailure as error:
            if not _is_uuid_refused(error.code, member, split.namespace):
                raise
            rest.names_uuid = False
    if version is None:
        return _by_uuid(member, split, command)
    # In a read by UUID, a shard does not leave out what it does not own. A collection gets its name
    # only once: if it has the name before and after the read by name, it is the one that was read.
    _by_uuid(member, split, FIND_ANY)
    reply = member.command(split.namespace.db, {**by_name, "shardVersion": version.array})
    _by_uuid(member, split, FIND_ANY)
    return reply


# The server does not know `collectionUUID`, or does not accept a shard version as a document
# (TypeMismatch): then it is too old for both.
_UUID_UNKNOWN = FIELD_UNKNOWN | {14}
# 6.0 with feature compatibility version 5.0 refuses it too. Elsewhere this is SNAPSHOT_REFUSED.
_NOT_ENABLED = 72


def _is_uuid_refused(code: int | None, member: Member, namespace: Namespace) -> bool:
    """Whether a find was refused because of its `collectionUUID`."""
    if code != _NOT_ENABLED:
        return code in _UUID_UNKNOWN
    probe = {"find": namespace.coll, "collectionUUID": bson.Binary(bytes(16), 4), **FIND_ANY}
    try:
        member.command(namespace.db, probe)
    except pymongo.errors.OperationFailure as error:
        return error.code == _NOT_ENABLED
    return False


def names_incarnations(member: Member, namespace: Namespace) -> bool:
    """Whether a find can carry `collectionUUID`, as from 6.0 on. Raises the driver's errors."""
    probe = {"find": namespace.coll, "collectionUUID": bson.Binary(bytes(16), 4), **FIND_ANY}
    try:
        member.command(namespace.db, probe)
    except pymongo.errors.OperationFailure as error:
        if error.code not in INCARNATION_GONE | _UUID_UNKNOWN | {_NOT_ENABLED}:
            raise
        return error.code in INCARNATION_GONE
    return True


def _by_uuid(member: Member, split: SnapshotSplit, command: dict[str, Any]) -> RawBSONDocument:
    """Find by UUID. It follows a rename that came before; a later one kills the cursor (175)."""
    find = {"find": bson.Binary(split.uuid, 4), **command}
    reply = member.command(split.namespace.db, find)
    if reply["cursor"]["ns"] != str(split.namespace):
        raise Void
    return reply
