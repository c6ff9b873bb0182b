"""Events that do not fit into a BSON document of 16 MiB with their images: the server refuses them.

A slice is read as if there were none. If there is one, it is read again by a stage that has the
server itself cut such events down, and mark them, while all others keep what they have. What was
cut off comes from `$changeStreamSplitLargeEvent`, where the server has that stage, else by policy.

That stage is never part of the slice's own cursor: it gives tokens of another form to all events
(version 2, tried on 6.0.27). Within a transaction they sort behind every other token of it, so a
slice opened again would tell events twice, and a position would depend on what lies beside it. An
event that is put together keeps the token that it has without the stage, and nothing ever begins
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
# In an event that was cut down.
MARK = "oversize"

_NO_EXPRESSION = 168  # before 4.4: $bsonSize
_NO_SUCH_STAGE = 40324
_NO_FRAGMENT = 7182500  # a part of the event that is too large even alone
_IMAGES = ("fullDocument", "fullDocumentBeforeChange")
# What the server puts into one document (16 MiB + 16 KiB), less what an event has besides these.
_MOST = 16 * 2**20 + 16 * 2**10 - 4 * 2**10
# A reply repeats the token.
_PARTS = ("_id", "_id", "documentKey", "updateDescription", *_IMAGES)


def _upto(part: str, then: Any, otherwise: Any) -> dict[str, Any]:
    """One or the other, by whether the parts up to this one are too large together."""
    parts = _PARTS[: _PARTS.index(part) + 1]
    sizes = [{"$ifNull": [{"$bsonSize": f"${each}"}, 0]} for each in parts]
    return {"$cond": [{"$gt": [{"$add": sizes}, _MOST]}, then, otherwise]}


_CUT = {
    "$set": {
        MARK: _upto(_PARTS[-1], True, "$$REMOVE"),
        **{part: _upto(part, "$$REMOVE", f"${part}") for part in _IMAGES},
    }
}
# It tells the names of fields in full, and may exceed 16 MiB alone: then $bsonSize fails too.
_UNDESCRIBED = {"$unset": "updateDescription"}
_SPLIT = {"$changeStreamSplitLargeEvent": dict[str, Any]()}


class Way(NamedTuple):
    """A way to read a split's events: what to ask for, and what of it is then to be completed."""

    asked: StreamSplit
    whole: StreamSplit
    cuts: bool


def ways(split: StreamSplit, only_whole: bool) -> Iterator[Way]:
    """In the order in which they are to be tried: the split as it is, and where the server
    `refuses` an event, each with less than the one before. `only_whole`: as long as each event that
    does not fit can be told from the others."""
    yield Way(split, split, cuts=False)
    yield Way(_extended(split, _CUT), split, cuts=True)
    if only_whole:
        return
    # On servers older than 4.4 the last way is the only other one.
    bare = _extended(split, _UNDESCRIBED)
    yield Way(_extended(bare, _CUT), bare, cuts=True)
    yield Way(bare, bare, cuts=False)


def _extended(split: StreamSplit, stage: Mapping[str, Any]) -> StreamSplit:
    own = bson.decode(split.pipeline, codec_options=RAW)["pipeline"]
    return replace(split, pipeline=bson.encode({"pipeline": [*own, stage]}))


def refuses(error: pymongo.errors.OperationFailure) -> bool:
    return error.code in (TOO_LARGE, _NO_EXPRESSION)


def unreadable(after: Timestamp, only_whole: bool) -> UnsuitableSource:
    """The error where every way is refused, though the event was asked for alone."""
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
    """Puts the events of one cursor together, whose fragments follow one another."""

    def __init__(self) -> None:
        self._parts: dict[str, Any] = {}

    def joined(self, events: Sequence[Raw]) -> list[Raw]:
        """The events that are whole with these. One may exceed what a BSON document can hold, so
        what was put together is a mapping."""
        return [whole for event in events if (whole := self._joined(event)) is not None]

    def _joined(self, event: Raw) -> Raw | None:
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
    """Completes the events of one cursor on `split` that were cut down, if the server can split
    them. If it cannot, they stay as they are with `lookup`; without it UnsuitableSource is raised.

    `read` opens a cursor, whose replies hold at most `most` events. `close` has to be called in the
    end: what is left to the garbage collector may be collected within the driver, which then waits
    for itself.
    """

    def __init__(self, split: StreamSplit, read: Read, most: int, lookup: bool) -> None:
        self._split, self._read, self._most, self._lookup = split, read, most, lookup
        self._has_stage = True
        self._time, self._count = Timestamp(0, 0), 0
        self._rest: Generator[Raw] | None = None
        self._begin()

    def close(self) -> None:
        """Frees the cursor, if there is one."""
        if self._rest is not None:
            self._rest.close()

    def _begin(self) -> None:
        """The events of another time, which a cursor of its own reads if one of them is large."""
        self.close()
        self._passed, self._size = 0, BatchSize(self._most)
        self._can_split = self._has_stage

    def groups(self, batch: list[Raw], position: str) -> Iterator[list[Raw]]:
        """The events behind `position`; those that were cut down by themselves, because they are
        large when completed. All batches of the cursor have to come by, in order."""
        group: list[Raw] = []
        for event in batch:
            self._number(event["clusterTime"])
            if event["_id"]["_data"] <= position:
                continue
            if MARK not in event:
                group.append(event)
                continue
            yield group
            yield [self._completed(event)]
            group = []
        yield group

    def _number(self, time: Timestamp) -> None:
        """Events of one time are told apart by their number, which is the same for each cursor."""
        if time == self._time:
            self._count += 1
        else:
            self._time, self._count = time, 1
            self._begin()

    def _completed(self, event: Raw) -> Raw:
        whole = self._whole() if self._can_split else None
        if whole is not None:
            if whole.get("documentKey") != event["documentKey"]:
                raise TransientError(
                    f"Reading changes at {self._time}: they came in another order."
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

    def _whole(self) -> Raw | None:
        """The newest event as a cursor of its own time tells it, None if the server cannot."""
        try:
            if self._rest is None or not self._passed:
                self._rest = self._events()
            for whole in self._rest:
                self._passed += 1
                if self._passed == self._count:
                    return whole
        except pymongo.errors.OperationFailure as error:
            if error.code == TOO_LARGE and self._size.shrink():
                self._passed = 0
                return self._whole()
            if error.code not in (_NO_SUCH_STAGE, _NO_FRAGMENT):
                raise
            self._has_stage &= error.code != _NO_SUCH_STAGE
            self._can_split = False
            return None
        raise TransientError(f"Reading changes at {self._time}: an event is gone.")

    def _events(self) -> Generator[Raw]:
        before = timestamp.before(self._time)
        split = replace(self._split, after=before, upto=self._time, late=(), told=())
        # A cursor begins with what was at `before`: that may be an event that cannot be split.
        split = _extended(split, {"$match": {"clusterTime": self._time}})
        for batch, _ in self._read(_extended(split, _SPLIT), self._size):
            yield from batch
