"""Where a batch would end that copies, or takes up another selection; and what forbids it to."""

from __future__ import annotations

from typing import NamedTuple

from bson.timestamp import Timestamp

from cdc.errors import BadOption
from cdc.model.excerpt import Excerpt
from cdc.model.hand_over import advance, reselect
from cdc.model.offset import Offset
from cdc.model.selection import Selection
from cdc.mongo import pipeline
from cdc.mongo.enumerator import Listing
from cdc.mongo.sweep import Sweep


class Intent(NamedTuple):
    """Where a batch up to the live edge would end, unless an event meets one of the conditions."""

    end: Offset
    unless: tuple[pipeline.Condition, ...] = ()


def sweeping(selection: Selection, start: Offset, edge: Timestamp, sweep: Sweep) -> Intent:
    """An event of a collection that nobody scans forbids to declare its name done."""
    end = advance(start, edge, sweep.scans, sweep.swept_all, absent=sweep.absent)
    if sweep == Sweep():
        return Intent(end)
    scanned = [scan.copying.namespace for scan in sweep.scans]
    return Intent(end, (pipeline.strangers(selection, start, end, scanned),))


def reselecting(
    selection: Selection,
    excerpt: Excerpt,
    start: Offset,
    edge: Timestamp,
    listed: Listing,
    copies: bool,
) -> Intent:
    """The last batch of what `start` captures, unless a collection was born behind the listing of
    which only the new selection or excerpt tells. What is new is copied if `copies`."""
    if start.excerpt != excerpt.text and not copies:
        raise BadOption(
            "Option 'filter' or 'fields' is not that of the checkpoint, and the mode copies"
            " nothing by it.",
            "Set mode to initial to copy all again, or set the option back.",
        )
    names = added = [collection.namespace for collection in listed.collections]
    before = None
    if start.excerpt == excerpt.text:
        before = Selection.parse(start.selection)
        added = [name for name in names if not before.matches(name)]
    newcomers = pipeline.newcomers(before, selection, names)
    end = reselect(start, edge, selection, excerpt, added if copies else [])
    return Intent(end, (newcomers,))
