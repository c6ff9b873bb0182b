"""Whether there is something to tell: without it, foreign writes would make one empty batch after
the other, and a change would wait until the one under way is through.

What is found out here only saves batches. Each batch asks for itself what belongs to it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pymongo.errors
from bson.timestamp import Timestamp

from cdc.errors import CdcError
from cdc.model import NEVER, Excerpt, Offset, Selection
from cdc.mongo.connection import Member
from cdc.mongo.plan.splits import span
from cdc.mongo.query import event_filter
from cdc.mongo.read import IMAGES, BatchSize, cursor

_log = logging.getLogger(__name__)
_FOR_EVER = Timestamp(2**32 - 1, 2**32 - 1)
_WAIT_MS = 200


class _Tail:
    """A change stream of one shard that is read an event at a time, as far as it has come."""

    def __init__(self, member: Member, start: Offset, shard: str, wait_ms: int) -> None:
        selection = Selection.parse(start.selection)
        told = [selection.condition("ns"), event_filter.not_rows(selection)]
        slim = {"ns": 1, "operationType": 1, "clusterTime": 1}
        end = replace(start, time=_FOR_EVER)
        split = span(start, end, shard, selection, event_filter.pipeline(told, slim))
        self._member = member
        self._cursor = cursor.Cursor(member, split, IMAGES["off"], BatchSize(1), (wait_ms, wait_ms))
        self._newest = NEVER

    def has_passed(self, start: Offset) -> bool:
        return self._cursor.reached >= start.time

    def sees(self, start: Offset) -> bool:
        """Whether an event behind that offset has come; waits a little for one."""
        if self._newest <= start.time:
            for event in self._cursor.next_batch():
                self._newest = event["clusterTime"]
        return self._newest > start.time

    def close(self) -> None:
        self._cursor.close()
        self._member.end()


@dataclass(slots=True)
class Watch:
    """Cursors of the driver's own, one for each shard, that are open from one batch to the next."""

    open_member: Callable[[str], Member]
    selection: Selection
    excerpt: Excerpt
    heartbeat_seconds: float
    _tails: dict[str, _Tail] = field(default_factory=dict)
    _start: Offset | None = None
    _since: float = 0.0

    def is_due(self, start: Offset, shards: tuple[str, ...]) -> bool:
        """Whether the batch behind `start` is to be planned: there is something to copy, a change
        has come, or none has for `heartbeat_seconds`."""
        if start != self._start:
            self._start, self._since = start, time.monotonic()
        if not start.is_streaming or not start.is_of(self.selection.text, self.excerpt.text):
            return True
        if time.monotonic() - self._since >= self.heartbeat_seconds:
            return True
        try:
            return any(self._sees(start, shard, len(shards)) for shard in shards)
        except (pymongo.errors.PyMongoError, CdcError) as error:
            # The batch will meet the same trouble if it lasts, and knows what it means.
            _log.debug("watching for changes: %s", type(error).__name__)
            self.close()
            return True

    def _sees(self, start: Offset, shard: str, count: int) -> bool:
        tail = self._tails.get(shard)
        if tail is not None and not tail.has_passed(start):
            self._tails.pop(shard).close()  # to begin anew is quicker than to catch up
            tail = None
        if tail is None:
            wait_ms = max(1, _WAIT_MS // count)
            tail = self._tails[shard] = _Tail(self.open_member(shard), start, shard, wait_ms)
        return tail.sees(start)

    def close(self) -> None:
        while self._tails:
            self._tails.popitem()[1].close()
