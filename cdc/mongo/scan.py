"""One pass of a server over a key range of one incarnation of a collection."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pymongo.errors
from bson.max_key import MaxKey
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp

from cdc.errors import TransientError
from cdc.model.excerpt import Excerpt
from cdc.model.selection import Namespace
from cdc.model.split import MAX_KEY, SnapshotSplit
from cdc.mongo import excerpts
from cdc.mongo.batch import Batch
from cdc.mongo.client import CONFIRM_MS, LONGEST_MS, STALL_SECONDS, Member, time_told
from cdc.mongo.codes import SNAPSHOT_REFUSED
from cdc.mongo.incarnation import ANY, Rest, Void, opened, void_if_gone

_BATCH = 10_000


class Documents(NamedTuple):
    """Raw documents as of a split's time; or, with `exact_from`, each of them in a state between
    that time and `exact_from` (only where before-images are missing). `is_void`: that was not all
    of them, and the rest is not to be had."""

    raw: Sequence[bytes]
    exact_from: Timestamp | None = None
    is_void: bool = False


class TimeUnreadable(Exception):
    """The state of the split's time is not to be had any more."""


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
    probe = {"find": split.namespace.coll, **ANY, "readConcern": concern, "maxTimeMS": CONFIRM_MS}
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
    reply = opened(member, rest, {"batchSize": _BATCH, "maxTimeMS": LONGEST_MS, **command, **asked})
    batch = Batch.of(reply)
    try:
        while True:
            documents = rest.without_lower(batch.documents)
            if documents:
                yield documents, time_told(reply)
            if not batch.cursor:
                return
            more = {"getMore": batch.cursor, "collection": split.namespace.coll}
            with void_if_gone():
                reply = member.command(split.namespace.db, {**more, "batchSize": _BATCH})
            batch = Batch.of(reply)
    finally:
        if batch.cursor:
            member.kill_cursor(str(split.namespace), batch.cursor)


def _confirm(member: Member, rest: Rest) -> None:
    """Waits until the drop or rename that a refused read has met is majority-committed.

    One that is rolled back instead would never be told by an event, and the range would be lost:
    then this fails with an error after which the rest is read again.
    """
    namespace = rest.split.namespace
    concern = {"level": "majority", "afterClusterTime": member.newest_known()}
    try:
        opened(member, rest, {**ANY, "readConcern": concern, "maxTimeMS": CONFIRM_MS})
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
    reached = time_told(member.command("admin", {"ping": 1}))
    probe = {"find": namespace.coll, "limit": 1, "singleBatch": True, "maxTimeMS": 10_000}
    concern = {"level": "snapshot", "atClusterTime": reached}
    try:
        member.command(namespace.db, {**probe, "readConcern": concern})
    except pymongo.errors.OperationFailure as refused:
        return refused.code != SNAPSHOT_REFUSED
    return True
