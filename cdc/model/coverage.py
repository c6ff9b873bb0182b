"""Of which times a changelog gives the collection: the rule, in one place.

The fold of a changelog up to a time t is the last image of each key at or before t, behind the last
event that emptied the collection. That is the collection as of t only where all of it was told and
nothing was lost since it was known whole: in the spans that are kept here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, NamedTuple

from cdc.model import timestamp
from cdc.model.change import GAP, RESYNC
from cdc.model.selection import Namespace
from cdc.model.timestamp import Timestamp

# Kept in every commit. A collection that is replaced each night keeps about a month of spans.
_MOST_SPANS = 32


@dataclass(frozen=True, slots=True)
class Span:
    """From `since` to `until`, both included. `until` None: up to the watermark, and it goes on.

    `from_nothing`: the collection was empty at `since`, and no row before it counts: a changelog
    that was not told all until then may hold documents of which no row says that they are gone.
    """

    since: Timestamp
    until: Timestamp | None = None
    from_nothing: bool = False


class What(Enum):
    """What an event makes of a collection's history."""

    EMPTY = "is empty from then on: create, drop, dropDatabase, a rename away"
    REPLACED = "is another from then on, and told by no event: a rename onto it"
    RETOLD = "is told anew behind the batch, for a reason that may be older than the batch"
    LOST = "changes behind that time are lost"


_WHAT = {
    "create": What.EMPTY,
    "drop": What.EMPTY,
    "rename": What.EMPTY,
    "dropDatabase": What.EMPTY,
    RESYNC: What.RETOLD,
    GAP: What.LOST,
}
MARKING = tuple(_WHAT)


class Mark(NamedTuple):
    """An event that matters here. In the order of `position`."""

    position: str
    time: Timestamp
    what: What


class Happening(NamedTuple):
    """To what a mark applies; `coll` None is every collection of `db`, and `db` None is every one
    that there is."""

    op: str
    db: str | None
    coll: str | None
    mark: Mark

    def concerns(self, namespace: Namespace) -> bool:
        return self.db in (None, namespace.db) and self.coll in (None, namespace.coll)


def happenings(
    op: str,
    db: str | None,
    coll: str | None,
    position: str,
    time: Timestamp,
    description: str | None,
) -> list[Happening]:
    """What a row makes of which collections; `op` is one of MARKING."""
    own = Happening(op, db, coll, Mark(position, time, _WHAT[op]))
    if op != "rename":
        return [own]
    to = json.loads(description or "")["to"]
    # What stood at the new name is gone; what stands there now comes as read rows later.
    onto = Happening(op, to["db"], to["coll"], Mark(position, time, What.REPLACED))
    # A row whose source is not selected bears the target's name.
    return [onto] if (db, coll) == (to["db"], to["coll"]) else [own, onto]


@dataclass(frozen=True, slots=True)
class Coverage:
    """The spans of one collection's changelog in order, at most the last of them open.

    `torn`: changes were lost of what a copy under way had told already, so that its end is no
    beginning of a span.
    """

    spans: tuple[Span, ...] = ()
    torn: bool = False

    def after(
        self,
        last: Timestamp | None,
        marks: Iterable[Mark],
        *,
        tells: bool,
        is_copying: bool,
        copied_from: Timestamp | None,
    ) -> Coverage:
        """The coverage after one more batch.

        `last`: the watermark of the table's last commit, None for a new table. Batches between that
        commit and this one held no row for the table: nothing that concerns this collection.
        `tells`: whether the batch held every change of the collection in its time. If not, the
        table is known whole up to `last` only: the collection may have been taken out meanwhile.
        `is_copying`: a part of the collection is told already, and not yet all of it.
        `copied_from`: its copy is complete with this batch, and as of that time.
        """
        now, is_lost = self if tells else self._closed(last), False
        for mark in sorted(marks, key=lambda mark: mark.position):
            if mark.what is What.EMPTY:
                now = replace(now._opened(mark.time, True) if tells else now, torn=False)
            elif mark.what is What.REPLACED:
                now = replace(now._closed(timestamp.before(mark.time)), torn=False)
            elif mark.what is What.RETOLD:
                now = replace(now._closed(last), torn=False)
            else:
                now, is_lost = now._closed(mark.time), True
                now = replace(now, torn=now.torn or is_copying)
        if copied_from is None or is_lost:  # what a batch with a gap was to copy was not read
            return now
        return Coverage(now.spans) if now.torn else now._opened(copied_from, False)

    def at(self, time: Timestamp, end: Timestamp) -> Span | None:
        """The span in which the collection is known as of `time`; `end`: up to when the changelog
        is known to be complete."""
        return next(
            (s for s in self.spans if s.since <= time <= (end if s.until is None else s.until)),
            None,
        )

    def text(self, end: Timestamp) -> str:
        """For a message."""
        closed = [(span.since, end if span.until is None else span.until) for span in self.spans]
        told = [f"{timestamp.text(a)} to {timestamp.text(b)}" for a, b in closed if a <= b]
        return ", ".join(told) or "no time"

    def to_json(self) -> list[Any]:
        spans = [
            [
                timestamp.text(span.since),
                None if span.until is None else timestamp.text(span.until),
                span.from_nothing,
            ]
            for span in self.spans
        ]
        return [*spans, None] if self.torn else spans

    @classmethod
    def from_json(cls, data: list[Any]) -> Coverage:
        """The inverse of `to_json`."""
        spans = [
            Span(timestamp.parse(since), until and timestamp.parse(until), from_nothing)
            for since, until, from_nothing in filter(None, data)
        ]
        return cls(tuple(spans), torn=None in data)

    @property
    def _is_open(self) -> bool:
        return bool(self.spans) and self.spans[-1].until is None

    def _opened(self, since: Timestamp, from_nothing: bool) -> Coverage:
        if self._is_open:
            return self
        span = Span(since, from_nothing=from_nothing)
        return replace(self, spans=(*self.spans, span)[-_MOST_SPANS:])

    def _closed(self, until: Timestamp | None) -> Coverage:
        if not self._is_open:
            return self
        *closed, span = self.spans
        if until is not None and span.since <= until:
            closed.append(replace(span, until=until))
        return replace(self, spans=tuple(closed))
