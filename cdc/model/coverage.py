"""Coverage: the times for which a changelog reproduces its collection.

The fold of a changelog up to a time t contains the last image of each key at or before t, after the
last event that emptied the collection. It is the collection as of t only if the changelog was once
complete, and since then contains every change and lost none. The spans list these times.
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

# Every commit contains the spans. For a collection that is replaced each night they cover about a
# month.
_MAX_SPANS = 32


@dataclass(frozen=True, slots=True)
class Span:
    """The times from `since` to `until`, both inclusive.

    Attributes:
        since: the first time.
        until: the last time. None stands for the watermark: the span is open and grows with it.
        from_nothing: the collection was empty at `since`, and the fold must ignore all rows before
            it. If the changelog was incomplete until then, it may contain documents whose removal
            is in no row.
    """

    since: Timestamp
    until: Timestamp | None = None
    from_nothing: bool = False


class Effect(Enum):
    """Effect of an event on a collection's history.

    EMPTY: the collection is empty from then on (create, drop, dropDatabase, a rename away).
    REPLACED: it has other content from then on, which is in no event (a rename onto it).
    RECOPIED: it is copied again after the batch, for a reason that may be older than the batch.
    LOST: the changes after the time of the event, a `gap` row, are lost.
    """

    EMPTY = "empty"
    REPLACED = "replaced"
    RECOPIED = "recopied"
    LOST = "lost"


_EFFECTS = {
    "create": Effect.EMPTY,
    "drop": Effect.EMPTY,
    "rename": Effect.EMPTY,
    "dropDatabase": Effect.EMPTY,
    RESYNC: Effect.RECOPIED,
    GAP: Effect.LOST,
}
MARKING = tuple(_EFFECTS)


class Mark(NamedTuple):
    """An event that affects the coverage. Marks apply in the order of `position`."""

    position: str
    time: Timestamp
    effect: Effect


# Why the earlier rows of a namespace are void. What replaces them is emitted again.
DROPPED, RENAMED, REPLACED = "dropped", "renamed", "replaced"
# The operations of rows that may make earlier rows void, and why.
VOIDING = {"drop": DROPPED, "dropDatabase": DROPPED, "rename": RENAMED, RESYNC: REPLACED}


class NamespaceEvent(NamedTuple):
    """What a row did to whole collections: its mark, and the collections that it applies to.

    If `coll` is None, it applies to every collection of `db`; if `db` is None, to all collections.
    """

    op: str
    db: str | None
    coll: str | None
    mark: Mark

    @property
    def position(self) -> str:
        return self.mark.position

    @property
    def reason(self) -> str | None:
        """Why all rows before it are void; None if they are not."""
        return REPLACED if self.mark.effect is Effect.REPLACED else VOIDING.get(self.op)

    def concerns(self, namespace: Namespace) -> bool:
        return self.db in (None, namespace.db) and self.coll in (None, namespace.coll)


def marks_of_row(
    op: str,
    db: str | None,
    coll: str | None,
    position: str,
    time: Timestamp,
    description: str | None,
) -> list[NamespaceEvent]:
    """Return the marks of a row, each with its collections; `op` is one of MARKING."""
    own = NamespaceEvent(op, db, coll, Mark(position, time, _EFFECTS[op]))
    if op != "rename":
        return [own]
    to = json.loads(description or "")["to"]
    # The former collection of the new name is gone. The content that has the name now follows as
    # read rows.
    onto = NamespaceEvent(op, to["db"], to["coll"], Mark(position, time, Effect.REPLACED))
    # If the source of a rename is not selected, the row has the target's namespace.
    return [onto] if (db, coll) == (to["db"], to["coll"]) else [own, onto]


@dataclass(frozen=True, slots=True)
class Coverage:
    """The spans of one collection's changelog, in order. Only the last span can be open.

    If `torn` is set, changes were lost in the part that an unfinished copy has already emitted. The
    end of that copy does not begin a span.
    """

    spans: tuple[Span, ...] = ()
    torn: bool = False

    def after(
        self,
        last: Timestamp | None,
        marks: Iterable[Mark],
        *,
        is_complete: bool,
        is_copying: bool,
        copied_from: Timestamp | None,
    ) -> Coverage:
        """Return the coverage after one more batch.

        Args:
            last: the watermark of the table's last commit; None for a new table. Batches between
                that commit and this one contained no row for the table, so nothing that concerns
                this collection.
            marks: the events of the batch that concern the collection.
            is_complete: the batch contains every change of the collection in its time. If not,
                the table is known to be complete only up to `last`: the collection may have been
                removed from the selection since.
            is_copying: a part of the collection has been emitted, but not all of it.
            copied_from: the time that the copy shows, if it is complete with this batch.
        """
        now, is_lost = self if is_complete else self._close(last), False
        for mark in sorted(marks, key=lambda mark: mark.position):
            if mark.effect is Effect.EMPTY:
                now = replace(now._open(mark.time, True) if is_complete else now, torn=False)
            elif mark.effect is Effect.REPLACED:
                now = replace(now._close(timestamp.before(mark.time)), torn=False)
            elif mark.effect is Effect.RECOPIED:
                now = replace(now._close(last), torn=False)
            else:
                now, is_lost = now._close(mark.time), True
                now = replace(now, torn=now.torn or is_copying)
        if copied_from is None or is_lost:  # a batch with a gap has not read its scans
            return now
        return Coverage(now.spans) if now.torn else now._open(copied_from, False)

    def cut(self, last: Timestamp | None) -> Coverage:
        """Return the coverage of a changelog that lacks changes after `last`, its last watermark.

        A copy that was in progress then does not begin a span.
        """
        return replace(self._close(last), torn=True)

    def at(self, time: Timestamp, end: Timestamp) -> Span | None:
        """Return the span that contains `time`, or None.

        `end` is the time up to which the changelog is known to be complete: an open span ends
        there.
        """
        return next(
            (s for s in self.spans if s.since <= time <= (end if s.until is None else s.until)),
            None,
        )

    def text(self, end: Timestamp) -> str:
        """Return the spans as text for a message; an open span ends at `end`."""
        closed = [(span.since, end if span.until is None else span.until) for span in self.spans]
        texts = [f"{timestamp.text(a)} to {timestamp.text(b)}" for a, b in closed if a <= b]
        return ", ".join(texts) or "no time"

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

    def _open(self, since: Timestamp, from_nothing: bool) -> Coverage:
        if self._is_open:
            return self
        span = Span(since, from_nothing=from_nothing)
        return replace(self, spans=(*self.spans, span)[-_MAX_SPANS:])

    def _close(self, until: Timestamp | None) -> Coverage:
        if not self._is_open:
            return self
        *closed, span = self.spans
        if until is not None and span.since <= until:
            closed.append(replace(span, until=until))
        return replace(self, spans=tuple(closed))
