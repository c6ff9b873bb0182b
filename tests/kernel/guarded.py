"""Compiled functions on bytes before memory that cannot be read: one read too far ends the process.

`python -m tests.kernel.guarded SEED COUNT` damages COUNT events, documents and VARIANTs.
"""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import random
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import bson
import numpy as np
import pyarrow as pa

from cdc.arrow import typed_columns
from cdc.kernel import event_columns as at
from cdc.kernel import loading
from cdc.model.bson import ARRAY, DOCUMENT, elements
from cdc.model.encoding import encoder, pack_object
from cdc.model.encoding.variant import pack_metadata
from cdc.model.typed import Array, Decimals, Integer, Map, Plan, Scalar, Struct
from tests.kernel.oplog_entries import entries, recorded

Place = tuple[int, int]
# Of an event; every other field is passed over by its size.
NAMES = (
    *("_id", "ns", "operationType", "clusterTime", "wallTime", "documentKey", "fullDocument"),
    *("fullDocumentBeforeChange", "updateDescription", "lsid", "txnNumber", "to", "x" * 11),
)
LENGTHS = (-(2**31), -1, 0, 1, 4, 5, 6, 12, 100, 2**16, 2**31 - 1)
_PROTECTED, _ROOM, _EVENTS = 0, 2**16, 8
_libc = ctypes.CDLL(None, use_errno=True)


class Guarded:
    """Bytes that end where memory does."""

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, _ROOM + mmap.PAGESIZE)
        start = np.frombuffer(self._map, np.uint8).ctypes.data
        guard = ctypes.c_void_p(start + _ROOM)
        if _libc.mprotect(guard, ctypes.c_size_t(mmap.PAGESIZE), _PROTECTED):
            raise OSError(ctypes.get_errno(), "mprotect")

    def holding(self, data: bytes) -> Any:
        """The bytes as an array, until the next ones are put there."""
        self._map[_ROOM - len(data) : _ROOM] = data
        array = np.frombuffer(self._map, np.uint8, len(data), _ROOM - len(data))
        array.flags.writeable = False  # as the bytes of a reply are
        return array

    def room(self, size: int) -> Any:
        """That many bytes to write to."""
        return np.frombuffer(self._map, np.uint8, size, _ROOM - size)


def framed(content: bytes) -> bytes:
    """A document of those elements."""
    return struct.pack("<i", len(content) + 5) + content + b"\0"


def listed(documents: Sequence[bytes]) -> bytes:
    """The array of documents that a reply holds."""
    return framed(b"".join(b"\x03%d\0" % n + each for n, each in enumerate(documents)))


