"""Next scan: what a batch copies, as of when, and the key ranges up to its frontier."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from bson.timestamp import Timestamp

from cdc.model import (
    Again,
    CaptureFilter,
    Copying,
    KeyRange,
    Namespace,
    Offset,
    Scan,
    Selection,
    advance,
)
from cdc.mongo.collections import Listing
from cdc.mongo.query import projection
from cdc.mongo.topology import Source

# The server retains 300 s of history by default, and the tasks must read within it.
_MAX_PAST_SECONDS = 60
# Finds the time of the first DDL event after the start of the batch that cuts a batch of these
# collections; None if there is none up to the live edge.
FirstCut = Callable[[Selection], Timestamp | None]


class Sweep(NamedTuple):
    """The copies of a possible batch.

    Attributes:
        scans: the scans, of whole ranges, in frontier order.
        swept_all: no collection follows the last scan.
        absent: collections that were to be copied again and do not exist.
    """

    scans: tuple[Scan, ...] = ()
    swept_all: bool = False
    absent: frozenset[Namespace] = frozenset()

    def of(self, again: Iterable[Again]) -> Sweep:
        """Return only the part that copies these collections."""
        names = {each.namespace for each in again}
        return Sweep(
            tuple(s for s in self.scans if s.copying.namespace in names), False, self.absent
        )


@dataclass(slots=True)
class Sweeper:
    """Cuts the collections to copy into ranges. Its cached ranges only save repeated queries.

    Attributes:
        split_bytes: the intended size of a range.
        splits_per_batch: the largest number of ranges in one batch.
    """

    split_bytes: int
    splits_per_batch: int
    _cached: dict[tuple[Namespace, bytes, bytes], list[KeyRange]] = field(default_factory=dict)

    def next(self, source: Source, start: Offset, listed: Listing) -> Sweep:
        """Return the copies of the next batch: up to `splits_per_batch` ranges, in frontier order.

        The ranges may belong to several collections. Raises UnsuitableSource if the default
        collation of one of them makes the capture filter ambiguous.
        """
        present = {collection.namespace for collection in listed.collections}
        absent = frozenset(each.namespace for each in start.again) - present
        scans: list[Scan] = []
        offset = advance(start, start.time, absent=absent)
        budget = self.splits_per_batch
        while budget > 0:
            copying = _find_next_copy(offset, listed)
            if copying is None:
                return Sweep(tuple(scans), offset.swept is not None, absent)
            if projection.has_other_collation(
                CaptureFilter.parse(start.capture_text), copying.collation
            ):
                raise projection.collation_error(copying.namespace)
            ranges = self._cut_ranges(source, copying, budget)
            budget -= len(ranges)
            scans.append(Scan(copying, ranges[-1].upper))
            offset = advance(offset, offset.time, (scans[-1],))
        return Sweep(tuple(scans), False, absent)

    def ranges(self, scan: Scan) -> list[KeyRange] | None:
        """Return the ranges into which a scan was cut when it was planned; None if unknown."""
        return self._cached.get((scan.copying.namespace, scan.copying.below, scan.upper))

    def _cut_ranges(self, source: Source, copying: Copying, most: int) -> list[KeyRange]:
        """Return at most `most` adjacent ranges that begin at the frontier."""
        ranges = source.ranges(copying, most, self.split_bytes)
        if len(self._cached) > 4 * self.splits_per_batch:
            self._cached.clear()
        self._cached[copying.namespace, copying.below, ranges[-1].upper] = ranges
        return ranges


def _find_next_copy(offset: Offset, listed: Listing) -> Copying | None:
    """Return the copy to continue or begin; None if everything is copied.

    The begun copy comes first, then the collections to be copied again, then the sweep.
    """
    if offset.copying is not None:
        return offset.copying
    for again in offset.again:
        collection = listed.find(again.namespace)
        if collection is not None:
            return collection.start_of_copy
    if offset.swept is None:
        return None
    unswept = (c for c in listed.collections if str(c.namespace) > offset.swept)
    return next((c.start_of_copy for c in unswept), None)


def find_void(start: Offset, listed: Listing, first_cut: FirstCut) -> frozenset[Namespace]:
    """Return the collections whose copy may be void and must be repeated.

    The name now belongs to another incarnation or is on another shard, and no event reports that.
    Resharding or moving a collection has this effect.
    """
    copied = [scan.copying for scan in start.scans]
    copied += [start.copying] if start.copying else []
    void = set()
    for copying in copied:
        present, only = listed.find(copying.namespace), Selection.of([copying.namespace])
        if present is None or (present.uuid, present.shard) == (copying.uuid, copying.shard):
            continue
        if first_cut(only) is None:
            void.add(copying.namespace)
    return frozenset(void)


def must_copy_at_start(start: Offset) -> bool:
    """Whether changes are withheld unless the next batch copies as of `start.time`."""
    is_free = start.copying is None and not start.scans
    return is_free and any(each.since == start.time for each in start.again)


def may_copy_at_start(source: Source, start: Offset, edge: Timestamp, first_cut: FirstCut) -> bool:
    """Whether the next batch can copy collections of `again` as of `start.time`.

    If it directly follows the cut, none of their changes is withheld. The server must still have
    that state, and the listed incarnations must be those of that time. Two batches in a row never
    do this, because all other collections wait meanwhile.
    """
    if not start.again or start.copying is not None or start.scans:
        return False
    if edge.time - start.time.time > _MAX_PAST_SECONDS or source.topology_time > start.time:
        return False
    return first_cut(Selection.of(each.namespace for each in start.again)) is None
