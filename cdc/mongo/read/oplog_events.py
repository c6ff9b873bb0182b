"""Change events of the operations in one reply of the oplog, by plain Python or as columns.

Then the pipeline of the split, applied to these events by the server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from itertools import groupby
from typing import Protocol

import bson
import numpy as np
from bson.raw_bson import RawBSONDocument

from cdc.kernel import event_columns as at
from cdc.kernel import reply
from cdc.kernel.oplog_reply import OperationCollection, Operations, Range
from cdc.model import Namespace, Selection, StreamSplit
from cdc.model.oplog import (
    FindEntry,
    NeedsChangeStream,
    Operation,
    PreImageKey,
    change_event,
    unfold,
)
from cdc.mongo.connection import LONGEST_MS, CursorBatch, Member
from cdc.mongo.query import literal_documents
from cdc.mongo.read.event_run import Located, Run
from cdc.mongo.read.images import Event
from cdc.mongo.read.oplog_reading import Found


class Captured(Protocol):
    """Captured operations of a reply, in order. Both kinds have the same ones."""

    def __len__(self) -> int: ...
    def __getitem__(self, part: slice) -> Captured: ...

    def ranges(self) -> list[Range]:
        """Return the range of pre-images for each collection."""

    def events(self, images: list[Found]) -> Sequence[Event]:
        """Return the events. Raises NeedsChangeStream and UnmappableValue."""


def captured_operations(
    batch: CursorBatch, selection: Selection, find_entry: FindEntry
) -> Captured:
    """Return the captured operations of a reply. Raises NeedsChangeStream and UnmappableValue."""

    def is_captured(collection: OperationCollection) -> bool:
        return selection.matches(Namespace.parse(collection.name))

    located = Operations.of(batch.array, is_captured)
    # Parts share it: each would parse the whole reply again.
    plain = cache(partial(PlainOperations.of, batch, selection, find_entry))
    return plain() if located is None else CompiledOperations(located, plain)


class CompiledOperations:
    """Operations of a large reply. `plain` makes the same ones in plain Python."""

    def __init__(self, operations: Operations, plain: Callable[[], PlainOperations]) -> None:
        self._operations, self._plain = operations, plain

    def __len__(self) -> int:
        return len(self._operations)

    def __getitem__(self, part: slice) -> CompiledOperations:
        return CompiledOperations(self._operations[part], lambda: self._plain()[part])

    def ranges(self) -> list[Range]:
        return self._operations.ranges()

    def events(self, images: list[Found]) -> Sequence[Event]:
        replies = [(each.range, [batch.array for batch in each.batches]) for each in images]
        make_plain = cache(lambda: self._plain().event_maker(images))
        data = self._operations.events(replies, lambda row: bytes(make_plain()(row).raw))
        events = reply.locate_events(data, 0, len(data))
        if events is None or events[:, at.UNUSUAL].any():
            return self._plain().events(images)
        return _complete_run(Located(data, events))


class PlainOperations:
    """Operations of any reply."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        self._operations = operations

    @classmethod
    def of(cls, batch: CursorBatch, selection: Selection, find_entry: FindEntry) -> PlainOperations:
        """Return the captured operations. Raises NeedsChangeStream and UnmappableValue."""
        return cls(
            [
                operation
                for entry in batch.documents
                for operation in unfold(RawBSONDocument(entry), find_entry)
                if selection.matches(operation.namespace)
            ]
        )

    def __len__(self) -> int:
        return len(self._operations)

    def __getitem__(self, part: slice) -> PlainOperations:
        return PlainOperations(self._operations[part])

    def ranges(self) -> list[Range]:
        keys = [key for each in self._operations if (key := each.pre_image) is not None]
        by_collection = sorted(keys, key=lambda key: key.uuid)
        ranges = list[Range]()
        for uuid, group in groupby(by_collection, key=lambda key: key.uuid):
            # The entries of a large transaction may be among those of other changes.
            places = [_place(key) for key in group]
            ranges.append(Range(uuid, min(places), max(places)))
        return ranges

    def events(self, images: list[Found]) -> Sequence[Event]:
        return [_complete(raw) for raw in map(self.event_maker(images), range(len(self)))]

    def event_maker(self, images: list[Found]) -> Callable[[int], RawBSONDocument]:
        """Return a function that makes the event of the operation with that number."""
        found = dict[PreImageKey, bytes]()
        for each in images:
            for batch in each.batches:
                found.update(map(_recorded, batch.documents))
        return lambda row: _event(self._operations[row], found)


def _place(key: PreImageKey) -> tuple[int, int]:
    return key.time.time << 32 | key.time.inc, key.number


def _recorded(document: bytes) -> tuple[PreImageKey, bytes]:
    raw = RawBSONDocument(document)
    key = raw["_id"]
    image = PreImageKey(bytes(key["nsUUID"]), key["ts"], int(key["applyOpsIndex"]))
    return image, bytes(raw["preImage"].raw)


def _event(operation: Operation, images: dict[PreImageKey, bytes]) -> RawBSONDocument:
    key = operation.pre_image
    return change_event(operation, None if key is None else images.get(key))


def select_passing(
    member: Member, split: StreamSplit, events: Sequence[Event]
) -> Iterator[Sequence[Event]]:
    """Yield the events that the split's pipeline passes, as it changes them, in parts.

    The server applies the pipeline, unless it passes all events unchanged. Parts are in order and
    not empty. Raises NeedsChangeStream if an event is too large, and the driver's errors.
    """
    if split.is_whole:
        yield events
        return
    documents = map(_require_fitting, _documents(events))
    for command in literal_documents.commands(split.pipeline, split.collation, documents):
        command["maxTimeMS"] = LONGEST_MS
        batch = CursorBatch.of(member.command(split.database or "admin", command))
        if batch.cursor:
            raise NeedsChangeStream("a reply with filtered changes that is too large")
        passed = _unpack(batch)
        if len(passed):
            yield passed


def _documents(events: Sequence[Event]) -> Iterator[bytes]:
    if isinstance(events, Run):
        return iter(events.located.places(at.START))
    return (bson.encode(event.raw) for event in events)


def _require_fitting(document: bytes) -> bytes:
    if len(document) > literal_documents.MOST_BYTES:
        raise NeedsChangeStream("a change that is too large to be filtered")
    return document


def _unpack(batch: CursorBatch) -> Sequence[Event]:
    """Return the events of a reply. Events with the marks of a filter are unusual, so no run."""
    located = Located.of(batch)
    if located is not None and not located.events[:, at.UNUSUAL].any():
        return _complete_run(located)
    return [_complete(RawBSONDocument(each)) for each in batch.documents]


def _complete(raw: RawBSONDocument) -> Event:
    """Return an event that has all its images, or lacks only those that a pipeline omits."""
    after = raw.get("fullDocument")
    return Event(raw, None if after is None else bytes(after.raw), exact=True)


def _complete_run(located: Located) -> Run:
    """Return a run of such events."""
    return Run(located, np.ones(len(located), np.bool_))
