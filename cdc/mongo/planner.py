"""Plan a batch: how far it goes in time and key, and the splits that fill it.

`next_offset` asks the server and decides; `splits` derives everything from the two offsets, so that
a batch replayed days later reads the same rows. The order of the questions matters:

1. list the collections, and cut the next ranges of the one whose turn it is;
2. take the live edge, at or after the listing and in its term: what was listed can then not be
   rolled back;
3. survey (start, edge] for DDL of selected collections. A batch ends at the first such event, and
   then scans nothing: the events before it belong to the old content. When the batch would declare
   names done, an event of one that nobody scans postpones the scan: it was born after the listing.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp

from cdc.model.offset import Copying, Offset, Replaced, Scan, advance
from cdc.model.selection import Namespace, Selection
from cdc.model.split import MIN_KEY, KeyRange, SnapshotSplit, Split, StreamSplit, WatermarkSplit
from cdc.mongo import pipeline, stream
from cdc.mongo.client import Member
from cdc.mongo.enumerator import Collection, Listing, listing, ranges
from cdc.mongo.topology import ReplicaSet

_log = logging.getLogger(__name__)
_PATIENCE_SECONDS = 0.4
_ALL = 2**31 - 1


class _Sweep(NamedTuple):
    """What a batch would copy: whole ranges, and names found to need no copying."""

    scans: tuple[Scan, ...] = ()
    swept_all: bool = False
    absent: frozenset[Namespace] = frozenset()

    def end(self, start: Offset, time: Timestamp) -> Offset:
        return advance(start, time, self.scans, self.swept_all, absent=self.absent)


_NO_SWEEP = _Sweep()


class _Found(NamedTuple):
    """What the survey of a batch's time found first: a DDL event, or a stranger's row event."""

    time: Timestamp
    replaced: Replaced | None


@dataclass(slots=True)
class Planner:
    """Plans the batches of one query. What it remembers only saves asking twice."""

    source: ReplicaSet
    open_member: Callable[[], Member]
    selection: Selection
    split_bytes: int
    splits_per_batch: int
    retry_seconds: float
    _cut: dict[tuple[Namespace, bytes, bytes], list[KeyRange]] = field(default_factory=dict)

    def next_offset(self, start: Offset) -> Offset:
        """The end of the batch that begins at `start`; `start` itself if there is nothing new."""
        sweep, edge = self._sweep_and_edge(start)
        if edge <= start.time:
            # Nothing happened since; ranges can still be copied, at the same time.
            return _end(sweep, start, start.time)
        found = self._survey(start, edge, sweep)
        if found is not None and found.replaced is None:
            sweep = _NO_SWEEP
            found = self._survey(start, edge, sweep)
        if found is not None:
            return advance(start, found.time, replaced=found.replaced)
        return _end(sweep, start, edge)

    def _sweep_and_edge(self, start: Offset) -> tuple[_Sweep, Timestamp]:
        if start.is_streaming:
            return _NO_SWEEP, self.source.live_edge(start.time)
        listed = listing(self.source.client, self.selection)
        sweep = self._sweep(start, listed)
        edge = self.source.confirmed(listed.time, listed.term, _PATIENCE_SECONDS)
        if edge is None or listed.since < start.time:
            # What was listed may still be rolled back, or is older than what has been emitted.
            return _NO_SWEEP, self.source.live_edge(start.time)
        return sweep, edge

    # --- what to scan next ---

    def _sweep(self, start: Offset, listed: Listing) -> _Sweep:
        """As many ranges as a batch may hold, over as many collections as they span."""
        present = {collection.namespace for collection in listed.collections}
        absent = frozenset(name for name in start.again if name not in present)
        scans: list[Scan] = []
        offset = advance(start, start.time, absent=absent)
        budget = self.splits_per_batch
        while budget > 0:
            copying = self._turn(offset, listed)
            if copying is None:
                return _Sweep(tuple(scans), offset.swept is not None, absent)
            cut = self._ranges(copying, budget)
            budget -= len(cut)
            scans.append(Scan(copying, cut[-1].upper))
            offset = advance(offset, offset.time, (scans[-1],))
        return _Sweep(tuple(scans), False, absent)

    def _turn(self, offset: Offset, listed: Listing) -> Copying | None:
        """Whose turn it is: the one begun, then those to be copied again, then the sweep."""
        if offset.copying is not None:
            found = listed.find(offset.copying.namespace)
            if found is not None and found.uuid != offset.copying.uuid:
                return _begun(found)  # recognised by `_is_replaced`
            return offset.copying
        for namespace in offset.again:
            found = listed.find(namespace)
            if found is not None:
                return _begun(found)
        if offset.swept is None:
            return None
        behind = (c for c in listed.collections if str(c.namespace) > offset.swept)
        return next((_begun(collection) for collection in behind), None)

    def _ranges(self, copying: Copying, most: int) -> list[KeyRange]:
        """Adjacent ranges from the frontier on, remembered for `splits`."""
        namespace, below = copying.namespace, copying.below
        cut = ranges(self.source.client, namespace, below, most, self.split_bytes)
        if len(self._cut) > 4 * self.splits_per_batch:
            self._cut.clear()
        self._cut[namespace, below, cut[-1].upper] = cut
        return cut

    # --- what happened meanwhile ---

    def _survey(self, start: Offset, edge: Timestamp, sweep: _Sweep) -> _Found | None:
        """The first event in (start, edge] that forbids the batch as planned."""
        conditions = [pipeline.cutting(self.selection)]
        if sweep.scans or sweep.absent or sweep.swept_all:
            scanned = [scan.copying.namespace for scan in sweep.scans]
            end = sweep.end(start, edge)
            conditions.append(pipeline.strangers(self.selection, start, end, scanned))
        slim = {"ns": 1, "to": 1, "operationType": 1, "clusterTime": 1}
        stages = pipeline.pipeline(conditions, slim)
        split = StreamSplit(start.time, edge, self.selection.database, stages)
        read = stream.read(self.open_member, split, stream.IMAGES["off"], self.retry_seconds)
        for events in read:
            first = events[0].raw
            if first["operationType"] in pipeline.CUTTING_EVENTS:
                return _Found(first["clusterTime"], replaced_by(first, self.selection))
            return _Found(first["clusterTime"], None)
        return None

    # --- from two offsets to splits ---

    def splits(self, start: Offset, end: Offset, watermark: bool) -> list[Split]:
        """The splits of the batch between two offsets: the same rows whenever it is asked."""
        if start == end:
            return []
        found: list[Split] = [*self._stream_splits(start, end)]
        found += [split for scan in end.scans for split in self._split(scan, end.time)]
        if watermark:
            found.append(WatermarkSplit(end.time, json.dumps(end.described())))
        return found

    def _stream_splits(self, start: Offset, end: Offset) -> list[StreamSplit]:
        if end.time <= start.time:
            return []
        conditions = [pipeline.not_rows(self.selection), pipeline.rows(self.selection, start)]
        below = pipeline.rows_below(start.copying) if start.copying else None
        collation = start.copying.collation if start.copying else None
        if below is not None and collation is None:
            conditions.append(below)
        database = self.selection.database
        first = StreamSplit(start.time, end.time, database, pipeline.pipeline(conditions))
        if below is None or start.copying is None or collation is None:
            return [first]
        stages, only = pipeline.pipeline([below]), start.copying.namespace
        return [first, StreamSplit(start.time, end.time, database, stages, collation, only)]

    def _split(self, scan: Scan, at: Timestamp) -> list[SnapshotSplit]:
        c = scan.copying
        known = self._cut.get((c.namespace, c.below, scan.upper))
        return [
            SnapshotSplit(c.namespace, c.uuid, key_range, at, c.collation)
            for key_range in known or [KeyRange(c.below, scan.upper)]
        ]


def snapshot_splits(
    source: ReplicaSet, found: Listing, split_bytes: int, at: Timestamp
) -> list[SnapshotSplit]:
    """Splits of all of the listed collections at one time, for a batch read."""
    return [
        SnapshotSplit(c.namespace, c.uuid, key_range, at, c.collation)
        for c in found.collections
        for key_range in ranges(source.client, c.namespace, MIN_KEY, _ALL, split_bytes)
    ]


def below_splits(found: Listing, below: bytes, at: Timestamp) -> list[SnapshotSplit]:
    """What lies below a frontier key, in one split: for checking a copy that is under way."""
    return [
        SnapshotSplit(c.namespace, c.uuid, KeyRange(MIN_KEY, below), at, c.collation)
        for c in found.collections
        if below != MIN_KEY
    ]


def replaced_by(event: RawBSONDocument, selection: Selection) -> Replaced:
    """What a DDL event did to selected collections."""
    emptied = _namespaces(event.get("ns"), selection)
    refilled = _namespaces(event.get("to"), selection)
    return Replaced(emptied - refilled, refilled)


def _namespaces(value: RawBSONDocument | None, selection: Selection) -> frozenset[Namespace]:
    if value is None or "coll" not in value:
        return frozenset()
    namespace = Namespace(value["db"], value["coll"])
    return frozenset({namespace} if selection.matches(namespace) else ())


def _begun(collection: Collection) -> Copying:
    return Copying(collection.namespace, collection.uuid, collection.collation)


def _end(sweep: _Sweep, start: Offset, time: Timestamp) -> Offset:
    """The end of a batch in whose time no event forbids the sweep."""
    copying = start.copying
    if copying is not None and any(_is_replaced(copying, scan) for scan in sweep.scans):
        _log.warning("%s was replaced without an event: copying it again", copying.namespace)
        again = Replaced(refilled=frozenset({copying.namespace}))
        return advance(start, time, replaced=again)
    return sweep.end(start, time)


def _is_replaced(copying: Copying, scan: Scan) -> bool:
    return scan.copying.namespace == copying.namespace and scan.copying.uuid != copying.uuid
