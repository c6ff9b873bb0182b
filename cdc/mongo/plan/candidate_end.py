"""Candidate end of a batch that copies or changes the selection."""

from __future__ import annotations

from typing import NamedTuple

from bson.timestamp import Timestamp

from cdc.errors import BadOption
from cdc.model import CaptureFilter, Offset, Selection, advance, reselect
from cdc.mongo.collections import Listing
from cdc.mongo.plan.next_scan import Sweep
from cdc.mongo.query import event_filter


class CandidateEnd(NamedTuple):
    """The end of a batch up to the live edge.

    It is valid only if no event of the batch meets one of the `unless` conditions.
    """

    end: Offset
    unless: tuple[event_filter.Condition, ...] = ()


def scan_candidate(
    selection: Selection, start: Offset, edge: Timestamp, sweep: Sweep
) -> CandidateEnd:
    """Return the candidate end of a batch that copies.

    An event of a collection that the batch does not scan makes it invalid: the name must not be
    recorded as done then.
    """
    end = advance(start, edge, sweep.scans, sweep.swept_all, absent=sweep.absent)
    if sweep == Sweep():
        return CandidateEnd(end)
    scanned = [scan.copying.namespace for scan in sweep.scans]
    return CandidateEnd(end, (event_filter.unscanned_rows(selection, start, end, scanned),))


def require_copy(start: Offset, capture: CaptureFilter, copies: bool) -> None:
    """Raise BadOption if the capture filter changed and the run does not copy."""
    if start.capture_text != capture.text and not copies:
        raise BadOption(
            "Option 'filter' or 'fields' differs from the checkpoint, but this mode does not copy"
            " the collections again.",
            "Set mode to initial to copy all again, or restore the option's old value.",
        )


def reselect_candidate(
    selection: Selection,
    capture: CaptureFilter,
    start: Offset,
    edge: Timestamp,
    listed: Listing,
    copies: bool,
) -> CandidateEnd:
    """Return the candidate end of the last batch with the selection and capture filter of `start`.

    It is invalid if a collection got its name or its first documents after the listing and only the
    new selection or capture filter captures it.

    Args:
        selection: the new selection.
        capture: the new capture filter.
        start: the offset before the batch.
        edge: the live edge.
        listed: the collections that exist.
        copies: the collections that only the new options capture are copied.

    Raises BadOption if the capture filter changed and the run does not copy.
    """
    require_copy(start, capture, copies)
    names = added = [collection.namespace for collection in listed.collections]
    before = None
    if start.capture_text == capture.text:
        before = Selection.parse(start.selection)
        added = [name for name in names if not before.matches(name)]
        # A table may contain rows of a collection that was selected earlier, and dropped since.
        added += [name for name in selection.names if not before.matches(name)]
    newcomers = event_filter.newly_selected_content(before, selection, names)
    end = reselect(start, edge, selection, capture, added if copies else [])
    return CandidateEnd(end, (newcomers,))
