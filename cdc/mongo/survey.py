"""What happened in the time of a batch that is being planned: the events that it cannot hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from bson.timestamp import Timestamp

from cdc.model.hand_over import Replaced
from cdc.model.offset import Offset
from cdc.model.selection import Namespace, Selection
from cdc.model.split import StreamSplit
from cdc.mongo import pipeline, stream
from cdc.mongo.client import Member
from cdc.mongo.images import IMAGES
from cdc.mongo.quiet import is_quiet
from cdc.mongo.splits import span
from cdc.mongo.tellers import SLIM, Told


class Found(NamedTuple):
    """`time`: of the first event that the batch cannot hold, a row event or, with `ddl`, one that
    cuts it; `others`: DDL that cuts nothing."""

    time: Timestamp | None = None
    ddl: tuple[Told, ...] = ()
    others: tuple[Told, ...] = ()

    def replaced(self, selection: Selection) -> Replaced:
        """What the DDL that cuts the batch did to selected collections."""
        events = [event for _, event in self.ddl]
        emptied = {name for event in events for name in _selected(event.get("ns"), selection)}
        refilled = {name for event in events for name in _selected(event.get("to"), selection)}
        return Replaced(frozenset(emptied - refilled), frozenset(refilled))

    def renamed_onto(self, namespace: Namespace) -> list[Namespace]:
        """Which collections came to stand under that name, in order."""
        renames = [event for _, event in self.ddl if event.get("to")]
        return sorted({named(e["ns"]) for e in renames if named(e["to"]) == namespace})


def survey(
    open_member: Callable[[str], Member],
    start: Offset,
    end: Offset,
    selection: Selection,
    ddl: pipeline.Condition,
    rows: Sequence[pipeline.Condition],
    retry_seconds: float,
) -> Found:
    """The events between two offsets, DDL and rows, that meet one of the conditions, of each shard
    of `end` up to the first that a batch cannot hold."""
    if end.time <= start.time:
        return Found()
    stages = pipeline.pipeline([ddl, *rows], SLIM)
    told: list[Told] = [
        (split.shard, event)
        for split in (span(start, end, shard, selection, stages) for shard in end.shards)
        if rows or not _is_quiet(partial(open_member, split.shard), split)
        for event in _up_to_the_first(partial(open_member, split.shard), split, retry_seconds)
    ]
    time = min((e["clusterTime"] for _, e in told if pipeline.ends_batch(e)), default=None)
    cutting = [(s, e) for s, e in told if e["clusterTime"] == time and pipeline.cuts(e)]
    others = [(s, e) for s, e in told if not pipeline.ends_batch(e)]
    return Found(time, tuple(cutting), tuple(others))


def _is_quiet(open_member: Callable[[], Member], split: StreamSplit) -> bool:
    return not split.late and is_quiet(open_member, split.after, split.upto)


def _up_to_the_first(
    open_member: Callable[[], Member], split: StreamSplit, retry_seconds: float
) -> Iterator[Mapping[str, Any]]:
    for events in stream.read(open_member, split, IMAGES["off"], retry_seconds):
        for event in events:
            yield event.raw
            if pipeline.ends_batch(event.raw):
                return


def _selected(value: Mapping[str, Any] | None, selection: Selection) -> frozenset[Namespace]:
    if value is None or "coll" not in value:
        return frozenset()
    namespace = named(value)
    return frozenset({namespace} if selection.matches(namespace) else ())


def named(value: Mapping[str, Any]) -> Namespace:
    """An event's `ns` or `to`."""
    return Namespace(value["db"], value["coll"])
