"""Hand-over rule: how a batch moves the offset from its start to its end.

Every change of an offset is a function of this module. The first offset of a run is made by
`offset.beginning` or `offset.streaming`.

The sweep may have passed the name of a collection before the collection is created. Such a
collection needs no copy, because the change stream contains all of its inserts. A collection whose
content was replaced has no inserts for the new content. It is copied again, and its changes before
that copy are withheld.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from bson.timestamp import Timestamp

from cdc.model.capture_filter import CaptureFilter
from cdc.model.offset import Again, Offset, Scan, Times
from cdc.model.selection import Namespace, Selection
from cdc.model.split import MAX_KEY


@dataclass(frozen=True, slots=True)
class Replaced:
    """Effect of the DDL events at one cluster time on selected collections.

    Attributes:
        emptied: the collections that were dropped or renamed away.
        refilled: the collections whose name another collection was renamed to.
    """

    emptied: frozenset[Namespace] = frozenset()
    refilled: frozenset[Namespace] = frozenset()

    def without_copies(self, names: Iterable[Namespace]) -> Replaced:
        """The same, except that `names` are not copied: their changes continue to be emitted."""
        return Replaced(self.emptied, self.refilled - frozenset(names))


def advance(
    start: Offset,
    time: Timestamp,
    scans: tuple[Scan, ...] = (),
    swept_all: bool = False,
    replaced: Replaced | None = None,
    absent: frozenset[Namespace] = frozenset(),
) -> Offset:
    """Return the offset after a batch from `start` to `time`; `start` itself if nothing changes.

    A batch either scans or ends at the time of a DDL event, never both. The events of a replaced
    collection belong before the cut, and its new content belongs after it.

    Args:
        start: the offset before the batch.
        time: the cluster time at the end of the batch.
        scans: the scans in frontier order; all but the last reach the end of their collection.
        swept_all: no collection follows the last scan.
        replaced: the effect of the DDL events at `time`, if the batch ends at them.
        absent: collections that were to be copied again and do not exist. They are complete,
            because they are empty.

    Raises ValueError if the batch ends at a DDL event and scans.
    """
    if replaced is not None:
        if scans or swept_all:
            raise ValueError("a batch that ends at a DDL event scans nothing")
        return _apply_ddl(_move_to(start, time), replaced)
    again = tuple(each for each in start.again if each.namespace not in absent)
    offset = replace(_move_to(start, time), again=again, scans=scans)
    for scan in scans:
        offset = _add_scan(offset, scan)
    if swept_all:
        offset = replace(offset, swept=None)
    return start if offset == _move_to(start, start.time) else offset


def reselect(
    start: Offset,
    time: Timestamp,
    selection: Selection,
    capture: CaptureFilter,
    added: Iterable[Namespace],
) -> Offset:
    """Return the offset after the last batch with the selection and capture filter of `start`.

    The collections in `added` are copied while the changes of the others continue. A collection
    that is no longer selected stops here, whether its copy is complete or not.

    Args:
        start: the offset before the batch.
        time: the cluster time at the end of the batch.
        selection: the new selection.
        capture: the new capture filter.
        added: the collections at `time` that only the new selection contains; all collections if
            the capture filter changed.
    """
    again = tuple(each for each in start.again if selection.matches(each.namespace))
    copying = start.copying
    if copying and not selection.matches(copying.namespace):
        copying = None
    captured = replace(_move_to(start, time), selection=selection.text, capture_text=capture.text)
    return begin_again(replace(captured, copying=copying, again=again), added)


def begin_again(offset: Offset, names: Iterable[Namespace]) -> Offset:
    """Return the offset from which these collections are copied from their beginning.

    Names that the sweep has not reached need no entry: the sweep copies them later.
    """
    names = frozenset(names)
    again = {each.namespace: each for each in offset.again}
    for name in names - again.keys():
        if offset.has_reached(name):
            again[name] = Again(name, offset.time)
    is_restarted = offset.copying is not None and offset.copying.namespace in names
    copying = None if is_restarted else offset.copying
    ordered = tuple(again[name] for name in sorted(again, key=str))
    return replace(offset, again=ordered, copying=copying)


def pass_gap(start: Offset, time: Timestamp, recopied: Iterable[Namespace] | None = None) -> Offset:
    """Return the offset after a batch that reads nothing: the changes up to `time` are lost.

    Args:
        start: the offset before the gap.
        time: the cluster time from which changes can be read again.
        recopied: the collections that are copied again, at least all that exist. None: none is
            copied again, and a copy that has begun continues.
    """
    end = replace(_move_to(start, time), gap=start.time)
    if recopied is None:
        return end
    return begin_again(replace(end, copying=None, empties=True), recopied)


def mark_read(
    offset: Offset, shards: tuple[str, ...], topology_time: Timestamp, late: Times
) -> Offset:
    """Return the offset with the shards that are read up to it, and with its late times."""
    return replace(offset, shards=shards, topology_time=topology_time, late=late)


def silence(offset: Offset, shards: tuple[str, ...]) -> Offset:
    """Return the offset of a batch in which these shards do not report DDL, and all others do."""
    return replace(offset, silent=shards)


def list_recopied(start: Offset, end: Offset) -> list[Namespace]:
    """Return the collections that are to be copied again since the batch between two offsets."""
    before = {each.namespace for each in start.again}
    return [each.namespace for each in end.again if each.namespace not in before]


def list_withheld(start: Offset, end: Offset) -> list[Again]:
    """Return the collections whose changes before their copy are withheld.

    Their copy begins in the batch between the two offsets. It shows a later time than the time up
    to which their changes were emitted.
    """
    begun = {scan.copying.namespace for scan in end.scans}
    return [each for each in start.again if each.namespace in begun and each.since != end.time]


def _move_to(start: Offset, time: Timestamp) -> Offset:
    """Return the end of a batch up to `time` that does nothing else.

    The scans, silent shards and gap of the batch before are removed. If time passes, so are its
    late times and its position.
    """
    past = replace(start, scans=(), silent=(), gap=None, empties=False)
    return past if time == start.time else replace(past, time=time, late=(), position="")


def _add_scan(offset: Offset, scan: Scan) -> Offset:
    namespace = scan.copying.namespace
    again = tuple(each for each in offset.again if each.namespace != namespace)
    swept = offset.swept
    if swept is not None and str(namespace) > swept:
        swept = str(namespace)
    copying = None if scan.upper == MAX_KEY else replace(scan.copying, below=scan.upper)
    return replace(offset, copying=copying, again=again, swept=swept)


def _apply_ddl(offset: Offset, replaced: Replaced) -> Offset:
    """Return the offset after DDL events.

    An emptied collection is complete, because it contains nothing. A refilled collection is copied
    again. Names that the sweep has not reached need no entry: the sweep copies what it finds there.
    """
    touched = replaced.emptied | replaced.refilled
    reached = sorted(name for name in replaced.refilled if offset.has_reached(name))
    since = {each.namespace: each.since for each in offset.again}
    again = [each for each in offset.again if each.namespace not in touched]
    again += [Again(name, since.get(name, offset.time)) for name in reached]
    copying = offset.copying
    if copying and copying.namespace in touched:
        copying = None
    return replace(offset, copying=copying, again=tuple(again))