class Kernels:
    """Calls every compiled function that reads bytes of a server, or of a table."""

    def __init__(self) -> None:
        self.columns, self._memory, self._other = loading.columns(), Guarded(), Guarded()
        self._learnt = self.columns.tables.learn_nothing(_ROOM)
        self._shared = np.zeros(1, np.int32), np.empty(2**20, np.uint8), np.zeros(3, np.int32)
        self._out = [np.empty(16 * _ROOM, np.uint8) for _ in range(2)]
        self._ends = [np.zeros(_EVENTS + 1, np.int32) for _ in range(2)]
        self._plan = Plan.of([((name,), kind) for name, kind in COLUMNS.items()])
        self.typed, self.oplog, self._written = loading.typed(), loading.oplog(), Guarded()
        self._names = np.empty((1, self.typed.DICTIONARY), np.int64)

    def read_events(self, array: bytes) -> None:
        """What is done with a reply of changes: located, then encoded where it is usual."""
        data, events = self._memory.holding(array), np.empty((_EVENTS, at.COUNT), np.int64)
        count = self.columns.change_events.locate(data, 0, len(data), events)
        usual = events[: max(count, 0)]
        usual = usual[usual[:, at.UNUSUAL] == 0]
        if not len(usual):
            return
        for field in (at.BEFORE, at.AFTER, at.UPDATE, at.SESSION):
            self._encode(data, usual[:, field].copy(), usual[:, field + 1].copy())
        self._keys(data, usual[:, at.KEY].copy(), usual[:, at.KEY + 1].copy(), alone=True)
        for field in (at.POSITION, at.OPERATION, at.DATABASE, at.COLL, at.TRANSACTION):
            self._gather(data, usual[:, field].copy(), usual[:, field + 1].copy())

    def read_documents(self, array: bytes) -> None:
        """What is done with a reply of documents."""
        data = self._memory.holding(array)
        starts, stops = np.empty(_EVENTS, np.int64), np.empty(_EVENTS, np.int64)
        count = max(self.columns.places(data, 0, len(data), starts, stops), 0)
        self._read(data, starts[:count], stops[:count])

    def read_document(self, document: bytes) -> None:
        """One whose place is known, whatever it holds."""
        data = self._memory.holding(document)
        self._read(data, np.array([0]), np.array([len(data)]))

    def _read(self, data: Any, starts: Any, stops: Any) -> None:
        self._gather(data, starts, stops)
        self._encode(data, starts, stops)
        self._keys(data, starts, stops, alone=False)

    def _gather(self, data: Any, starts: Any, stops: Any) -> None:
        self.columns.gather(data, starts, stops, 0, self._out[0], self._ends[0])

    def _encode(self, data: Any, starts: Any, stops: Any) -> None:
        cells = self._out[0], self._ends[0]
        for row in range(len(starts)):
            place = starts[row : row + 1], stops[row : row + 1]
            # What damaged documents taught is kept.
            self.columns.write_variants(data, *place, 0, *cells, *self._shared, *self._learnt)
            self._learnt[1][self.columns.tables.STATE, self.columns.tables.WRITTEN] = 0
            self.columns.write_relaxed_json(data, *place, 0, *cells, *self._learnt)

    def _keys(self, data: Any, starts: Any, stops: Any, alone: bool) -> None:
        cells = self._out[0], self._ends[0], self._out[1], self._ends[1]
        for row in range(len(starts)):
            place = starts[row : row + 1], stops[row : row + 1]
            self.columns.write_keys(data, *place, alone, 0, *cells)

    def read_operations(self, entries: bytes, images: bytes) -> None:
        """What is done with a reply of the oplog, and with one of pre-images."""
        oplog = self.oplog.operations
        data, table = self._memory.holding(entries), np.empty((_EVENTS, oplog.COUNT), np.int64)
        groups = np.empty((_EVENTS, oplog.GROUP_COUNT), np.int64)
        count, _ = oplog.locate(data, 0, len(data), table, groups)
        operations, before = table[: max(count, 0)], self._other.holding(images)
        operations[:, oplog.IMAGE] = oplog.NONE
        oplog.attach(before, 0, len(before), operations, 0, 0, 0)
        changes = np.empty(
            (self.oplog.DEPTH * self.oplog.MOST, self.oplog.CHANGE_COLUMNS), np.int64
        )
        frames = np.empty((self.oplog.DEPTH, self.oplog.FRAME_COLUMNS), np.int64)
        path, state = np.empty(2**12, np.uint8), np.array([0, 4], np.int64)
        while state[0] < len(operations):
            # Every output ends where memory does, too.
            out = self._written.room(int(state[1]) + 2**13)
            arguments = data, operations, before, changes, frames, path, out, state
            if self.oplog.write(*arguments) != self.oplog.DONE:
                state[0] += 1
            state[1] = 4

    def read_variant(self, value: bytes, metadata: bytes) -> None:
        """One in a table: into typed columns, and what is left of it."""
        columns = [
            pa.Array.from_buffers(pa.binary(), 1, [None, _ends(each), _buffer(memory, each)])
            for memory, each in ((self._memory, value), (self._other, metadata))
        ]
        documents = pa.StructArray.from_arrays(columns, ["value", "metadata"])
        typed_columns.convert_at_once(documents, self._plan, ARROW)

    def read_end(self, data: bytes) -> None:
        """Bytes as the value, and as the names, of a VARIANT, up to the end of either."""
        array, place = self._memory.holding(data), (np.array([0]), np.array([len(data)]))
        self.typed.locate_whole(array, *place, np.empty(1, np.int64))
        self.typed.read_dictionaries(array, *place, self._names)


VARIANT = pa.struct([("value", pa.binary()), ("metadata", pa.binary())])
COLUMNS = {
    "a": Integer(64),
    "b": Decimals(38, 10),
    "c": Scalar.STRING,
    "d": Scalar.DOUBLE,
    "e": Array(Scalar.TIMESTAMP),
    "f": Map(Scalar.VARIANT),
    "g": Struct(("a", "b"), (Integer(32), Scalar.BINARY)),
    "h": Scalar.VARIANT,
}
ARROW = pa.struct(
    [
        ("a", pa.int64()),
        ("b", pa.decimal128(38, 10)),
        ("c", pa.string()),
        ("d", pa.float64()),
        ("e", pa.list_(pa.int64())),
        ("f", pa.map_(pa.string(), VARIANT)),
        ("g", pa.struct([("a", pa.int32()), ("b", pa.binary())])),
        ("h", VARIANT),
        ("_rescued", VARIANT),
    ]
)


def _ends(data: bytes) -> pa.Buffer:
    return pa.py_buffer(np.array([0, len(data)], np.int32))


def _buffer(memory: Guarded, data: bytes) -> pa.Buffer:
    array = memory.holding(data)
    return pa.foreign_buffer(array.ctypes.data, len(array), array)


