"""Change events that exceed a BSON document of 16 MiB with their images.

The server refuses to return such an event. A split is first read as if it had none. After a refusal
it is read again with a stage that makes the server cut these events down and mark them. All other
events stay complete. The missing parts come from `$changeStreamSplitLargeEvent` if the server has
that stage; otherwise `on.oversize` decides.

The split's own cursor never has that stage, because the stage gives all events tokens of another
form (version 2, tried on 6.0.27). Within a transaction these sort after all its other tokens. A
stream opened again would then return events twice, and the position of an event would depend on its
neighbours. A completed event keeps the token that it has without the stage, and no read begins
between fragments.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import bson
import pymongo.errors
from bson.timestamp import Timestamp

from cdc.errors import TransientError, UnsuitableSource
from cdc.model import StreamSplit, timestamp
from cdc.mongo.connection import RAW, TOO_LARGE
from cdc.mongo.read.batch_size import BatchSize

Raw = Mapping[str, Any]
# The field that marks an event that was cut down.
MARK = "oversize"

_NO_EXPRESSION = 168  # before 4.4: $bsonSize
_NO_SUCH_STAGE = 40324
_NO_FRAGMENT = 7182500  # one part of the event is too large even alone
_IMAGES = ("fullDocument", "fullDocumentBeforeChange")
# The largest document that the server builds (16 MiB + 16 KiB), less the other fields of an event.
_MOST_BYTES = 16 * 2**20 + 16 * 2**10 - 4 * 2**10
# `_id` counts twice: it is the token, and the reply repeats the token.
_PARTS = ("_id", "_id", "documentKey", "updateDescription", *_IMAGES)


def _if_too_large(part: str, then: Any, otherwise: Any) -> dict[str, Any]:
    """An expression: `then` if the parts up to this one are too large, else `otherwise`."""
    parts = _PARTS[: _PARTS.index(part) + 1]
    sizes = [{"$ifNull": [{"$bsonSize": f"${each}"}, 0]} for each in parts]
    return {"$cond": [{"$gt": [{"$add": sizes}, _MOST_BYTES]}, then, otherwise]}


_CUT = {
    "$set": {
        MARK: _if_too_large(_PARTS[-1], True, "$$REMOVE"),
        **{part: _if_too_large(part, "$$REMOVE", f"${part}") for part in _IMAGES},
    }
}
# updateDescription has the full names of the changed fields. It may exceed 16 MiB alone, and then
# $bsonSize fails too.
_WITHOUT_DESCRIPTION = {"$unset": "updateDescription"}
_SPLIT = {"$changeStreamSplitLargeEvent": dict[str, Any]()}


class Way(NamedTuple):
    """A way to read a split's events.

    Attributes:
        split: the split to read.
        whole: the split that completes the events that were cut down.
        cuts: the server cuts large events down and marks them.
    """

    split: StreamSplit
    whole: StreamSplit
    cuts: bool


def ways(split: StreamSplit, only_whole: bool) -> Iterator[Way]:
    """Yield the ways to read a split, in the order of the attempts.

    The first reads the split as it is. If the server `refuses` an event, the next way requests less
    of it. `only_whole` omits the ways that may leave an event unmarked although it does not fit.
    """
    yield Way(split, split, cuts=False)
    yield Way(_add_stage(split, _CUT), split, cuts=True)
    if only_whole:
        return
    # Servers before 4.4 have no $bsonSize: there only the last way remains.
    bare = _add_stage(split, _WITHOUT_DESCRIPTION)
    yield Way(_add_stage(bare, _CUT), bare, cuts=True)
    yield Way(bare, bare, cuts=False)


def _add_stage(split: StreamSplit, stage: Mapping[str, Any]) -> StreamSplit:
    own = bson.decode(split.pipeline, codec_options=RAW)["pipeline"]
    return replace(split, pipeline=bson.encode({"pipeline": [*own, stage]}))


def refuses(error: pymongo.errors.OperationFailure) -> bool:
    """Whether the server refused this way of reading, and the next one may succeed."""
    return error.code in (TOO_LARGE, _NO_EXPRESSION)


def too_large_error(after: Timestamp, only_whole: bool) -> UnsuitableSource:
    """Return the error for an event that every way refuses, even alone in its reply."""
    what = (
        f"The change that follows {timestamp.text(after)} exceeds 16 MiB by itself, without images"
    )
    if only_whole:
        return UnsuitableSource(
            f"{what}: the names of the fields that it changed, its _id or its shard key are too"
            " large.",
            "Set on.oversize to lookup.",
        )
    return UnsuitableSource(
        f"{what}: its _id or its shard key is too large. The server sends five copies of it, so"
        " that one of more than 3 MiB cannot be captured.",
        "Start with a new checkpoint in mode initial, and leave its collection out of 'collections'"
        " if more of them will come.",
    )


class Fragments:
    """Joins the fragments of events of one cursor; those of an event arrive consecutively."""

    def __init__(self) -> None:
        self._parts: dict[str, Any] = {}

    def join(self, events: Sequence[Raw]) -> list[Raw]:
        """Return the events that are complete now; fragments of another one wait for the next call.

        A joined event is a mapping, because it may be larger than a BSON document can be.
        """
        return [whole for event in events if (whole := self._join(event)) is not None]

    def _join(self, event: Raw) -> Raw | None:
        fragment = event.get("splitEvent")
        if fragment is None:
            return event
        self._parts.update(event)
        if fragment["fragment"] < fragment["of"]:
            return None
        whole, self._parts = self._parts, {}
        return whole


Read = Callable[[StreamSplit, BatchSize], Iterator[tuple[list[Raw], Timestamp]]]


class Completion:
    """Completes the events of one cursor that were cut down, if the server can split them.

    The caller must call `close` at the end. Otherwise the garbage collector may close the cursor
    while the driver runs, and the driver then waits for itself.

    Args:
        split: the split of the events, without the stage that cuts them down.
        read: opens a cursor and yields its batches.
        most: the largest number of events in a reply.
        lookup: return an event as it is if the server cannot split it. Otherwise UnsuitableSource
            is raised.
    """

    def __init__(self, split: StreamSplit, read: Read, most: int, lookup: bool) -> None:
        self._split, self._read, self._most, self._lookup = split, read, most, lookup
        self._has_stage = True
        self._time, self._number = Timestamp(0, 0), 0
        self._wholes: Generator[Raw] | None = None
        self._begin_time()

    def close(self) -> None:
        """Close the cursor, if there is one."""
        if self._wholes is not None:
            self._wholes.close()

    def _begin_time(self) -> None:
        """Begin with the events of another time; a new cursor reads them if one is large."""
        self.close()
        self._passed, self._size = 0, BatchSize(self._most)
        self._can_split = self._has_stage

    def groups(self, batch: list[Raw], position: str) -> Iterator[list[Raw]]:
        """Yield the events of a batch after `position`, in groups.

        An event that was cut down is a group of its own, because it is large when completed. The
        caller must pass all batches of the cursor, in order.
        """
        group: list[Raw] = []
        for event in batch:
            self._count_event(event["clusterTime"])
            if event["_id"]["_data"] <= position:
                continue
            if MARK not in event:
                group.append(event)
                continue
            yield group
            yield [self._complete(event)]
            group = []
        yield group

    def _count_event(self, time: Timestamp) -> None:
        """Count an event among those of its time; its number is the same for each cursor."""
        if time == self._time:
            self._number += 1
        else:
            self._time, self._number = time, 1
            self._begin_time()

    def _complete(self, event: Raw) -> Raw:
        whole = self._read_whole() if self._can_split else None
        if whole is not None:
            if whole.get("documentKey") != event["documentKey"]:
                raise TransientError(
                    f"Reading changes at {self._time}: a second read returned another order."
                )
            return {**whole, "_id": event["_id"]}
        if self._lookup:
            return event
        ns = f"{event['ns']['db']}.{event['ns']['coll']}"
        raise UnsuitableSource(
            f"A change of {ns} at {timestamp.text(self._time)} exceeds 16 MiB with its images, and"
            " the server cannot split it.",
            "Set on.oversize to lookup, or images to update_lookup or off; MongoDB 6.0.9 and later"
            " can split it.",
        )

    def _read_whole(self) -> Raw | None:
        """Read the last counted event whole, by a cursor on its time; None if the server cannot."""
        try:
            if self._wholes is None or not self._passed:
                self._wholes = self._read_events()
            for whole in self._wholes:
                self._passed += 1
                if self._passed == self._number:
                    return whole
        except pymongo.errors.OperationFailure as error:
            if error.code == TOO_LARGE and self._size.shrink():
                self._passed = 0
                return self._read_whole()
            if error.code not in (_NO_SUCH_STAGE, _NO_FRAGMENT):
                raise
            self._has_stage &= error.code != _NO_SUCH_STAGE
            self._can_split = False
            return None
        raise TransientError(f"Reading changes at {self._time}: a second read lacks an event.")

    def _read_events(self) -> Generator[Raw]:
        before = timestamp.before(self._time)
        split = replace(self._split, after=before, upto=self._time, late=(), emitted=())
        # The cursor begins with the events at `before`, which may include one that cannot be split.
        split = _add_stage(split, {"$match": {"clusterTime": self._time}})
        for batch, _ in self._read(_add_stage(split, _SPLIT), self._size):
            yield from batch
