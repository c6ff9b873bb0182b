"""A change stream cursor that reads one split.

Its rules are explained in `cdc.mongo.read.change_stream`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import bson
import pymongo.errors
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp

from cdc.kernel import NONE, WORTH
from cdc.model import StreamSplit, resume_token
from cdc.mongo.connection import (
    FIELD_UNKNOWN,
    LONGEST_MS,
    RAW,
    CursorBatch,
    Member,
    reply_time,
)
from cdc.mongo.query import projection
from cdc.mongo.read import oversize
from cdc.mongo.read.batch_size import BatchSize
from cdc.mongo.read.event_run import Located, Mask, split_mask
from cdc.mongo.read.images import Images
from cdc.mongo.read.oversize import Raw

# With `showExpandedEvents`, the server reports views and time series like collections. Only their
# events have no UUID.
_WITHOUT_VIEWS = {
    "$match": {
        "$nor": [
            {
                "operationType": {"$in": ["create", "modify", "drop"]},
                "collectionUUID": {"$exists": False},
            }
        ]
    }
}
_WAIT_MS = (1, 500)
# Fewer consecutive plain events are returned one by one, unless they are large.
_LEAST_RUN = 32


class Cursor:
    """A change stream cursor that detects when its split is complete.

    Fragments of an event, which the split's pipeline may produce, are joined again. The caller must
    call `close`.

    Attributes:
        complete: the cursor has returned all events of the split.
        operation_time: the operation time of the last reply.
        reached: the cursor has passed everything before this time.

    Args:
        member: the member to read.
        split: the split to read.
        images: the images to request.
        size: the number of events in each reply.
        wait_ms: how long the server waits for events before it sends an empty reply. The first
            number is used while the stream advances. Otherwise the wait doubles up to the second.
    """

    def __init__(
        self,
        member: Member,
        split: StreamSplit,
        images: Images,
        size: BatchSize,
        wait_ms: tuple[int, int] = _WAIT_MS,
    ) -> None:
        self._member, self._split, self._images = member, split, images
        self._size, (self._least_wait_ms, self._longest_wait_ms) = size, wait_ms
        self.complete = split.last <= split.after
        self.operation_time = self.reached = split.after
        self._wait_ms, self._advanced_at = self._least_wait_ms, time.monotonic()
        self._id, self._namespace = 0, ""
        self._is_expanded = True
        self._fragments = oversize.Fragments()
        size.begin()
        if not self.complete:
            self._open({"startAtOperationTime": split.after})

    def _open(self, start: dict[str, Any]) -> None:
        """Open the stream with expanded DDL events, or without them on servers before 6.0."""
        try:
            reply = self._send_aggregate(start)
        except pymongo.errors.OperationFailure as error:
            if not self._is_expanded or error.code not in FIELD_UNKNOWN:
                raise
            self._is_expanded = False  # before 6.0
            reply = self._send_aggregate(start)
        self._id, self._namespace = int(reply["cursor"]["id"]), reply["cursor"]["ns"]

    def _send_aggregate(self, start: dict[str, Any]) -> RawBSONDocument:
        split, images = self._split, self._images
        stage = {"fullDocument": images.after, **start}
        if images.expects_before:
            stage["fullDocumentBeforeChange"] = images.before
        if split.database is None:
            stage["allChangesForCluster"] = True
        if not split.shard and not self._member.is_router:
            # The inserts of cloneCollectionAsCapped have the mark of a migration (`fromMigrate`).
            # A stream without this option omits them. A replica set has no other migrations. On a
            # shard the option must be off: it would show documents that only move to another
            # shard, and so would a router. A shard refuses cloneCollectionAsCapped (227), so
            # nothing is missed there.
            stage["showMigrationEvents"] = True
        if self._is_expanded:
            stage["showExpandedEvents"] = True
        command = {
            "aggregate": 1,
            "pipeline": [
                {"$changeStream": stage},
                *([_WITHOUT_VIEWS] if self._is_expanded else []),
                *bson.decode(split.pipeline, codec_options=RAW)["pipeline"],
            ],
            # The opening reply never counts as progress, so events in it would gain nothing.
            "cursor": {"batchSize": 0},
            "maxTimeMS": LONGEST_MS,
        }
        if split.collation is not None:
            command["collation"] = RawBSONDocument(split.collation)
        return self._member.command(split.database or "admin", command)

    def next_batch(self) -> list[Raw]:
        """Return the split's events in the next reply."""
        batch = self._next_reply()
        events = self._unpack(batch)
        selected = self._select(events)
        self._update_progress(batch, bool(events), _find_invalidate(events))
        return selected

    def next_parts(self, plain: Callable[[Located], Mask]) -> list[list[Raw] | Located]:
        """Return the same events in parts.

        Many consecutive events that `plain` selects stay in the bytes of the reply as one part.
        """
        batch = self._next_reply()
        located = Located.of(batch)
        if located is None:
            events = self._unpack(batch)
            parts: list[list[Raw] | Located] = [self._select(events)]
            self._update_progress(batch, bool(events), _find_invalidate(events))
            return parts
        self._size.record_reply(len(located), batch.size)
        # Fewer large events are worth it too: each takes memory several times one by one.
        least = max(1, min(_LEAST_RUN, WORTH * len(located) // batch.size))
        parts = [
            self._select_part(located.select(rows), is_plain)
            for rows, is_plain in split_mask(plain(located), least)
        ]
        last = [located.raw(len(located) - 1)] if located.operations[-1] == NONE else []
        self._update_progress(batch, len(located) > 0, _find_invalidate(last))
        return parts

    def _unpack(self, batch: CursorBatch) -> list[RawBSONDocument]:
        events = [RawBSONDocument(each) for each in batch.documents]
        self._size.record_reply(len(events), batch.size)
        return events

    def _select_part(self, located: Located, is_plain: bool) -> list[Raw] | Located:
        if is_plain:
            self.complete |= located.has_after(self._split.last)
            return located.select(located.select_split(self._split))
        return self._select([located.raw(row) for row in range(len(located))])

    def _select(self, events: list[RawBSONDocument]) -> list[Raw]:
        joined = map(projection.unwrap_event, self._fragments.join(events))
        return [event for event in joined if self._accept(event)]

    def _next_reply(self) -> CursorBatch:
        db, _, coll = self._namespace.partition(".")
        reply = self._member.command(
            db,
            {
                "getMore": self._id,
                "collection": coll,
                "batchSize": self._size.next(),
                "maxTimeMS": self._wait_ms,
            },
        )
        batch = CursorBatch.of(reply)
        self._id = batch.cursor
        self.operation_time = reply_time(reply)
        return batch

    def _accept(self, event: Raw) -> bool:
        """Whether the event belongs to the split; a later event completes the split."""
        moment = event["clusterTime"]
        if moment > self._split.last:
            self.complete = True
        if not self._split.contains(moment) or event["operationType"] == "invalidate":
            return False
        only = self._split.only
        return only is None or (event["ns"]["db"], event["ns"].get("coll")) == only

    def _update_progress(
        self, batch: CursorBatch, has_events: bool, invalidate: Raw | None
    ) -> None:
        """Update `complete` and `reached` after a reply, and reopen the stream after `invalidate`.

        Args:
            batch: the reply; its post-batch token is used.
            has_events: the reply has events, of the split or not.
            invalidate: the last event if it ends the cursor.
        """
        if self.complete:
            return
        if invalidate is not None:
            self._pass_invalidate(invalidate)
            return
        reached = resume_token.time_of(batch.document(b"postBatchResumeToken")["_data"])
        last = self._split.last
        # A router's token at a time is no promise that all shards have sent their events of it.
        is_past_empty = not has_events and reached >= last and not self._member.is_router
        self.complete = reached > last or is_past_empty
        self._adjust_wait(has_events, reached)

    def _pass_invalidate(self, event: Raw) -> None:
        """Complete the split, or reopen a database-wide stream after dropDatabase.

        The server ends such a stream with `invalidate`. Only the token of that event can open a
        stream after it; a time cannot. The planner ends a batch at the time of the drop, so the
        event ends this split or the previous one. In the second case the token has the time
        `after`, which is before `upto`. An empty reply at `upto` then still means that this cursor
        has passed everything before it.
        """
        if event["clusterTime"] >= self._split.last:
            self.complete = True
        else:
            self._open({"startAfter": event["_id"]})

    def _adjust_wait(self, has_events: bool, reached: Timestamp) -> None:
        """Wait longer for a member that lags; raise TransientError if it does not advance."""
        if has_events or reached > self.reached:
            self._advanced_at, self._wait_ms = time.monotonic(), self._least_wait_ms
        else:
            self._wait_ms = min(self._wait_ms * 2, self._longest_wait_ms)
        self.reached = max(self.reached, reached)
        waited_for = f"Reading changes up to {self._split.upto}"
        self._member.require_advance(self._advanced_at, waited_for, reached)

    def close(self) -> None:
        """Close the cursor on the server, unless the server has already done so."""
        if self._id:
            self._member.kill_cursor(self._namespace, self._id)
            self._id = 0


def _find_invalidate(events: list[RawBSONDocument]) -> Raw | None:
    """Return the last event if it is the `invalidate` that ends a cursor."""
    is_end = bool(events) and events[-1].get("operationType") == "invalidate"
    return events[-1] if is_end else None
