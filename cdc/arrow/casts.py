"""Arrow arrays of values cast from many VARIANTs by compiled functions.

All values of a column are cast at once, and so are the values inside arrays, maps and structs. The
rules are those of `cdc.model.typed.typed_columns` and `cdc.model.typed.casts`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from cdc.arrow.cells import Cells, validity
from cdc.kernel import MISFIT, MISSING, TAKEN, Numbers, loading
from cdc.model.encoding import UTF16
from cdc.model.typed import Array, Decimals, Integer, Kind, Map, Scalar, Struct, casts

# Places for shapes of objects; a shape may take that of another one.
_SHAPES = 64
_Status = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True, slots=True)
class Places:
    """The positions of values in one buffer, and the numbers of the dictionaries of their names.

    A negative start means that there is no value.
    """

    starts: Numbers
    stops: Numbers
    rows: Numbers

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def arrays(self) -> tuple[Numbers, Numbers, Numbers]:
        return self.starts, self.stops, self.rows


@dataclass(frozen=True, slots=True)
class CastValues:
    """Cast values, null unless the status is TAKEN, and the status of each."""

    array: pa.Array
    status: _Status


class Documents:
    """The VARIANTs of a column; each is a struct of two binaries, value and metadata.

    The metadata may be a dictionary array; then each of its values is read once.
    """

    def __init__(self, column: pa.Array) -> None:
        self.kernel = loading.typed()
        self.data, starts, stops = _locate(column.field(0))
        metadata, numbers = _dictionaries(column.field(1))
        self.metadata, self._starts, self._stops = _locate(metadata)
        self.is_there = np.asarray(column.is_valid())
        self.whole = Places(np.where(self.is_there, starts, -1), stops, numbers)
        self._names = np.empty((len(metadata), self.kernel.DICTIONARY), np.int64)
        self.kernel.read_dictionaries(self.metadata, self._starts, self._stops, self._names)

    def find_fields(
        self, places: Places, names: list[bytes], first: int, found: Any, sizes: Numbers
    ) -> None:
        """Call the compiled `find_fields`; `names` must be in the order of names."""
        wanted = np.frombuffer(b"".join(names), np.uint8)
        ends = np.cumsum([0, *map(len, names)], dtype=np.int64)
        named, alike = (self.metadata, self._names), np.full(_SHAPES, -1)
        self.kernel.find_fields(
            self.data, *places.arrays, *named, wanted, ends, first, alike, found, sizes
        )

    def cast(self, places: Places, kind: Kind, arrow: pa.DataType) -> CastValues:
        """Cast values to the type `kind`, whose Arrow type is `arrow`."""
        if isinstance(kind, Array | Map):
            return self._cast_lists(places, kind, arrow)
        if isinstance(kind, Struct):
            return self._cast_structs(places, kind, arrow)
        if kind is Scalar.VARIANT:
            status = np.where(places.starts >= 0, TAKEN, MISSING).astype(np.uint8)
            return CastValues(self.write_variants(self.data, places, arrow), status)
        if isinstance(kind, Decimals):
            return self._cast_decimals(places, kind, arrow)
        if kind in (Scalar.STRING, Scalar.BINARY):
            return self._cast_contents(places, arrow)
        return self._cast_fixed(places, kind, arrow)

    def write_variants(self, data: Any, places: Places, arrow: pa.DataType) -> pa.Array:
        """Copy values as VARIANTs, each with a dictionary of only the names that it uses.

        `data` may be another buffer than the column's, but its ids must be those of the column's
        dictionaries.
        """
        longest = int(np.max(places.stops - places.starts, where=places.starts >= 0, initial=0))
        most = int(np.max(self._names[:, 0], initial=0))
        work = np.empty((longest // 3 + 1, 2), np.int64), np.empty(most + 1, np.int64)
        values, metadata = (Cells(len(places), len(data) + 64) for _ in range(2))
        named = self.metadata, self._starts, self._stops, self._names

        def step(at: int) -> Any:
            cells = values.out, values.ends, metadata.out, metadata.ends
            return self.kernel.variant_dictionary.trim_dictionaries(
                data, *places.arrays, *named, *work, at, *cells
            )

        self._fill(len(places), step, values, metadata)
        children = [values.array(arrow.field(0).type), metadata.array(arrow.field(1).type)]
        valid = validity(places.starts >= 0)
        return pa.Array.from_buffers(arrow, len(places), [valid], children=children)

    def _fill(self, count: int, step: Any, *filled: Cells) -> None:
        at = 0
        while at < count:
            at, why = step(at)
            if why == self.kernel.FULL:
                for cells in filled:
                    cells.grow()

    def _cast_fixed(self, places: Places, kind: Kind, arrow: pa.DataType) -> CastValues:
        status, at = np.empty(len(places), np.uint8), (self.data, places.starts)
        out: Any = np.zeros(len(places), np.int64)
        if isinstance(kind, Integer):
            self.kernel.casts.cast_integers(*at, places.stops, kind.bits, out, status)
        elif kind in (Scalar.FLOAT, Scalar.DOUBLE):
            out = np.zeros(len(places))
            self.kernel.casts.cast_doubles(*at, places.stops, kind is Scalar.FLOAT, out, status)
        else:
            self.kernel.casts.cast_fixed(
                *at, kind is Scalar.BOOLEAN, kind is Scalar.DATE, out, status
            )
        if kind is Scalar.BOOLEAN:
            out = np.packbits(out.astype(np.bool_), bitorder="little")
        else:
            out = out.astype(f"{out.dtype.kind}{arrow.bit_width // 8}")
        return _make_array(arrow, status, [pa.py_buffer(out)])

    def _cast_decimals(self, places: Places, kind: Decimals, arrow: pa.DataType) -> CastValues:
        status, out = np.empty(len(places), np.uint8), np.zeros((len(places), 2), np.uint64)
        at = 0
        while at < len(places):
            at, why = self.kernel.casts.cast_decimals(
                self.data, places.starts, places.stops, kind.precision, kind.scale, at, out, status
            )
            if why == self.kernel.casts.DOUBTFUL:
                value = self.data[places.starts[at] : places.stops[at]].tobytes()
                cast = casts.scalar(value, kind)
                status[at] = MISFIT if cast is casts.MISFIT else TAKEN
                if status[at] == TAKEN:
                    unscaled = int(cast.scaleb(kind.scale, casts.EXACT)) % 2**128
                    out[at] = unscaled % 2**64, unscaled >> 64
                at += 1
        return _make_array(arrow, status, [pa.py_buffer(out)])

    def _cast_contents(self, places: Places, arrow: pa.DataType) -> CastValues:
        room = int(np.sum(places.stops - places.starts, where=places.starts >= 0))
        status, cells = np.empty(len(places), np.uint8), Cells(len(places), room + 64)
        is_binary = pa.types.is_binary(arrow)

        def step(at: int) -> Any:
            located = self.data, places.starts, places.stops
            return self.kernel.casts.cast_contents(
                *located, is_binary, at, cells.out, cells.ends, status
            )

        self._fill(len(places), step, cells)
        return CastValues(cells.array(arrow, validity(status == TAKEN)), status)

    def _cast_lists(self, places: Places, kind: Array | Map, arrow: pa.DataType) -> CastValues:
        status, ends = np.empty(len(places), np.uint8), np.zeros(len(places) + 1, np.int32)
        lists = self.kernel.lists
        count = lists.count_elements(self.data, places.starts, places.stops)
        is_map = isinstance(kind, Map)
        table = np.empty((lists.ENTRY if is_map else lists.ELEMENT, count), np.int64)
        located = self.data, *places.arrays, self.metadata, self._names
        lists.list_elements(*located, is_map, table, ends, status)
        if ends[-1] < count:
            table = table[:, : ends[-1]].copy()
        inner = Places(*table[:3])
        if isinstance(kind, Map):
            values = self.cast(inner, kind.value, arrow.item_type)
            children = [self._gather_names(table[3], table[4], arrow.key_type), values.array]
            entry = pa.struct([arrow.key_field, arrow.item_field])
            child = pa.Array.from_buffers(entry, len(inner), [None], children=children)
        else:
            values = self.cast(inner, kind.element, arrow.value_type)
            child = values.array
        misfits = np.concatenate([[0], np.cumsum(values.status == MISFIT)])
        status[misfits[ends[1:]] > misfits[ends[:-1]]] = MISFIT
        return _make_array(arrow, status, [pa.py_buffer(ends)], [child])

    def _gather_names(self, starts: Numbers, stops: Numbers, arrow: pa.DataType) -> pa.Array:
        cells = Cells(len(starts), 64)

        def step(at: int) -> Any:
            return self.kernel.gather(self.metadata, starts, stops, at, cells.out, cells.ends)

        self._fill(len(starts), step, cells)
        return cells.array(arrow)

    def _cast_structs(self, places: Places, kind: Struct, arrow: pa.DataType) -> CastValues:
        names = sorted((name.encode() for name in kind.names), key=lambda n: n.translate(UTF16))
        found = np.empty((3, len(names), len(places)), np.int64)
        sizes = np.empty(len(places), np.int64)
        self.find_fields(places, names, 0, found, sizes)
        children = list[CastValues]()
        for index, name in enumerate(kind.names):
            starts, stops, _ = found[:, names.index(name.encode())]
            inner = Places(starts, stops, places.rows)
            children.append(self.cast(inner, kind.kinds[index], arrow.field(index).type))
        # The object has no other fields, and each field fits.
        fits = np.sum(found[0] >= 0, axis=0) == sizes
        for child in children:
            fits &= child.status != MISFIT
        status = np.where(fits, TAKEN, MISFIT).astype(np.uint8)
        status[sizes == self.kernel.ABSENT] = MISSING
        return _make_array(arrow, status, [], [child.array for child in children])


def _locate(column: pa.Array) -> tuple[Any, Numbers, Numbers]:
    """The buffer of a column of binaries, and the start and end of each."""
    column = column.cast(pa.binary())
    _, ends, data = column.buffers()
    places = np.frombuffer(ends, np.int32, len(column) + 1, 4 * column.offset).astype(np.int64)
    array = np.frombuffer(data or b"", np.uint8)
    # The functions are compiled for read-only arrays; Arrow's buffer may be writable.
    array.flags.writeable = False
    return array, places[:-1].copy(), places[1:].copy()


def _dictionaries(metadata: pa.Array) -> tuple[pa.Array, Numbers]:
    """The different dictionaries of a column, and the number of each row's."""
    if not pa.types.is_dictionary(metadata.type):
        metadata = metadata.dictionary_encode()
    return metadata.dictionary, metadata.indices.fill_null(0).to_numpy().astype(np.int64)


def _make_array(
    arrow: pa.DataType, status: _Status, buffers: list[pa.Buffer], children: Any = None
) -> CastValues:
    valid = validity(status == TAKEN)
    array = pa.Array.from_buffers(arrow, len(status), [valid, *buffers], children=children)
    return CastValues(array, status)
