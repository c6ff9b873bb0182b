"""Read one StreamSplit: a slice of the change stream, complete, once, in order.

The rules here were each won by an experiment in which their absence lost or doubled events:

* A slice is opened at its lower time and drops what is not after it. Opened one increment later,
  a new cursor's first token (the point it was opened at, not progress) could equal the upper time,
  and the slice would complete empty.
* A slice is complete only by what its own cursor delivered: an event after `upto`; a post-batch
  token after `upto`; or an empty reply to a getMore (never the opening reply) whose token has
  reached `upto`. The last is sound because the cursor was opened by time, below `upto`. An idle
  server never sends a token beyond its last event, so waiting for more would never end.
* A cursor that fails is thrown away and the slice opened again at its lower time; positions that
  were already handed out are skipped. It is never resumed by token: then an empty reply could
  carry a token at `upto` that this cursor has not passed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import bson
import pymongo.errors
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp

from cdc.errors import TransientError
from cdc.model import token
from cdc.model.excerpt import Excerpt, by
from cdc.model.split import StreamSplit
from cdc.mongo import excerpts, oversize
from cdc.mongo.client import FIELD_UNKNOWN, RAW, STALL_SECONDS, Member
from cdc.mongo.images import Event, Images, fewer, told
from cdc.mongo.oversize import Raw
from cdc.mongo.retry import Progress, retrying

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
_BATCH = 1000


def read(
    open_member: Callable[[], Member], split: StreamSplit, images: Images, retry_seconds: float
) -> Iterator[list[Event]]:
    """The split's events in order, each once, in batches of at most 16 MiB plus lookups.

    Members that fail are replaced, until nothing new has come for `retry_seconds`: then
    TransientError is raised; other failures (HistoryLost, NotPermitted, …) at once.
    """
    attempted = f"Reading changes after {split.after} up to {split.upto}{by(split.excerpt)}"
    progress = Progress()
    passed = _Passed(split.behind)
    for attempt in retrying(progress, retry_seconds, attempted):
        with attempt:
            member = open_member()
            try:
                for events in _fitting(member, split, images, passed):
                    if events:
                        passed.position = events[-1].position
                        yield events
                        progress.made()
            finally:
                member.end()


@dataclass(slots=True)
class _Passed:
    """The last position handed out: a slice opened again skips up to it."""

    position: str


def _fitting(
    member: Member, split: StreamSplit, images: Images, passed: _Passed
) -> Iterator[list[Event]]:
    """Events not handed out yet, with all images that the server has; where it refuses what it is
    asked for, the slice is opened again, and less is asked for."""
    used, refused = images, list[pymongo.errors.OperationFailure]()
    for way in oversize.ways(split, images.on_oversize == "fail"):
        asked: Images | None = used
        while asked is not None:
            used = asked
            try:
                yield from _attempt(member, way, images, used, passed)
                return
            except pymongo.errors.OperationFailure as error:
                asked = fewer(used, error)
                if asked is None:
                    if not oversize.refuses(error):
                        raise
                    refused.append(error)
    raise refused[0]


def _attempt(
    member: Member, way: oversize.Way, asked: Images, used: Images, passed: _Passed
) -> Iterator[list[Event]]:
    whole = partial(slices, member, images=used)
    excerpt = Excerpt.parse(way.asked.excerpt)
    completion = oversize.Completion(way.whole, whole, asked.on_oversize == "lookup")
    for batch, operation_time in slices(member, way.asked, used):
        groups = (
            completion.groups(batch, passed.position)
            if way.cuts
            else [[raw for raw in batch if raw["_id"]["_data"] > passed.position]]
        )
        for group in groups:
            yield [told(member, raw, asked, used, operation_time, excerpt) for raw in group]


def slices(
    member: Member, split: StreamSplit, images: Images
) -> Generator[tuple[list[Raw], Timestamp]]:
    """One attempt at a slice: its raw events in order, each batch with the reply's operation time.

    Returns when the slice is complete; raises the driver's errors.
    """
    cursor = Cursor(member, split, images, _BATCH)
    try:
        while not cursor.complete:
            yield cursor.next_batch(), cursor.operation_time
    finally:
        cursor.close()


class Cursor:
    """A change stream cursor that knows when its slice is complete.

    Events that the split's pipeline cuts into fragments are whole again. The cursor has passed
    everything before `reached`. A reply holds at most `most` events, and comes after
    `wait_ms` if there is none: the first while it goes on, up to the second while it does not.
    """

    def __init__(
        self,
        member: Member,
        split: StreamSplit,
        images: Images,
        most: int,
        wait_ms: tuple[int, int] = _WAIT_MS,
    ) -> None:
        self._member, self._split, self._images = member, split, images
        self._most, (self._least_wait_ms, self._longest_wait_ms) = most, wait_ms
        self.complete = split.last <= split.after
        self.operation_time = self.reached = split.after
        self._wait_ms, self._moved = self._least_wait_ms, time.monotonic()
        self._id, self._namespace = 0, ""
        self._is_expanded = True
        self._fragments = oversize.Fragments()
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
        }
        if split.collation is not None:
            command["collation"] = RawBSONDocument(split.collation)
        return self._member.command(split.database or "admin", command)

    def next_batch(self) -> list[Raw]:
        db, _, coll = self._namespace.partition(".")
        reply = self._member.command(
            db,
            {
                "getMore": self._id,
                "collection": coll,
                "batchSize": self._most,
                "maxTimeMS": self._wait_ms,
            },
        )
        cursor = reply["cursor"]
        self._id = int(cursor["id"])
        self.operation_time = reply["operationTime"]
        events = cursor["nextBatch"]
        joined = map(excerpts.whole, self._fragments.joined(events))
        inside = [event for event in joined if self._takes(event)]
        if not self.complete:
            self._judge(cursor, events)
        return inside

    def _takes(self, event: Raw) -> bool:
        moment = event["clusterTime"]
        if moment > self._split.last:
            self.complete = True
        if not self._split.holds(moment) or event["operationType"] == "invalidate":
            return False
        only = self._split.only
        return only is None or (event["ns"]["db"], event["ns"].get("coll")) == only

    def _judge(self, cursor: RawBSONDocument, events: list[RawBSONDocument]) -> None:
        if events and events[-1].get("operationType") == "invalidate":
            self._invalidated(events[-1])
            return
        reached = token.time_of(cursor["postBatchResumeToken"]["_data"])
        last = self._split.last
        self.complete = reached > last or (not events and reached >= last)
        self._pace(bool(events), reached)

    def _invalidated(self, event: RawBSONDocument) -> None:
        """A database-wide stream ends behind dropDatabase; time alone cannot open one behind it.

        The planner ends a batch at that time, so it is this slice's end, or the one before's. In
        the second case the token to start after lies at `after`, below `upto`: an empty reply at
        `upto` still means that this cursor has passed everything before it.
        """
        if event["clusterTime"] >= self._split.last:
            self.complete = True
        else:
            self._open({"startAfter": event["_id"]})

    def _pace(self, delivered: bool, reached: Timestamp) -> None:
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
