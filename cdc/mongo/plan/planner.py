"""Plan a batch: how far it goes in time and key, and the splits that fill it.

`next_offset` asks the server and decides; `splits` derives everything from the two offsets, so that
a batch replayed days later reads the same rows. The order of the questions matters:

1. list the collections, and cut the next ranges of the one whose turn it is;
2. take the live edge, at or after the listing and in its term: what was listed can then not be
   rolled back;
3. survey (start, edge] for DDL of selected collections. A batch ends at the first that replaces or
   removes content, and then scans nothing: the events before it belong to the old content; of other
   DDL it is found out which shard tells of it. When the batch would declare
   names done, an event of one that nobody scans postpones the scan: it was born after the listing.

A batch after one that ended at replaced content lets no time pass: it copies the new content as of
the time at which it came, where the server still has that state. So no change of it is missing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from bson.timestamp import Timestamp

from cdc.errors import ContentReplaced, HistoryLost, TransientError
from cdc.model import (
    ControlSplit,
    Excerpt,
    Namespace,
    Offset,
    Replaced,
    Selection,
    Split,
    Times,
    advance,
    begin_again,
    begun_again,
    timestamp,
)
from cdc.mongo.collections import Listing
from cdc.mongo.connection import Member
from cdc.mongo.plan import history_gap, missing_collections
from cdc.mongo.plan.candidate_end import Intent, reselecting, sweeping
from cdc.mongo.plan.ddl_reporters import told_once
from cdc.mongo.plan.ddl_survey import Found, survey
from cdc.mongo.plan.next_scan import Sweeper
from cdc.mongo.plan.slicing import Limits, Slicer
from cdc.mongo.plan.splits import control_split, scan_splits, stream_splits
from cdc.mongo.query import event_filter
from cdc.mongo.topology import Source

_log = logging.getLogger(__name__)
_PATIENCE_SECONDS = 0.4
# A server keeps 300 s of history by default, and the tasks have to read within it.
_STILL_SECONDS = 60


@dataclass(slots=True)
class Planner:
    """Plans the batches of one query. What it remembers only saves asking twice.

    `selection` and `excerpt` are what is to be captured; an offset says what was up to it. With
    `copies` False, what only the newer ones name, and content that was replaced, is captured from
    its next change on. With
    `on_replaced` "fail", content that no row event told of is a ContentReplaced before any of it is
    planned; with `on_missing` "fail", what is new in `selection` and matches no collection is an
    UnsuitableSource before it is taken up.
    """

    source: Source
    open_member: Callable[[str], Member]
    selection: Selection
    excerpt: Excerpt
    sweeper: Sweeper
    limits: Limits
    retry_seconds: float
    copies: bool = True
    on_history_lost: str = "fail"
    on_replaced: str = "resync"
    on_missing: str = "fail"
    _late: dict[Timestamp, Times] = field(default_factory=dict)
    _slicer: Slicer = field(default_factory=Slicer)
    _planned: Offset | None = None

    @property
    def events(self) -> int | None:
        """About how many changes the batch holds that was planned last; None if nobody may say."""
        return self._slicer.events

    def next_offset(self, start: Offset) -> Offset:
        """The end of the batch that begins at `start`; `start` itself if there is nothing new."""
        self._planned = self._next(start)
        return self._planned

    def _next(self, start: Offset) -> Offset:
        while True:
            try:
                end = self._end_of(start)
            except (HistoryLost, TransientError) as error:  # of a shard that is one no more?
                if self._is_refreshed():
                    continue
                if isinstance(error, TransientError):
                    raise
                return self._behind_gap(start, error)
            # Shards are looked up behind the end: one that joins later has nothing to tell of it.
            if end == start or not self._is_refreshed():
                return end

    def _is_refreshed(self) -> bool:
        known, self.source = self.source, self.source.current()
        if self.source is known:
            return False
        self._late.clear()
        return True

    def _behind_gap(self, start: Offset, lost: HistoryLost) -> Offset:
        if self.on_history_lost == "fail":
            raise history_gap.explained(self.source, start, lost) from lost
        _log.warning("%s", history_gap.explained(self.source, start, lost).message)
        if self.on_history_lost == "skip":
            end = history_gap.skipped(self.source, start)
        else:
            end = history_gap.resynced(self.source, start, _PATIENCE_SECONDS)
        return start if end == start else read_of(self.source, end, end.late)

    def _end_of(self, start: Offset) -> Offset:
        self.source.require_told(start)
        end = self._possible_end(start)
        if not end.is_of(start.selection, start.excerpt):
            captured = f"{end.selection} {end.excerpt}".rstrip()
            _log.warning("behind %s, captured are %s", timestamp.text(end.time), captured)
        if end.time == start.time:  # no changes in it
            return replace(end, late=start.late)
        end = read_of(self.source, end, self._late_at(end.time))
        joined = set(self.source.shards) - set(start.shards)
        return self._joined(start, end, joined) if joined else end

    def _joined(self, start: Offset, end: Offset, joined: set[str]) -> Offset:
        """A shard that joins may bring collections along that no event has told of."""
        _log.warning("shards that joined: %s", ", ".join(sorted(joined)))
        if not self.copies:
            return end
        found = self.source.listing(self.selection).collections
        brought = {c.namespace for c in found if c.shard in joined}
        scanned = {scan.copying.namespace for scan in end.scans}
        return begin_again(end, {name for name in brought - scanned if start.passes_whole(name)})

    def _possible_end(self, start: Offset) -> Offset:
        is_same = start.is_of(self.selection.text, self.excerpt.text)
        intents, edge, void = list[Intent](), None, frozenset[Namespace]()
        if start.scans or not start.is_streaming or not is_same:
            listed = self.source.listing(self.selection)
            sweep = self.sweeper.next(self.source, start, listed) if is_same else None
            edge = self._confirmed(start, listed)
            if edge is not None:
                void = self._void(start, listed, edge)
                if sweep is not None and not void and self._may_stand_still(start, edge):
                    sweep, edge = sweep.of(start.again), start.time
            # Whether the last batch read what it was to read has to be known before the next one;
            # and what is told anew has to lie behind what was told.
            is_other = start.excerpt != self.excerpt.text and self.copies
            is_anew = bool(void or (is_other and start.scans))
            if (start.scans and edge is None) or (is_anew and edge == start.time):
                return start
            if edge is not None and sweep is None:
                self._require_there(start, listed)
                captured = self.selection, self.excerpt
                intents.append(reselecting(*captured, start, edge, listed, self.copies))
            elif edge is not None and sweep is not None and not void:
                intents.append(sweeping(self.selection, start, edge, sweep))
        if edge is None:
            edge = self.source.live_edge(start.time)
        reach = self._slicer.reach(self.source.clients, start, edge, self.limits)
        if reach < edge:  # what was listed, and what is to be copied, is behind the backlog
            intents.clear()
        intents.append(Intent(advance(start, reach)))
        return begin_again(self._first_possible(start, reach, intents), void)

    def _first_possible(self, start: Offset, edge: Timestamp, intents: list[Intent]) -> Offset:
        """The end of the first intent that no event forbids; or the time of the first DDL event."""
        before = Selection.parse(start.selection)
        both = before.union(self.selection)
        for intent in intents:
            found = self._survey(both, start, edge, event_filter.not_rows(before), intent.unless)
            if found.time is not None and not found.ddl:
                continue
            end = intent.end if found.time is None else advance(start, found.time)
            end = told_once(self.source, start, end, found.ddl + found.others)
            return end if end.time != found.time else self._cut_at(end, found, start, before)
        raise AssertionError("nothing but DDL forbids to let time pass")

    def _require_there(self, start: Offset, listed: Listing) -> None:
        if self.on_missing == "fail":
            known = Selection.parse(start.selection)
            for problem in missing_collections.problems(self.source, self.selection, listed, known):
                raise problem

    def _confirmed(self, start: Offset, listed: Listing) -> Timestamp | None:
        """A live edge that can follow both; None if what was listed may still be rolled back, or is
        older than what has been emitted."""
        edge = self.source.confirmed(listed, _PATIENCE_SECONDS)
        return edge if edge is not None and listed.since >= start.time else None

    def _void(self, start: Offset, listed: Listing, edge: Timestamp) -> frozenset[Namespace]:
        """Collections whose incarnation was copied, perhaps in vain, and is not there any more, and
        no event up to `edge` tells of it: to reshard one, or to move it, does that."""
        copied = [scan.copying for scan in start.scans]
        copied += [start.copying] if start.copying else []
        void = set()
        for copying in copied:
            found, only = listed.find(copying.namespace), Selection.of([copying.namespace])
            if found is None or (found.uuid, found.shard) == (copying.uuid, copying.shard):
                continue
            if self._survey(only, start, edge, event_filter.cutting(only)).time is None:
                void.add(copying.namespace)
        for namespace in void:
            self._require_resyncs(namespace, "resharded, or moved to another shard")
            _log.warning("%s was replaced without an event: copying it again", namespace)
        return frozenset(void)

    def _may_stand_still(self, start: Offset, edge: Timestamp) -> bool:
        """Whether the next batch can copy collections of `again` as of `start.time`.

        Directly after the cut no change of them is withheld then. The server must still have that
        state, and the incarnations listed must be those of that time. Only one batch in a row does
        this: all other collections wait for it.
        """
        if not start.again or start.copying is not None or start.scans:
            return False
        if edge.time - start.time.time > _STILL_SECONDS or self.source.topology_time > start.time:
            return False
        again = Selection.of(each.namespace for each in start.again)
        return self._survey(again, start, edge, event_filter.cutting(again)).time is None

    def _survey(
        self,
        selection: Selection,
        start: Offset,
        edge: Timestamp,
        ddl: event_filter.Condition,
        rows: Sequence[event_filter.Condition] = (),
    ) -> Found:
        reach = start
        if edge > start.time:
            late, shards = self._late_at(edge), self.source.shards
            reach = replace(start, time=edge, late=late, shards=shards)
        return survey(self.open_member, start, reach, selection, ddl, rows, self.retry_seconds)

    def _late_at(self, time: Timestamp) -> Times:
        if time not in self._late:
            self._late = {time: self.source.late(time)}
        return self._late[time]

    def _cut_at(self, end: Offset, found: Found, start: Offset, selection: Selection) -> Offset:
        time, replaced = end.time, found.replaced(selection)
        for namespace in begun_again(start, advance(start, time, replaced=replaced)):
            whence = " and ".join(map(str, found.renamed_onto(namespace)))
            self._require_resyncs(namespace, f"at {timestamp.text(time)} by a rename of {whence}")
        if all(shard in end.silent for shard, _ in found.ddl):
            # Another shard tells, or will; or none: what moved with its database is dropped where
            # it was, and inserted elsewhere without an event.
            replaced = Replaced(refilled=replaced.emptied | replaced.refilled)
        if not self.copies:
            replaced = replaced.going_on(filter(start.passes_whole, replaced.refilled))
        return replace(advance(start, time, replaced=replaced), silent=end.silent)

    def _require_resyncs(self, namespace: Namespace, how: str) -> None:
        if self.on_replaced == "fail" and self.selection.matches(namespace):
            raise ContentReplaced(
                f"The content of {namespace} was replaced without row events: {how}.",
                "Set on.replaced = resync to have it copied anew, or take it out of 'collections'.",
            )

    def splits(self, start: Offset, end: Offset, control: bool) -> list[Split]:
        """The splits of the batch between two offsets: the same rows whenever it is asked."""
        if start == end:
            return []
        control_splits = [control_split(start, end)] if control else []
        if end.gap is not None or self._is_past(end):
            told = control_splits or [ControlSplit(end.time)]
            return [replace(split, gap=start.time) for split in told]
        found: list[Split] = []
        for split in stream_splits(start, end):
            found += self._slicer.sliced(split)
        for scan in end.scans:
            found += scan_splits(scan, end.time, self.sweeper.ranges(scan), end.excerpt)
        return found + control_splits

    def _is_past(self, end: Offset) -> bool:
        """Whether a batch that another process has planned cannot be read any more. What was to be
        copied in it is copied by a `resync`, but by nothing where the gap is skipped."""
        if end == self._planned or self.on_history_lost == "fail":
            return False
        if self.on_history_lost == "skip" and end.scans:
            return False
        return history_gap.is_past(self.source, end)


def read_of(source: Source, offset: Offset, late: Times) -> Offset:
    """The offset with the shards that are read up to it, and with what they tell behind it."""
    shards, topology_time = source.shards, source.topology_time
    return replace(offset, shards=shards, topology_time=topology_time, late=late)