def last_fields(event: bytes) -> Iterator[bytes]:
    """The event with one field more, of each name and type, and of no bytes up to a few of them."""
    for name in NAMES:
        for kind in range(256):
            for value in (b"", b"\0", b"\0" * 4, b"\5\0\0\0\0", b"\0" * 8, b"\xff" * 12):
                field = bytes([kind]) + name.encode() + b"\0" + value
                yield framed(event[4:-1] + field)


def damaged(draw: random.Random, document: bytes) -> bytes:
    """Cut off, or with other lengths, types or bytes in it; mostly of a length that is right."""
    data, places = bytearray(document), list(_elements(document, 0, len(document)))
    for _ in range(draw.randrange(1, 3)):
        how, (kind_at, value_at) = draw.randrange(5), draw.choice(places)
        if how == 0:
            del data[draw.randint(5, len(data)) :]
            data[-1] = 0
        elif how == 1:
            data[draw.randrange(len(data))] = draw.choice((0, 1, 0x7F, 0xFF, draw.randrange(256)))
        elif how == 2 and kind_at < len(data):
            data[kind_at] = draw.choice((*range(1, 20), 0x7F, 0xFF))
        elif value_at + 4 < len(data):
            (length,) = struct.unpack_from("<i", data, value_at)
            near = max(-(2**31), min(length + draw.randrange(-6, 7), 2**31 - 1))
            struct.pack_into("<i", data, value_at, draw.choice((*LENGTHS, near, near)))
    if draw.random() < 0.9 and len(data) >= 5:
        struct.pack_into("<i", data, 0, len(data))
    return bytes(data)


def _elements(data: bytes, start: int, stop: int) -> Iterator[Place]:
    """Of each element, where its type and its value stand."""
    begin = start + 4
    for each in elements(data, start, stop):
        yield begin, each.start
        if each.kind in (DOCUMENT, ARRAY):
            yield from _elements(data, each.start, each.stop)
        begin = each.stop


def short_ends() -> Iterator[bytes]:
    """What begins as any value, or as names, and ends before it says where it ends."""
    for first in range(256):
        for count in range(5):
            yield bytes([first]) + count * b"\xff"


def damaged_variant(draw: random.Random, whole: bytes) -> bytes:
    data = bytearray(whole[: draw.randrange(len(whole)) + 1] if draw.random() < 0.3 else whole)
    for _ in range(draw.randrange(4)):
        data[draw.randrange(len(data))] = draw.choice((0, 1, 0x7F, 0xFF, draw.randrange(256)))
    return bytes(data)


def run(seed: int, count: int) -> None:
    from tests.kernel.test_encoded_events import SESSION, UNUSUAL, USUAL, change
    from tests.kernel.test_typed_columns import LIKELY, drawn
    from tests.model.mixed import values

    draw, kernels = random.Random(seed), Kernels()
    whole = bson.encode(change(lsid=SESSION, txnNumber=bson.Int64(7)))
    for event in last_fields(whole):
        kernels.read_events(listed([event]))
        kernels.read_document(event)
    for size in range(40):
        # A name of which the first bytes are those that the learnt name has.
        kernels.read_document(framed(b"\x0a" + b"n" * 40 + b"\0"))
        kernels.read_document(framed(b"\x0a" + b"n" * size + b"\0"))
    pool = values(seed, 300) + LIKELY
    events = [bson.encode(each) for each in (*USUAL.values(), *UNUSUAL.values())]
    documents = [drawn(draw, pool)[1] for _ in range(300)]
    documents = [each for each in documents if 5 < len(each) < 4096]
    reads: list[tuple[list[bytes], Callable[[bytes], None]]] = [
        (events, lambda each: kernels.read_events(listed([whole, each]))),
        (documents, lambda each: kernels.read_documents(listed([each]))),
        (documents, kernels.read_document),
    ]
    for _ in range(count):
        for given, read in reads:
            read(damaged(draw, draw.choice(given)))
    oplog, images = list(entries()), [recorded(number) for number in range(3)]
    for each in oplog:
        kernels.read_operations(listed([each]), listed(images))
    for _ in range(count):
        kernels.read_operations(listed([damaged(draw, draw.choice(oplog))]), listed(images))
        bad = damaged(draw, images[0])
        kernels.read_operations(listed([draw.choice(oplog)]), listed([bad, *images[1:]]))
    for end in short_ends():
        kernels.read_end(end)
        kernels.read_variant(pack_object([0], [end]), pack_metadata([b"a"]))
    for _ in range(count // 10):
        fields = {name: draw.choice(documents) for name in COLUMNS}
        content = b"".join(b"\x03" + n.encode() + b"\0" + each for n, each in fields.items())
        value, metadata = encoder("variant")(framed(content))
        kernels.read_variant(damaged_variant(draw, value), metadata)
        kernels.read_variant(value, damaged_variant(draw, metadata))


if __name__ == "__main__":
    faulthandler.enable()
    run(*map(int, sys.argv[1:]))
