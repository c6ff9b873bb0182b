"""Plan a batch: its end in time and key, and its splits.

`next_offset` queries the server and decides. `splits` derives everything from the two offsets, so a
batch that is replayed days later reads the same rows. The order of the queries matters:

1. List the collections, and cut the next key ranges of the collection that is to be copied next.
2. Read the live edge, at or after the listing and in the same term. Nothing that was listed can be
   rolled back then.
3. Survey (start, edge] for DDL of selected collections. The batch ends at the first DDL event that
   replaces or removes content. It scans nothing then, because the events before it belong to the
   old content. For other DDL the planner decides which shard reports it. If the batch would record
   names as done, an event of a collection that is not scanned postpones the scan: the collection
   was created after the listing. A batch also ends where a collection gets another shard key, see
   `key_changes`.

If a batch ended at replaced content, no time passes in the next one. It copies the new content as
of the time of the replacement, if the server still has that state. So no change of it is missing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from bson.timestamp import Timestamp
from pymongo.errors import PyMongoError

from cdc.errors import ContentReplaced, HistoryLost, TransientError
from cdc.model import (
    CaptureFilter,
    ControlSplit,
    Namespace,
    Offset,
    Replaced,
    Selection,
    Split,
    Times,
    advance,
    begin_again,
    list_recopied,
    mark_read,
    shard_key_changed,
    silence,
    timestamp,
)
from cdc.mongo.collections import Listing
from cdc.mongo.connection import Member
from cdc.mongo.plan import history_gap, missing_collections
from cdc.mongo.plan.candidate_end import CandidateEnd, reselect_candidate, scan_candidate
from cdc.mongo.plan.ddl_survey import SurveyResult, assign_reporters, survey
from cdc.mongo.plan.key_changes import KeyChanges, compare_keys, had_documents
from cdc.mongo.plan.next_scan import Sweeper, find_void, may_copy_at_start, must_copy_at_start
from cdc.mongo.plan.oplog_scan import Limits
from cdc.mongo.plan.slicing import Slicer
from cdc.mongo.plan.splits import control_split, scan_splits, stream_splits
from cdc.mongo.query import event_filter
from cdc.mongo.topology import Source

_log = logging.getLogger(__name__)
# How long a batch waits for the confirmation of a listing before it goes on without a copy.
_PATIENCE_SECONDS = 0.4
_PATIENCE_AT_CUT_SECONDS = 10.0


@dataclass(slots=True)
class Planner:
    """Plans the batches of one query. Its cached values only save repeated queries.

    Attributes:
        source: the replica set or cluster.
        open_member: opens a member of a shard.
        selection: the selection to capture; an offset contains the one that applied up to it.
        capture: the capture filter and projection to use; an offset contains those up to it.
        sweeper: cuts what is to be copied into ranges.
        limits: the limits of a batch.
        retry_seconds: how long a failed survey is repeated.
        copies: if False, collections that only the new selection contains, and replaced content,
            are captured from their next change on.
        on_history_lost: what happens if the oplog no longer contains the next changes.
        on_replaced: with "fail", content that was replaced without row events raises
            ContentReplaced before any of it is planned.
        on_missing: with "fail", a new part of `selection` that matches no collection raises
            UnsuitableSource before the new selection applies.
    """

    source: Source
    open_member: Callable[[str], Member]
    selection: Selection
    capture: CaptureFilter
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
        """The approximate number of changes in the last planned batch; None if it is unknown."""
        return self._slicer.events

    def next_offset(self, start: Offset) -> Offset:
        """Return the end of the batch that begins at `start`; `start` if there is nothing new."""
        self._planned = self._plan_next(start)
        return self._planned

    def _plan_next(self, start: Offset) -> Offset:
        while True:
            try:
                end = self._plan_end(start)
            except (HistoryLost, TransientError) as error:  # perhaps the shard was removed
                if self._refresh():
                    continue
                if isinstance(error, TransientError):
                    raise
                return self._plan_gap(start, error)
            # The shards are read after the end is known: one that joins later has no events there.
            if end == start or not self._refresh():
                return end

    def _refresh(self) -> bool:
        """Read the shards again; return whether they changed."""
        known, self.source = self.source, self.source.refresh()
        if self.source is known:
            return False
        self._late.clear()
        return True

    def _plan_gap(self, start: Offset, lost: HistoryLost) -> Offset:
        if isinstance(lost.__cause__, PyMongoError):  # else a shard was removed
            history_gap.require_lost(self.source, start, self.on_history_lost != "fail")
        if self.on_history_lost == "fail":
            raise history_gap.explain_loss(self.source, start, lost) from lost
        _log.warning("%s", history_gap.explain_loss(self.source, start, lost).message)
        if self.on_history_lost == "skip":
            return history_gap.skip(self.source, start)
        return history_gap.resync(self.source, start, _PATIENCE_SECONDS)

    def _plan_end(self, start: Offset) -> Offset:
        self.source.require_all_read(start)
        end = self._find_end(start)
        if not end.is_of(start.selection, start.capture_text):
            captured = f"{end.selection} {end.capture_text}".rstrip()
            _log.warning("after %s, the run captures %s", timestamp.text(end.time), captured)
        if end.time == start.time:  # the batch contains no changes
            return end
        end = self._mark_read(end)
        joined = set(self.source.shards) - set(start.shards)
        return self._add_joined(start, end, joined) if joined else end

    def _add_joined(self, start: Offset, end: Offset, joined: set[str]) -> Offset:
        """Return the end after shards joined: they may bring collections that are in no event."""
        _log.warning("shards that joined: %s", ", ".join(sorted(joined)))
        if not self.copies:
            return end
        collections = self.source.list_collections(self.selection).collections
        brought = {c.namespace for c in collections if c.shard in joined}
        scanned = {scan.copying.namespace for scan in end.scans}
        return begin_again(end, {name for name in brought - scanned if start.passes_whole(name)})

    def _find_end(self, start: Offset) -> Offset:
        is_same = start.is_of(self.selection.text, self.capture.text)
        candidates, edge = list[CandidateEnd](), None
        changed, void = KeyChanges(start, None, {}), frozenset[Namespace]()
        if start.scans or not start.is_streaming or not is_same:
            listed = self.source.list_collections(self.selection)
            sweep = self.sweeper.next(self.source, start, listed) if is_same else None
            edge = self._confirm_edge(start, listed)
            if edge is not None:
                changed = compare_keys(self.source, self.selection, start, edge)
                first_cut = partial(self._find_first_cut, start, edge)
                void = self._require_copies(find_void(start, listed, first_cut))
                void |= self._find_rekeyed(changed, changed.begun)
                if (
                    sweep is not None
                    and not void
                    and may_copy_at_start(self.source, start, edge, first_cut)
                ):
                    sweep, edge = sweep.of(start.again), start.time
            # The next batch must wait until it is known whether the last scans read the planned
            # incarnations. Rows emitted again must come after those already emitted.
            is_other = start.capture_text != self.capture.text and self.copies
            is_anew = bool(void or (is_other and start.scans))
            if (start.scans and edge is None) or (is_anew and edge == start.time):
                return start
            if edge is not None and sweep is None:
                self._require_existing(start, listed)
                captured = self.selection, self.capture
                candidates.append(reselect_candidate(*captured, start, edge, listed, self.copies))
            elif edge is not None and sweep is not None and not void:
                candidates.append(scan_candidate(self.selection, start, edge, sweep))
        if edge is None:
            edge = self.source.live_edge(start.time)
            if edge > start.time:
                changed = compare_keys(self.source, self.selection, start, edge)
        shards, until = self.source.shards, changed.latest_end(edge, void)
        reach = self._slicer.find_end(self.open_member, shards, start, until, self.limits)
        if reach < edge:  # the backlog first: neither a scan nor a new selection
            candidates.clear()
        candidates.append(CandidateEnd(advance(start, reach)))
        end = changed.record(self._find_valid_end(start, reach, candidates))
        again = void.union(each.namespace for each in start.again)
        names = [name for name in changed.changed_before(end) if name not in again]
        return begin_again(end, void | self._find_rekeyed(changed, names))

    def _find_first_cut(
        self, start: Offset, edge: Timestamp, selection: Selection
    ) -> Timestamp | None:
        """Return the time of the first event up to `edge` that cuts a batch with a selection."""
        return self._survey(selection, start, edge, event_filter.cutting_ddl(selection)).time

    def _require_copies(self, void: frozenset[Namespace]) -> frozenset[Namespace]:
        for namespace in void:
            self._require_resyncs(namespace, "resharded, or moved to another shard")
            _log.warning("%s was replaced without an event: copying it again", namespace)
        return void

    def _find_rekeyed(
        self, changed: KeyChanges, names: Iterable[Namespace]
    ) -> frozenset[Namespace]:
        """Return those of the collections with a new shard key that are copied again."""
        start, found = changed.start, set[Namespace]()
        recorded = dict(start.shard_keys or ())
        for name in names:
            had = had_documents(self.open_member, name, start.time)
            if had is False:
                continue
            at = timestamp.text(changed.new[name].since)
            if self.copies:
                self._require_resyncs(name, f"it got another shard key at {at}")
                _log.warning("%s got another shard key at %s: copying it again", name, at)
                found.add(name)
            elif start.shard_keys is not None and (had or name in recorded):
                raise shard_key_changed(name, at)
            else:
                _log.warning("%s: rows from before %s may lack its shard key in 'key'", name, at)
        return frozenset(found)

    def _find_valid_end(
        self, start: Offset, edge: Timestamp, candidates: list[CandidateEnd]
    ) -> Offset:
        """Return the end of the first candidate that no event excludes, cut at the first DDL."""
        before = Selection.parse(start.selection)
        union = before.union(self.selection)
        for candidate in candidates:
            ddl = event_filter.not_rows(before)
            found = self._survey(union, start, edge, ddl, candidate.unless, self._slicer.rows_only)
            if found.time is not None and not found.ddl:
                continue
            end = candidate.end if found.time is None else advance(start, found.time)
            end = assign_reporters(self.source, start, end, found.ddl + found.others)
            return end if end.time != found.time else self._cut_at(end, found, start, before)
        raise AssertionError("only DDL can exclude an end that neither scans nor reselects")

    def _require_existing(self, start: Offset, listed: Listing) -> None:
        if self.on_missing == "fail":
            known = Selection.parse(start.selection)
            for problem in missing_collections.missing_errors(
                self.source, self.selection, listed, known
            ):
                raise problem

    def _confirm_edge(self, start: Offset, listed: Listing) -> Timestamp | None:
        """Return a live edge that is not before `start` or the listing.

        Returns None if the listing may still be rolled back, or is older than what was emitted.
        """
        patience = _PATIENCE_AT_CUT_SECONDS if must_copy_at_start(start) else _PATIENCE_SECONDS
        edge = self.source.confirm(listed, patience)
        return edge if edge is not None and listed.since >= start.time else None

    def _survey(
        self,
        selection: Selection,
        start: Offset,
        edge: Timestamp,
        ddl: event_filter.Condition,
        rows: Sequence[event_filter.Condition] = (),
        rows_only: Container[str] = (),
    ) -> SurveyResult:
        end = start
        if edge > start.time:
            end = self._mark_read(advance(start, edge))
        captured = selection, ddl, rows
        return survey(self.open_member, start, end, *captured, self.retry_seconds, rows_only)

    def _mark_read(self, end: Offset) -> Offset:
        if end.time not in self._late:
            self._late = {end.time: self.source.late_times(end.time)}
        late = self._late[end.time]
        return mark_read(end, self.source.shards, self.source.topology_time, late)

    def _cut_at(
        self, end: Offset, found: SurveyResult, start: Offset, selection: Selection
    ) -> Offset:
        time, replaced = end.time, found.replaced_collections(selection)
        for namespace in list_recopied(start, advance(start, time, replaced=replaced)):
            renamed = " and ".join(map(str, found.renamed_onto(namespace)))
            self._require_resyncs(namespace, f"at {timestamp.text(time)} by a rename of {renamed}")
        is_silent = all(shard in end.silent for shard, _ in found.ddl)
        if is_silent or not self.source.drops_are_final:
            # Another shard reports this DDL now or later, or no shard does: a collection that moves
            # with its database is dropped on the old shard and inserted on the new one without an
            # event.
            replaced = Replaced(refilled=replaced.emptied | replaced.refilled)
        if not self.copies:
            replaced = replaced.without_copies(filter(start.passes_whole, replaced.refilled))
        return silence(advance(start, time, replaced=replaced), end.silent)

    def _require_resyncs(self, namespace: Namespace, how: str) -> None:
        if self.on_replaced == "fail" and self.selection.matches(namespace):
            raise ContentReplaced(
                f"The content of {namespace} was replaced without row events: {how}.",
                "Set on.replaced = resync to copy it again, or remove it from 'collections'.",
            )

    def splits(self, start: Offset, end: Offset, control: bool) -> list[Split]:
        """Return the splits of the batch between two offsets; a repeated call gives the same rows.

        With `control`, they include the split with the control rows of the batch.
        """
        if start == end:
            return []
        control_splits = [control_split(start, end)] if control else []
        if end.gap is not None or self._is_unreadable(end):
            gap_splits = control_splits or [ControlSplit(end.time)]
            return [replace(split, gap=start.time) for split in gap_splits]
        splits: list[Split] = []
        for split in stream_splits(start, end):
            splits += self._slicer.slice_split(split)
        for scan in end.scans:
            cut = self.sweeper.ranges(scan)
            splits += scan_splits(scan, end.time, cut, end.capture_text, bool(start.shard_keys))
        return splits + control_splits

    def _is_unreadable(self, end: Offset) -> bool:
        """Whether a batch that another process planned can no longer be read.

        `resync` copies again what the batch was to copy; `skip` does not. So with `skip` a batch
        with scans never counts as unreadable.
        """
        if end == self._planned or self.on_history_lost == "fail":
            return False
        if self.on_history_lost == "skip" and end.scans:
            return False
        return history_gap.is_past(self.source, end)
