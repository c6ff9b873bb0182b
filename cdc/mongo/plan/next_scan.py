"""Next scan: which collections a batch copies, and the key ranges up to its frontier."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from cdc.model import Again, CaptureFilter, Copying, KeyRange, Namespace, Offset, Scan, advance
from cdc.mongo.collections import Listing
from cdc.mongo.query import projection
from cdc.mongo.topology import Source


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
                CaptureFilter.parse(start.excerpt), copying.collation
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
