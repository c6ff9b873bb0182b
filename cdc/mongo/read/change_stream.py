"""Reads of a StreamSplit: all events of a time range, each once, in order.

Each of these rules comes from an experiment that lost or repeated events without it:

* The stream is opened at the split's lower time `after`, and events at that time are dropped.
  Opened one increment later, the first token of a new cursor could equal the upper time, and the
  split would complete empty. That token is the point at which the cursor was opened, not progress.
* Only replies of the current cursor complete the split. Sufficient are an event after the upper
  time, a post-batch token after it, or an empty reply to a getMore whose token has reached it.
  The opening reply is never sufficient. The empty reply is, because the cursor was opened by time,
  before the upper time. An idle server never sends a token after its last event, so a wait for a
  later token would never end.
* A router (`Member.is_router`) merges the streams of several shards. There the empty reply does not
  complete a split: its token is the earliest of the shards, and events of another shard may have
  the same time. The planner ends a batch one increment before such a token, so a later one comes.
* A cursor that fails is discarded, and the stream is opened again at the lower time. Positions that
  were already yielded are skipped. The stream is not resumed by token: an empty reply could then
  have a token at the upper time that this cursor has not passed.

The upper time is `StreamSplit.last`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial

import pymongo.errors
from bson.timestamp import Timestamp

from cdc.model import StreamSplit, resume_token
from cdc.mongo.connection import TOO_LARGE, Member, Progress, retry_attempts
from cdc.mongo.read import oversize
from cdc.mongo.read.batch_size import BatchSize
from cdc.mongo.read.cursor import Cursor
from cdc.mongo.read.event_run import Located, make_run, select_plain
from cdc.mongo.read.images import Event, Images, complete_event, reduce_images
from cdc.mongo.read.oversize import Raw

_BATCH = 1000


def read(
    open_member: Callable[[], Member],
    split: StreamSplit,
    images: Images,
    retry_seconds: float,
    at_once: bool = False,
) -> Generator[Sequence[Event]]:
    """Yield the split's events in order, each once, in batches of at most 16 MiB plus lookups.

    Args:
        open_member: opens a member for each attempt.
        split: the split to read.
        images: the configured images.
        retry_seconds: how long attempts are repeated while they yield nothing new.
        at_once: yield a `Run` for the events of a large reply that allow it.

    Raises TransientError after `retry_seconds` of failures; other errors (HistoryLost,
    NotPermitted, …) at once.
    """
    attempted = (
        f"Reading changes after {split.after} up to {split.upto}{split.capture.error_suffix}"
    )
    progress = Progress()
    state = _ReadState(split.after_position, BatchSize(_BATCH))
    for attempt in retry_attempts(progress, retry_seconds, attempted):
        with attempt:
            member = open_member()
            try:
                for events in _read_fitting(member, split, images, state, at_once):
                    if events:
                        state.position = events[-1].position
                        yield events
                        progress.record_progress()
            finally:
                member.end()


@dataclass(slots=True)
class _ReadState:
    """State that the cursors on one split pass on to each other.

    Attributes:
        position: the last position that was yielded; a later cursor skips events up to it.
        size: the number of events in each reply.
    """

    position: str
    size: BatchSize


def _read_fitting(
    member: Member, split: StreamSplit, images: Images, state: _ReadState, at_once: bool
) -> Iterator[Sequence[Event]]:
    """Yield the events that were not yielded yet, with all images that the server can return.

    After a refusal, the stream is opened again and less is requested. The replies become smaller
    before any part of an event is left out.
    """
    used, refusals = images, list[pymongo.errors.OperationFailure]()
    only_whole = images.on_oversize == "fail"
    for way in oversize.ways(split, only_whole):
        reduced: Images | None = used
        while reduced is not None:
            used = reduced
            try:
                if at_once and not way.cuts and _allows_runs(split):
                    yield from _read_runs(member, way.split, images, used, state)
                else:
                    yield from _read_events(member, way, images, used, state)
                return
            except pymongo.errors.OperationFailure as error:
                if error.code == TOO_LARGE and state.size.shrink():
                    continue
                reduced = reduce_images(used, error)
                if reduced is None:
                    if not oversize.refuses(error):
                        raise
                    refusals.append(error)
    if refusals[0].code != TOO_LARGE:
        raise refusals[0]
    time = resume_token.time_of(state.position) if state.position else split.after
    # Raised without its cause, because the server's message quotes the documents.
    raise oversize.too_large_error(time, only_whole)


def _read_events(
    member: Member, way: oversize.Way, expected: Images, used: Images, state: _ReadState
) -> Iterator[list[Event]]:
    whole = partial(slices, member, images=used)
    capture = way.split.capture
    lookup = expected.on_oversize == "lookup"
    with closing(oversize.Completion(way.whole, whole, _BATCH, lookup)) as completion:
        for batch, operation_time in slices(member, way.split, state.size, used):
            groups = (
                completion.groups(batch, state.position)
                if way.cuts
                else [[raw for raw in batch if raw["_id"]["_data"] > state.position]]
            )
            for group in groups:
                yield [
                    complete_event(member, raw, expected, used, operation_time, capture)
                    for raw in group
                ]


def _allows_runs(split: StreamSplit) -> bool:
    """Whether the reader need not check the namespace or the capture filter of each event."""
    return split.only is None and split.capture.condition is None


def _read_runs(
    member: Member, split: StreamSplit, expected: Images, used: Images, state: _ReadState
) -> Iterator[Sequence[Event]]:
    capture, cursor = split.capture, Cursor(member, split, used, state.size)
    try:
        while not cursor.complete:
            for part in cursor.next_parts(partial(select_plain, used=used)):
                if isinstance(part, Located):
                    yield make_run(part.select(part.select_after(state.position)), expected)
                    continue
                new = [raw for raw in part if raw["_id"]["_data"] > state.position]
                at = cursor.operation_time
                yield [complete_event(member, raw, expected, used, at, capture) for raw in new]
    finally:
        cursor.close()


def slices(
    member: Member, split: StreamSplit, size: BatchSize, images: Images
) -> Generator[tuple[list[Raw], Timestamp]]:
    """Yield the raw events of a split in order, each batch with its reply's operation time.

    This is one attempt with one cursor. It returns when the split is complete, and raises the
    driver's errors.
    """
    cursor = Cursor(member, split, images, size)
    try:
        while not cursor.complete:
            yield cursor.next_batch(), cursor.operation_time
    finally:
        cursor.close()
