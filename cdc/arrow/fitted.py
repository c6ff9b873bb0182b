"""Arrow arrays of what fits a type, of values at many places in VARIANTs, by compiled functions.

Each array of values is made at once, of arrays and structs those in them too, by the rule of
`cdc.model.typed` and `cdc.model.fit`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from cdc.arrow.cells import Cells, validity
from cdc.kernel import loading
from cdc.model import fit
from cdc.model.fit import Array, Decimals, Integer, Kind, Map, Scalar, Struct
from cdc.model.reply import MISFIT, MISSING, TAKEN, Numbers
from cdc.model.variant_bytes import NULL, UTF16

_Status = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True, slots=True)
class Places:
    """Where values are, none where that begins before 0, and in which row they have their names."""

    starts: Numbers
    stops: Numbers
    rows: Numbers

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def located(self) -> tuple[Numbers, Numbers, Numbers]:
        return self.starts, self.stops, self.rows


@dataclass(frozen=True, slots=True)
class Fitted:
    """Values, null where they were not taken, and what became of each."""

    array: pa.Array
    status: _Status


class Documents:
    """The VARIANTs of a column, which are structs of two binaries."""

    def __init__(self, column: pa.Array) -> None:
        self.kernel = loading.typed()
        self.data, starts, stops = _located(column.field(0))
        self.metadata, self._starts, self._stops = _located(column.field(1))
        self.is_there = np.asarray(column.is_valid())
        self.whole = Places(np.where(self.is_there, starts, -1), stops, np.arange(len(column)))
        self._names = np.empty((len(column), self.kernel.DICTIONARY), np.int64)
        self.kernel.dictionaries(self.metadata, self._starts, self._stops, self._names)

    def fields(
        self, places: Places, names: list[bytes], first: int, found: Any, sizes: Numbers
    ) -> None:
        """As the compiled function; `names` are in the order of names."""
        wanted = np.frombuffer(b"".join(names), np.uint8)
        ends = np.cumsum([0, *map(len, names)], dtype=np.int64)
        named = self.metadata, self._names
        self.kernel.fields(self.data, *places.located, *named, wanted, ends, first, found, sizes)

    def fitted(self, places: Places, kind: Kind, arrow: pa.DataType) -> Fitted:
        """What of the values is one of that type, which Arrow calls so."""
        if isinstance(kind, Array | Map):
            return self._lists(places, kind, arrow)
        if isinstance(kind, Struct):
            return self._structs(places, kind, arrow)
        if kind is Scalar.VARIANT:
            status = np.where(places.starts >= 0, TAKEN, MISSING).astype(np.uint8)
            return Fitted(self.variants(self.data, places, arrow), status)
        if isinstance(kind, Decimals):
            return self._decimals(places, kind, arrow)
        if kind in (Scalar.STRING, Scalar.BINARY):
            return self._contents(places, arrow)
        return self._fixed(places, kind, arrow)

    def variants(self, data: Any, places: Places, arrow: pa.DataType) -> pa.Array:
        """Each with its own names; the bytes may be others, of the same dictionaries."""
        longest = int(np.max(places.stops - places.starts, where=places.starts >= 0, initial=0))
        most = int(np.max(self._names[:, 0], initial=0))
        work = np.empty((longest // 3 + 1, 2), np.int64), np.empty(most + 1, np.int64)
        values, metadata = (Cells(len(places), len(data) + 64) for _ in range(2))
        named = self.metadata, self._starts, self._stops, self._names

        def step(at: int) -> Any:
            cells = values.out, values.ends, metadata.out, metadata.ends
            return self.kernel.own_names.own(data, *places.located, *named, *work, at, *cells)

        self._filled(len(places), step, values, metadata)
        children = [values.array(arrow.field(0).type), metadata.array(arrow.field(1).type)]
        valid = validity(places.starts >= 0)
        return pa.Array.from_buffers(arrow, len(places), [valid], children=children)

    def _filled(self, count: int, step: Any, *filled: Cells) -> None:
        at = 0
        while at < count:
            at, why = step(at)
            if why == self.kernel.FULL:
                for cells in filled:
                    cells.grow()

    def _fixed(self, places: Places, kind: Kind, arrow: pa.DataType) -> Fitted:
        status, at = np.empty(len(places), np.uint8), (self.data, places.starts, places.stops)
        out: Any = np.zeros(len(places), np.int64)
        if isinstance(kind, Integer):
            self.kernel.fit.integers(*at, kind.bits, out, status)
        elif kind in (Scalar.FLOAT, Scalar.DOUBLE):
            out = np.zeros(len(places))
            self.kernel.fit.doubles(*at, kind is Scalar.FLOAT, out, status)
        else:
            self.kernel.fit.fixed(*at, kind is Scalar.BOOLEAN, kind is Scalar.DATE, out, status)
        if kind is Scalar.BOOLEAN:
            out = np.packbits(out.astype(np.bool_), bitorder="little")
        else:
            out = out.astype(f"{out.dtype.kind}{arrow.bit_width // 8}")
        return _array(arrow, status, [pa.py_buffer(out)])

    def _decimals(self, places: Places, kind: Decimals, arrow: pa.DataType) -> Fitted:
        status, out = np.empty(len(places), np.uint8), np.zeros((len(places), 2), np.uint64)
        at = 0
        while at < len(places):
            at, why = self.kernel.fit.decimals(
                self.data, places.starts, places.stops, kind.precision, kind.scale, at, out, status
            )
            if why == self.kernel.fit.DOUBTFUL:
                value = self.data[places.starts[at] : places.stops[at]].tobytes()
                found = fit.scalar(value, kind)
                status[at] = MISFIT if found is fit.MISFIT else TAKEN
                if status[at] == TAKEN:
                    unscaled = int(found.scaleb(kind.scale, fit.EXACT)) % 2**128
                    out[at] = unscaled % 2**64, unscaled >> 64
                at += 1
        return _array(arrow, status, [pa.py_buffer(out)])

    def _contents(self, places: Places, arrow: pa.DataType) -> Fitted:
        status, cells = np.empty(len(places), np.uint8), Cells(len(places), 64)
        is_binary = pa.types.is_binary(arrow)

        def step(at: int) -> Any:
            located = self.data, places.starts, places.stops
            return self.kernel.fit.contents(*located, is_binary, at, cells.out, cells.ends, status)

        self._filled(len(places), step, cells)
        return Fitted(cells.array(arrow, validity(status == TAKEN)), status)

    def _lists(self, places: Places, kind: Array | Map, arrow: pa.DataType) -> Fitted:
        status, ends = np.empty(len(places), np.uint8), np.zeros(len(places) + 1, np.int32)
        table, at = np.empty((self.kernel.ELEMENT, len(places) + 64), np.int64), 0
        while at < len(places):
            located = self.data, *places.located, self.metadata, self._names
            at, why = self.kernel.elements(*located, isinstance(kind, Map), at, table, ends, status)
            if why == self.kernel.FULL:
                table = np.concatenate([table, np.empty_like(table)], axis=1)
        table = np.ascontiguousarray(table[:, : ends[-1]])
        inner = Places(*table[:3])
        if isinstance(kind, Map):
            found = self.fitted(inner, kind.value, arrow.item_type)
            children = [self._names_at(table[3], table[4], arrow.key_type), found.array]
            entry = pa.struct([arrow.key_field, arrow.item_field])
            child = pa.Array.from_buffers(entry, len(inner), [None], children=children)
        else:
            found = self.fitted(inner, kind.element, arrow.value_type)
            child = found.array
        wrong = np.concatenate([[0], np.cumsum(found.status == MISFIT)])
        status[wrong[ends[1:]] > wrong[ends[:-1]]] = MISFIT
        return _array(arrow, status, [pa.py_buffer(ends)], [child])

    def _names_at(self, starts: Numbers, stops: Numbers, arrow: pa.DataType) -> pa.Array:
        cells = Cells(len(starts), 64)

        def step(at: int) -> Any:
            return self.kernel.gathered(self.metadata, starts, stops, at, cells.out, cells.ends)

        self._filled(len(starts), step, cells)
        return cells.array(arrow)

    def _structs(self, places: Places, kind: Struct, arrow: pa.DataType) -> Fitted:
        names = sorted((name.encode() for name in kind.names), key=lambda n: n.translate(UTF16))
        found = np.empty((3, len(names), len(places)), np.int64)
        sizes = np.empty(len(places), np.int64)
        self.fields(places, names, 0, found, sizes)
        children = list[Fitted]()
        for index, name in enumerate(kind.names):
            starts, stops, _ = found[:, names.index(name.encode())]
            inner = Places(starts, stops, places.rows)
            children.append(self.fitted(inner, kind.kinds[index], arrow.field(index).type))
        # An object without other fields, of which each fits.
        fits = np.sum(found[0] >= 0, axis=0) == sizes
        for child in children:
            fits &= child.status != MISFIT
        status = np.where(fits, TAKEN, MISFIT).astype(np.uint8)
        status[self._is_missing(places)] = MISSING
        return _array(arrow, status, [], [child.array for child in children])

    def _is_missing(self, places: Places) -> Any:
        is_missing = places.starts < 0
        at = np.flatnonzero(~is_missing)
        is_missing[at] = self.data[places.starts[at]] == NULL
        return is_missing


def _located(column: pa.Array) -> tuple[Any, Numbers, Numbers]:
    """The bytes of binaries, and where each of them lies."""
    column = column.cast(pa.binary())
    _, ends, data = column.buffers()
    places = np.frombuffer(ends, np.int32, len(column) + 1, 4 * column.offset).astype(np.int64)
    found = np.frombuffer(data or b"", np.uint8)
    # Functions are compiled for such, whether Arrow gives them or not.
    found.flags.writeable = False
    return found, places[:-1].copy(), places[1:].copy()


def _array(
    arrow: pa.DataType, status: _Status, buffers: list[pa.Buffer], children: Any = None
) -> Fitted:
    valid = validity(status == TAKEN)
    array = pa.Array.from_buffers(arrow, len(status), [valid, *buffers], children=children)
    return Fitted(array, status)
