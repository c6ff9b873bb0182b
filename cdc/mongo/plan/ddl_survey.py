"""DDL survey: the events that must end a planned batch, and the shards that report DDL.

Several shards may see one DDL event, and one of them reports it. A split cannot know what other
shards report, or reported in an earlier batch. So the planner decides for each shard whether it
reports all DDL of the batch's time or none. The offset records the decision, so a replay reports
the same, whichever shard is the primary one by then.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from bson.timestamp import Timestamp

from cdc.model import (
    Namespace,
    Offset,
    Replaced,
    Selection,
    StreamSplit,
    advance,
    silence,
    timestamp,
)
from cdc.mongo.connection import Member
from cdc.mongo.plan.oplog_scan import has_only_row_changes
from cdc.mongo.plan.splits import span
from cdc.mongo.query import event_filter
from cdc.mongo.read import IMAGES, change_stream
from cdc.mongo.topology import Source

# The name of a shard, and a DDL event that it reports.
ReportedDdl = tuple[str, Mapping[str, Any]]
# A projection to the fields of an event that this module needs.
EVENT_FIELDS = dict.fromkeys(("ns", "to", "operationType", "clusterTime", "collectionUUID"), 1)


class SurveyResult(NamedTuple):
    """The result of a survey.

    Attributes:
        time: the time of the first event that the batch cannot contain; None if there is none. It
            is a row event that meets a condition, or DDL that cuts the batch.
        ddl: the DDL events that cut the batch at that time.
        others: the DDL events that do not cut a batch.
    """

    time: Timestamp | None = None
    ddl: tuple[ReportedDdl, ...] = ()
    others: tuple[ReportedDdl, ...] = ()

    def replaced_collections(self, selection: Selection) -> Replaced:
        """Return what the cutting DDL did to the selected collections."""
        events = [event for _, event in self.ddl]
        emptied = {name for event in events for name in _selected(event.get("ns"), selection)}
        refilled = {name for event in events for name in _selected(event.get("to"), selection)}
        return Replaced(frozenset(emptied - refilled), frozenset(refilled))

    def renamed_onto(self, namespace: Namespace) -> list[Namespace]:
        """Return the collections that were renamed to that name, sorted."""
        renames = [event for _, event in self.ddl if event.get("to")]
        return sorted(
            {event_namespace(e["ns"]) for e in renames if event_namespace(e["to"]) == namespace}
        )


def survey(
    open_member: Callable[[str], Member],
    start: Offset,
    end: Offset,
    selection: Selection,
    ddl: event_filter.Condition,
    rows: Sequence[event_filter.Condition],
    retry_seconds: float,
    rows_only: Container[str] = (),
) -> SurveyResult:
    """Read the events between two offsets that meet one of the conditions.

    Each shard of `end` is read only up to its first event that a batch cannot contain.

    Args:
        open_member: opens a member of a shard.
        start: the offset at the start of the planned batch.
        end: its candidate end.
        selection: the captured collections.
        ddl: a condition for DDL events.
        rows: conditions for row events that the batch cannot contain.
        retry_seconds: how long a failed read is repeated.
        rows_only: shards whose oplog has only changes of documents between the offsets.
    """
    if end.time <= start.time:
        return SurveyResult()
    stages = event_filter.pipeline([ddl, *rows], EVENT_FIELDS)
    reported: list[ReportedDdl] = []
    for split in (span(start, end, shard, selection, stages) for shard in end.shards):
        opener = partial(open_member, split.shard)
        if rows or not _has_only_row_changes(opener, split, rows_only):
            events = _read_to_first(opener, split, retry_seconds)
            reported += ((split.shard, event) for event in events)
    time = min((e["clusterTime"] for _, e in reported if event_filter.ends_batch(e)), default=None)
    cutting = [(s, e) for s, e in reported if e["clusterTime"] == time and event_filter.cuts(e)]
    others = [(s, e) for s, e in reported if not event_filter.ends_batch(e)]
    return SurveyResult(time, tuple(cutting), tuple(others))


def _has_only_row_changes(
    open_member: Callable[[], Member], split: StreamSplit, rows_only: Container[str]
) -> bool:
    # A late time is before those of the split.
    return not split.late and (
        split.shard in rows_only or has_only_row_changes(open_member, split.after, split.upto)
    )


def _read_to_first(
    open_member: Callable[[], Member], split: StreamSplit, retry_seconds: float
) -> Iterator[Mapping[str, Any]]:
    """Yield the events of a split up to the first that a batch cannot contain, inclusive."""
    for events in change_stream.read(open_member, split, IMAGES["off"], retry_seconds):
        for event in events:
            yield event.raw
            if event_filter.ends_batch(event.raw):
                return


def _selected(value: Mapping[str, Any] | None, selection: Selection) -> frozenset[Namespace]:
    if value is None or "coll" not in value:
        return frozenset()
    namespace = event_namespace(value)
    return frozenset({namespace} if selection.matches(namespace) else ())


def event_namespace(value: Mapping[str, Any]) -> Namespace:
    """Return the namespace in an event's `ns` or `to`."""
    return Namespace(value["db"], value["coll"])


def assign_reporters(
    source: Source, start: Offset, end: Offset, reported: Iterable[ReportedDdl]
) -> Offset:
    """Return the end of a batch, with the shards that do not report DDL in it (`silent`).

    The batch is made shorter if a shard would have to report only some of its DDL: the primary
    shards of two databases may differ.

    Args:
        source: decides which shard reports an event.
        start: the offset at the start of the batch.
        end: the planned offset at its end.
        reported: at least all DDL events of the batch.
    """
    decisions: dict[str, bool] = {}
    inside = [event for event in reported if _time(event) <= end.time]
    for time, simultaneous in itertools.groupby(sorted(inside, key=_time), _time):
        now: dict[str, bool] = {}
        for shard, event in simultaneous:
            now[shard] = source.reports_ddl(shard, event) or now.get(shard, False)
        if any(decisions.get(shard, reports) != reports for shard, reports in now.items()):
            end = advance(start, timestamp.before(time))
            break
        decisions |= now
    silent = tuple(shard for shard, reports in decisions.items() if not reports)
    # An end that is the start stays as it is: it still lists the silent shards of the batch before.
    return silence(end, silent) if silent else end


def _time(reported: ReportedDdl) -> Timestamp:
    time: Timestamp = reported[1]["clusterTime"]
    return time
