"""Idle watch: whether the next batch has anything to read.

Without it, writes to other collections would cause one empty batch after another, and a change
would wait until the current empty batch is finished. The result only saves batches: each batch
determines itself what belongs to it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import pymongo.errors
from bson.timestamp import Timestamp

from cdc.errors import CdcError
from cdc.model import NEVER, CaptureFilter, Offset, Selection, advance
from cdc.mongo.connection import Member
from cdc.mongo.plan.splits import span
from cdc.mongo.query import event_filter
from cdc.mongo.read import IMAGES, BatchSize, cursor

_log = logging.getLogger(__name__)
_END_OF_TIME = Timestamp(2**32 - 1, 2**32 - 1)
_WAIT_MS = 200


class _Tail:
    """A change stream of one shard, read one event at a time until it has an event to report."""

    def __init__(self, member: Member, start: Offset, shard: str, wait_ms: int) -> None:
        selection = Selection.parse(start.selection)
        conditions = [selection.condition("ns"), event_filter.not_rows(selection)]
        fields = {"ns": 1, "operationType": 1, "clusterTime": 1}
        end = advance(start, _END_OF_TIME)
        split = span(start, end, shard, selection, event_filter.pipeline(conditions, fields))
        self._member = member
        self._cursor = cursor.Cursor(member, split, IMAGES["off"], BatchSize(1), (wait_ms, wait_ms))
        self._newest = NEVER

    def has_passed(self, start: Offset) -> bool:
        return self._cursor.reached >= start.time

    def has_event(self, start: Offset) -> bool:
        """Whether the stream has an event after that offset. It waits a moment for one."""
        if self._newest <= start.time:
            for event in self._cursor.next_batch():
                self._newest = event["clusterTime"]
        return self._newest > start.time

    def close(self) -> None:
        self._cursor.close()
        self._member.end()


@dataclass(slots=True)
class Watch:
    """Cursors of Spark's driver, one for each shard, which remain open between batches.

    Attributes:
        open_member: opens a member of a shard.
        selection: the selection to capture.
        capture: the capture filter and the projection.
        heartbeat_seconds: after this time without a change, a batch is due.
    """

    open_member: Callable[[str], Member]
    selection: Selection
    capture: CaptureFilter
    heartbeat_seconds: float
    _tails: dict[str, _Tail] = field(default_factory=dict)
    _start: Offset | None = None
    _since: float = 0.0

    def is_due(self, start: Offset, shards: tuple[str, ...]) -> bool:
        """Whether the batch after `start` should be planned.

        It should if there is something to copy, if the selection or capture filter differs from
        those of `start`, or if there is a change. It should also if `heartbeat_seconds` passed
        without one, or if watching failed.
        """
        if start != self._start:
            self._start, self._since = start, time.monotonic()
        if not start.is_streaming or not start.is_of(self.selection.text, self.capture.text):
            return True
        if time.monotonic() - self._since >= self.heartbeat_seconds:
            return True
        try:
            return any(self._has_event(start, shard, len(shards)) for shard in shards)
        except (pymongo.errors.PyMongoError, CdcError) as error:
            # If the failure persists, the batch meets it too, and raises the right error.
            _log.debug("watching for changes: %s", type(error).__name__)
            self.close()
            return True

    def _has_event(self, start: Offset, shard: str, count: int) -> bool:
        tail = self._tails.get(shard)
        if tail is not None and not tail.has_passed(start):
            self._tails.pop(shard).close()  # a new cursor is faster than catching up
            tail = None
        if tail is None:
            wait_ms = max(1, _WAIT_MS // count)
            tail = self._tails[shard] = _Tail(self.open_member(shard), start, shard, wait_ms)
        return tail.has_event(start)

    def close(self) -> None:
        while self._tails:
            self._tails.popitem()[1].close()
