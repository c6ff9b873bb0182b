"""Read one StreamSplit: a slice of the change stream, complete, once, in order.

The rules here were each won by an experiment in which their absence lost or doubled events:

* A slice is opened at its lower time and drops what is not after it. Opened one increment later,
  a new cursor's first token (the point it was opened at, not progress) could equal the upper time,
  and the slice would complete empty.
* A slice is complete only by what its own cursor delivered: an event after `upto`; a post-batch
  token after `upto`; or an empty reply to a getMore (never the opening reply) whose token has
  reached `upto`. The last is sound because the cursor was opened by time, below `upto`. An idle
  server never sends a token beyond its last event, so waiting for more would never end.
* A cursor that fails is thrown away and the slice opened again at its lower time; positions that
  were already handed out are skipped. It is never resumed by token: then an empty reply could
  carry a token at `upto` that this cursor has not passed.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial

import pymongo.errors
from bson.timestamp import Timestamp

from cdc.model import Excerpt, StreamSplit, by, resume_token
from cdc.mongo.connection import TOO_LARGE, Member, Progress, retrying
from cdc.mongo.read import oversize
from cdc.mongo.read.batch_size import BatchSize
from cdc.mongo.read.cursor import Cursor
from cdc.mongo.read.event_run import Located, plain, run
from cdc.mongo.read.images import Event, Images, fewer, told
from cdc.mongo.read.oversize import Raw

_BATCH = 1000


def read(
    open_member: Callable[[], Member],
    split: StreamSplit,
    images: Images,
    retry_seconds: float,
    at_once: bool = False,
) -> Iterator[Sequence[Event]]:
    """The split's events in order, each once, in batches of at most 16 MiB plus lookups; with
    `at_once` those of large replies as a `Run`, as far as they can be.

    Members that fail are replaced, until nothing new has come for `retry_seconds`: then
    TransientError is raised; other failures (HistoryLost, NotPermitted, …) at once.
    """
    attempted = f"Reading changes after {split.after} up to {split.upto}{by(split.excerpt)}"
    progress = Progress()
    passed = _Passed(split.behind, BatchSize(_BATCH))
    for attempt in retrying(progress, retry_seconds, attempted):
        with attempt:
            member = open_member()
            try:
                for events in _fitting(member, split, images, passed, at_once):
                    if events:
                        passed.position = events[-1].position
                        yield events
                        progress.made()
            finally:
                member.end()


@dataclass(slots=True)
class _Passed:
    """What holds from one cursor on a slice to the next: the last position handed out, up to which
    a slice opened again skips, and how large the replies may be."""

    position: str
    size: BatchSize


def _fitting(
    member: Member, split: StreamSplit, images: Images, passed: _Passed, at_once: bool
) -> Iterator[Sequence[Event]]:
    """Events not handed out yet, with all images that the server has; where it refuses what it is
    asked for, the slice is opened again, and less is asked for: fewer events at once, before
    anything of an event is left out."""
    used, refused = images, list[pymongo.errors.OperationFailure]()
    only_whole = images.on_oversize == "fail"
    for way in oversize.ways(split, only_whole):
        asked: Images | None = used
        while asked is not None:
            used = asked
            try:
                if at_once and not way.cuts and _is_alike(split):
                    yield from _attempt_at_once(member, way.asked, images, used, passed)
                else:
                    yield from _attempt(member, way, images, used, passed)
                return
            except pymongo.errors.OperationFailure as error:
                if error.code == TOO_LARGE and passed.size.shrink():
                    continue
                asked = fewer(used, error)
                if asked is None:
                    if not oversize.refuses(error):
                        raise
                    refused.append(error)
    if refused[0].code != TOO_LARGE:
        raise refused[0]
    time = resume_token.time_of(passed.position) if passed.position else split.after
    # Without its cause: there the server quotes the documents.
    raise oversize.unreadable(time, only_whole)


def _attempt(
    member: Member, way: oversize.Way, asked: Images, used: Images, passed: _Passed
) -> Iterator[list[Event]]:
    whole = partial(slices, member, images=used)
    excerpt = Excerpt.parse(way.asked.excerpt)
    lookup = asked.on_oversize == "lookup"
    with closing(oversize.Completion(way.whole, whole, _BATCH, lookup)) as completion:
        for batch, operation_time in slices(member, way.asked, passed.size, used):
            groups = (
                completion.groups(batch, passed.position)
                if way.cuts
                else [[raw for raw in batch if raw["_id"]["_data"] > passed.position]]
            )
            for group in groups:
                yield [told(member, raw, asked, used, operation_time, excerpt) for raw in group]


def _is_alike(split: StreamSplit) -> bool:
    """Whether what is told of an event depends on nothing but its own fields."""
    return split.only is None and Excerpt.parse(split.excerpt).condition is None


def _attempt_at_once(
    member: Member, split: StreamSplit, asked: Images, used: Images, passed: _Passed
) -> Iterator[Sequence[Event]]:
    excerpt, cursor = Excerpt.parse(split.excerpt), Cursor(member, split, used, passed.size)
    try:
        while not cursor.complete:
            for part in cursor.next_parts(partial(plain, used=used)):
                if isinstance(part, Located):
                    yield run(part.only(part.behind(passed.position)), asked)
                    continue
                new = [raw for raw in part if raw["_id"]["_data"] > passed.position]
                at = cursor.operation_time
                yield [told(member, raw, asked, used, at, excerpt) for raw in new]
    finally:
        cursor.close()


def slices(
    member: Member, split: StreamSplit, size: BatchSize, images: Images
) -> Generator[tuple[list[Raw], Timestamp]]:
    """One attempt at a slice: its raw events in order, each batch with the reply's operation time.

    Returns when the slice is complete; raises the driver's errors.
    """
    cursor = Cursor(member, split, images, size)
    try:
        while not cursor.complete:
            yield cursor.next_batch(), cursor.operation_time
    finally:
        cursor.close()
