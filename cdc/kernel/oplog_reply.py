"""Operations in a reply of the oplog, and their change events, by compiled functions.

They pay for a reply of any size once they are loaded. So a process loads them when it has read some
replies, however small these are. This module is plain Python, like `cdc.kernel.reply`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, Self

import numpy as np

from cdc.kernel import loading
from cdc.kernel.reply import Total

Table = np.ndarray[tuple[int, int], np.dtype[np.int64]]

# Plain Python takes as long for this many bytes of entries as the compiled functions take to load.
WORTH: Final = 2**16
# No operation in a transaction has fewer bytes.
_LEAST: Final = 64
_MOST_COLLECTIONS: Final = 256
_PATH: Final = 2**16
# Bytes that an event usually has besides its images and the operation.
_EVENT: Final = 400
# An element of an array that is a document; nobody reads its name.
_ELEMENT: Final = b"\x03\0"

Reply = tuple[bytes, int, int]
Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]


class OperationCollection(NamedTuple):
    """A collection that a reply has operations on."""

    name: str
    uuid: bytes


class Range(NamedTuple):
    """The places of the first and the last pre-image of a collection: times, and indices."""

    uuid: bytes
    first: tuple[int, int]
    last: tuple[int, int]


class Operations:
    """Captured operations of a reply, in order."""

    def __init__(self, data: bytes, table: Table, collections: list[OperationCollection]) -> None:
        self._data, self._table, self._collections = data, table, collections

    @classmethod
    def of(cls, reply: Reply, is_captured: Callable[[OperationCollection], bool]) -> Self | None:
        """Locate the captured operations in an array of oplog entries.

        Returns None if the process has read little so far, or if the reply needs
        `cdc.model.oplog`.
        """
        data, start, stop = reply
        if _read.add(stop - start) < WORTH:
            return None
        at = loading.oplog().operations
        table = np.empty(((stop - start) // _LEAST, at.COUNT), np.int64)
        groups = np.empty((_MOST_COLLECTIONS, at.GROUP_COUNT), np.int64)
        view = np.frombuffer(data, np.uint8)
        count, group_count = at.locate(view, start, stop, table, groups)
        if count < 0:
            return None
        found = [_collection(data, group) for group in groups[:group_count].tolist()]
        captured = np.array([is_captured(each) for each in found], np.bool_)
        rows = table[:count]
        return cls(data, rows[captured[rows[:, at.GROUP]]] if count else rows, found)

    def __len__(self) -> int:
        return len(self._table)

    def __getitem__(self, part: slice) -> Operations:
        return Operations(self._data, self._table[part].copy(), self._collections)

    def ranges(self) -> list[Range]:
        """The ranges of pre-images that the operations need, one for each collection."""
        at, found = loading.oplog().operations, list[Range]()
        with_image = self._table[self._table[:, at.KIND] != at.INSERT]
        for group in np.unique(with_image[:, at.GROUP]).tolist():
            rows = with_image[with_image[:, at.GROUP] == group]
            first, last = ((int(row[at.TIME]), int(row[at.INDEX])) for row in (rows[0], rows[-1]))
            found.append(Range(self._collections[group].uuid, first, last))
        return found

    def events(
        self,
        images: Iterable[tuple[Range, Sequence[Reply]]],
        make_event: Callable[[int], bytes],
    ) -> bytes:
        """Return an array of the change events.

        Args:
            images: for each of `ranges` the replies with its pre-images, in order.
            make_event: makes the event of one of the operations that is rare, or has no image.
        """
        kernel, before = loading.oplog(), self._attach(images)
        at = kernel.operations
        changes = np.empty((kernel.DEPTH * kernel.MOST, kernel.CHANGE_COLUMNS), np.int64)
        frames = np.empty((kernel.DEPTH, kernel.FRAME_COLUMNS), np.int64)
        path, state = np.empty(_PATH, np.uint8), np.array([0, 4], np.int64)
        data, views = np.frombuffer(self._data, np.uint8), np.frombuffer(before, np.uint8)
        size = int((self._table[:, at.CHANGE + 1] - self._table[:, at.CHANGE]).sum())
        out = np.empty(size + 2 * len(before) + _EVENT * len(self) + _EVENT, np.uint8)
        while True:
            arguments = data, self._table, views, changes, frames, path
            status = kernel.write(*arguments, out, state)
            if status == kernel.DONE:
                return _end_array(out, int(state[1]))
            place = int(state[1])
            if status == kernel.FULL:
                out = _enlarge(out, place, 2 * len(out))
                continue
            event = np.frombuffer(_ELEMENT + make_event(int(state[0])), np.uint8)
            state[:] = state[0] + 1, place + len(event)
            if state[1] >= len(out):
                out = _enlarge(out, place, 2 * len(out) + len(event))
            out[place : state[1]] = event

    def _attach(self, images: Iterable[tuple[Range, Sequence[Reply]]]) -> bytes:
        """Give operations their pre-images; return the bytes that contain all of them."""
        at, parts, base = loading.oplog().operations, list[bytes](), 0
        self._table[:, at.IMAGE] = at.NONE
        uuids = [each.uuid for each in self._collections]
        for wanted, replies in images:
            group, row = uuids.index(wanted.uuid), 0
            for data, start, stop in replies:
                view = np.frombuffer(data, np.uint8)
                row = max(row, at.attach(view, start, stop, self._table, group, row, base))
                parts.append(data)
                base += len(data)
        return b"".join(parts)


_read = Total()


def _collection(data: bytes, group: list[int]) -> OperationCollection:
    at = loading.oplog().operations
    name = data[group[at.GROUP_NAME] : group[at.GROUP_NAME + 1]]
    uuid = data[group[at.GROUP_UUID] : group[at.GROUP_UUID + 1]]
    return OperationCollection(name.decode("utf-8", "surrogateescape"), uuid)


def _enlarge(out: Bytes, used: int, size: int) -> Bytes:
    """Copy the used part into an array of that size."""
    larger = np.empty(size, np.uint8)
    larger[:used] = out[:used]
    return larger


def _end_array(out: Bytes, stop: int) -> bytes:
    """Return the array whose elements end at `stop`, where there is room for a byte."""
    size = (stop + 1).to_bytes(4, "little")
    return b"".join((size, out[4:stop], b"\0"))
