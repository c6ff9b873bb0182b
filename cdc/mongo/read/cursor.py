"""A change stream cursor that reads one slice; the rules are those of
`cdc.mongo.read.change_stream`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import bson
import pymongo.errors
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp

from cdc.errors import TransientError
from cdc.kernel import NONE
from cdc.model import StreamSplit, resume_token
from cdc.mongo.connection import (
    FIELD_UNKNOWN,
    LONGEST_MS,
    RAW,
    STALL_SECONDS,
    Batch,
    Member,
    time_told,
)
from cdc.mongo.query import projection
from cdc.mongo.read import oversize
from cdc.mongo.read.batch_size import BatchSize
from cdc.mongo.read.event_run import Located, Mask, stretches
from cdc.mongo.read.images import Images
from cdc.mongo.read.oversize import Raw

# With `showExpandedEvents`, views and time series are told of as if they were collections; only
# they have no UUID.
_NOT_OF_VIEWS = {
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
# Of fewer consecutive events, each is told by itself.
_AT_ONCE = 32


class Cursor:
    """A change stream cursor that knows when its slice is complete.

    Events that the split's pipeline cuts into fragments are whole again. The cursor has passed
    everything before `reached`. `size` says how many events a reply may hold; it comes after
    `wait_ms` if there is none: the first while it goes on, up to the second while it does not.
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
        self._wait_ms, self._moved = self._least_wait_ms, time.monotonic()
        self._id, self._namespace = 0, ""
        self._is_expanded = True
        self._fragments = oversize.Fragments()
        size.begin()
        if not self.complete:
            self._open({"startAtOperationTime": split.after})

    def _open(self, start: dict[str, Any]) -> None:
        """With all events of DDL, where the server has them."""
        try:
            reply = self._opened(start)
        except pymongo.errors.OperationFailure as error:
            if not self._is_expanded or error.code not in FIELD_UNKNOWN:
                raise
            self._is_expanded = False  # before 6.0
            reply = self._opened(start)
        self._id, self._namespace = int(reply["cursor"]["id"]), reply["cursor"]["ns"]

    def _opened(self, start: dict[str, Any]) -> RawBSONDocument:
        split, images = self._split, self._images
        stage = {"fullDocument": images.after, **start}
        if images.expects_before:
            stage["fullDocumentBeforeChange"] = images.before
        if split.database is None:
            stage["allChangesForCluster"] = True
        if not split.shard:
            # The inserts of cloneCollectionAsCapped bear the mark of a migration (`fromMigrate`),
            # and without this no stream shows them. A replica set has no other migrations. On a
            # shard it must be off: there it would show documents that only move; and a shard
            # refuses that command (227).
            stage["showMigrationEvents"] = True
        if self._is_expanded:
            stage["showExpandedEvents"] = True
        command = {
            "aggregate": 1,
            "pipeline": [
                {"$changeStream": stage},
                *([_NOT_OF_VIEWS] if self._is_expanded else []),
                *bson.decode(split.pipeline, codec_options=RAW)["pipeline"],
            ],
            # An opening reply is never progress, so nothing is gained by events in it.
            "cursor": {"batchSize": 0},
            "maxTimeMS": LONGEST_MS,
        }
        if split.collation is not None:
            command["collation"] = RawBSONDocument(split.collation)
        return self._member.command(split.database or "admin", command)

    def next_batch(self) -> list[Raw]:
        """The split's events in the next reply."""
        batch = self._next_reply()
        events = self._events(batch)
        inside = self._inside(events)
        self._judge(batch, bool(events), _invalidate_of(events))
        return inside

    def next_parts(self, plain: Callable[[Located], Mask]) -> list[list[Raw] | Located]:
        """The same, in parts: those that are `plain` where they lie, if there are many."""
        batch = self._next_reply()
        located = Located.of(batch)
        if located is None:
            events = self._events(batch)
            parts: list[list[Raw] | Located] = [self._inside(events)]
            self._judge(batch, bool(events), _invalidate_of(events))
            return parts
        self._size.came(len(located), batch.size)
        parts = [
            self._part(located.only(rows), is_plain)
            for rows, is_plain in stretches(plain(located), _AT_ONCE)
        ]
        others = [located.raw(len(located) - 1)] if located.operations[-1] == NONE else []
        self._judge(batch, len(located) > 0, _invalidate_of(others))
        return parts

    def _events(self, batch: Batch) -> list[RawBSONDocument]:
        events = [RawBSONDocument(each) for each in batch.documents]
        self._size.came(len(events), batch.size)
        return events

    def _part(self, located: Located, is_plain: bool) -> list[Raw] | Located:
        if is_plain:
            self.complete |= located.passes(self._split.last)
            return located.only(located.held(self._split))
        return self._inside([located.raw(row) for row in range(len(located))])

    def _inside(self, events: list[RawBSONDocument]) -> list[Raw]:
        joined = map(projection.whole, self._fragments.joined(events))
        return [event for event in joined if self._takes(event)]

    def _next_reply(self) -> Batch:
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
        batch = Batch.of(reply)
        self._id = batch.cursor
        self.operation_time = time_told(reply)
        return batch

    def _takes(self, event: Raw) -> bool:
        moment = event["clusterTime"]
        if moment > self._split.last:
            self.complete = True
        if not self._split.holds(moment) or event["operationType"] == "invalidate":
            return False
        only = self._split.only
        return only is None or (event["ns"]["db"], event["ns"].get("coll")) == only

    def _judge(self, batch: Batch, delivered: bool, invalidate: Raw | None) -> None:
        """By whether the reply has events, whether the last one ends the cursor, and its token."""
        if self.complete:
            return
        if invalidate is not None:
            self._invalidated(invalidate)
            return
        reached = resume_token.time_of(batch.document(b"postBatchResumeToken")["_data"])
        last = self._split.last
        self.complete = reached > last or (not delivered and reached >= last)
        self._keep_at_it(delivered, reached)

    def _invalidated(self, event: Raw) -> None:
        """A database-wide stream ends behind dropDatabase; time alone cannot open one behind it.

        The planner ends a batch at that time, so it is this slice's end, or the one before's. In
        the second case the token to start after lies at `after`, below `upto`: an empty reply at
        `upto` still means that this cursor has passed everything before it.
        """
        if event["clusterTime"] >= self._split.last:
            self.complete = True
        else:
            self._open({"startAfter": event["_id"]})

    def _keep_at_it(self, delivered: bool, reached: Timestamp) -> None:
        """Waits longer for a member that is behind, and gives up on one that does not move."""
        now = time.monotonic()
        if delivered or reached > self.reached:
            self._moved, self._wait_ms = now, self._least_wait_ms
        else:
            self._wait_ms = min(self._wait_ms * 2, self._longest_wait_ms)
        self.reached = max(self.reached, reached)
        if now - self._moved > STALL_SECONDS:
            raise TransientError(
                f"Reading changes up to {self._split.upto}: the server has not passed"
                f" {reached} for {STALL_SECONDS:.0f} s.",
                "Check that a majority of the replica set is up.",
            )

    def close(self) -> None:
        if self._id:
            self._member.kill_cursor(self._namespace, self._id)
            self._id = 0


def _invalidate_of(events: list[RawBSONDocument]) -> Raw | None:
    """The last event, if it is what a cursor ends with."""
    is_end = bool(events) and events[-1].get("operationType") == "invalidate"
    return events[-1] if is_end else None
