"""Scan of a key range of one incarnation of a collection."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pymongo.errors
from bson.max_key import MaxKey
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp

from cdc.errors import TransientError
from cdc.model import MAX_KEY, Namespace, SnapshotSplit
from cdc.mongo.collections import FIND_ANY, UnreadRange, Void, find_incarnation, void_if_gone
from cdc.mongo.connection import (
    CONFIRM_MS,
    LONGEST_MS,
    SNAPSHOT_REFUSED,
    CursorBatch,
    Member,
    reply_time,
)
from cdc.mongo.query import projection

_BATCH = 10_000


class Documents(NamedTuple):
    """Documents of a split.

    Attributes:
        raw: the documents as BSON bytes.
        exact_from: None if the documents are as of the split's time. Otherwise each of them is in a
            state between that time and this one; this happens only if before-images are missing.
        is_void: the remaining documents of the split are gone.
    """

    raw: Sequence[bytes]
    exact_from: Timestamp | None = None
    is_void: bool = False


def scan(
    member: Member, rest: UnreadRange, concern: dict[str, Any]
) -> Iterator[tuple[Sequence[bytes], Timestamp]]:
    """Yield non-empty batches of raw documents in key order, each with its reply's operation time.

    The range is given as index bounds. Comparison operators only match values of their own BSON
    type, so they would miss documents whose `_id` has another type.

    Args:
        member: the member to read.
        rest: the part of the split that is still to be read; the caller must record the progress.
        concern: the read concern.

    Raises Void once a majority confirms that the incarnation is gone, TransientError if the member
    does not reach the split's time, and the driver's errors.
    """
    split = rest.split
    _await_time(member, split)
    bounds: dict[str, Any] = {"min": RawBSONDocument(rest.lower), "hint": {"_id": 1}}
    if member.is_router:
        # Otherwise the replies of the shards interleave. Then the last _id of a reply does not
        # tell what was read. The index gives this order, so a shard sorts nothing.
        bounds["sort"] = {"_id": 1}
    if not split.range.is_last:
        bounds["max"] = RawBSONDocument(split.range.upper)
    try:
        if rest.lower != MAX_KEY:  # there is no range above it (51175)
            yield from _find(member, rest, {**bounds, "readConcern": concern})
        if split.range.is_last:
            # A range without `max` does not include a document whose _id is MaxKey itself.
            yield from _find(member, rest, {"readConcern": concern}, {"_id": MaxKey()})
    except Void:
        _confirm_void(member, rest)
        raise


def _await_time(member: Member, split: SnapshotSplit) -> None:
    """Wait until a lagging member reaches the split's time.

    A read at that time would wait too, but for ever if the member is isolated from the others.
    Raises TransientError for a member that does not advance.
    """
    concern = {"level": "majority", "afterClusterTime": split.at}
    probe = {
        "find": split.namespace.coll,
        **FIND_ANY,
        "readConcern": concern,
        "maxTimeMS": CONFIRM_MS,
    }
    reached, moved = None, time.monotonic()
    while True:
        try:
            member.command(split.namespace.db, probe)
            return
        except pymongo.errors.ExecutionTimeout:
            # A router does not report how far the shards are.
            written = member.hello().get("lastWrite", {}).get("opTime", {}).get("ts")
            if written != reached:
                reached, moved = written, time.monotonic()
            member.require_advance(moved, f"Copying {split.namespace} at {split.at}", reached)


def _find(
    member: Member,
    rest: UnreadRange,
    command: dict[str, Any],
    condition: dict[str, Any] | None = None,
) -> Iterator[tuple[Sequence[bytes], Timestamp]]:
    split = rest.split
    query = projection.find_arguments(split.capture, condition)
    reply = find_incarnation(
        member, rest, {"batchSize": _BATCH, "maxTimeMS": LONGEST_MS, **command, **query}
    )
    batch = CursorBatch.of(reply)
    try:
        while True:
            documents = rest.without_lower(batch.documents)
            if documents:
                yield documents, reply_time(reply)
            if not batch.cursor:
                return
            more = {"getMore": batch.cursor, "collection": split.namespace.coll}
            with void_if_gone():
                reply = member.command(split.namespace.db, {**more, "batchSize": _BATCH})
            batch = CursorBatch.of(reply)
    finally:
        if batch.cursor:
            member.kill_cursor(str(split.namespace), batch.cursor)


def _confirm_void(member: Member, rest: UnreadRange) -> None:
    """Wait until the drop or rename that refused a read is majority-committed.

    If it is rolled back instead, no event reports it, and the range would be lost. Raises
    TransientError then, and the caller reads the rest again.
    """
    namespace = rest.split.namespace
    concern = {"level": "majority", "afterClusterTime": member.newest_known()}
    try:
        find_incarnation(
            member, rest, {**FIND_ANY, "readConcern": concern, "maxTimeMS": CONFIRM_MS}
        )
    except Void:
        return
    except pymongo.errors.ExecutionTimeout as late:
        raise TransientError(
            f"Copying {namespace}: a majority has not confirmed its drop or rename yet.",
            "Check that a majority of the replica set is up.",
        ) from late
    raise TransientError(f"Copying {namespace}: its drop or rename was rolled back.")


def reads_at_a_time(member: Member, namespace: Namespace) -> bool:
    """Whether the server can read at a cluster time (5.0 and later).

    A lagging member refuses a time with the same code as an older server does. No member lags its
    own operation time, so a server that refuses that time refuses every time.
    """
    reached = reply_time(member.command("admin", {"ping": 1}))
    probe = {"find": namespace.coll, "limit": 1, "singleBatch": True, "maxTimeMS": 10_000}
    concern = {"level": "snapshot", "atClusterTime": reached}
    try:
        member.command(namespace.db, {**probe, "readConcern": concern})
    except pymongo.errors.OperationFailure as refused:
        return refused.code != SNAPSHOT_REFUSED
    return True
