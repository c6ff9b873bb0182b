"""Arrow columns of documents, written by compiled functions.

Plain Python encodes the documents that the compiled functions refuse, one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from cdc.kernel import Places, loading
from cdc.model import document_key_json, key_of, merge_key
from cdc.model.encoding import Column, encoder

# A compiled function that fills cells from the given row on. It returns the row where it stopped,
# and the reason.
Step = Callable[[int], Any]
Texts = tuple[str | bytes, ...]


class Cells:
    """The cells of a column in one buffer: `out[ends[n]:ends[n + 1]]` is row n."""

    def __init__(self, rows: int, size: int) -> None:
        self.out = np.empty(size, np.uint8)
        self.ends = np.zeros(rows + 1, np.int32)

    def put(self, row: int, cell: bytes) -> None:
        """Write the cell of a row; all rows before it must have been written."""
        begin = int(self.ends[row])
        while begin + len(cell) > len(self.out):
            self.grow()
        self.out[begin : begin + len(cell)] = np.frombuffer(cell, np.uint8)
        self.ends[row + 1] = begin + len(cell)

    def grow(self) -> None:
        """Double the buffer."""
        self.out = np.concatenate([self.out, np.empty(len(self.out) + 64, np.uint8)])

    def array(self, kind: pa.DataType, valid: pa.Buffer | None = None) -> pa.Array:
        """The cells as an Arrow array of strings or binaries, without a copy."""
        used = self.out[: int(self.ends[-1])]
        buffers = [valid, pa.py_buffer(self.ends), pa.py_buffer(used)]
        return pa.Array.from_buffers(kind, len(self.ends) - 1, buffers)


def encode_images(places: Places, kind: pa.DataType, format: str, json_mode: str) -> pa.Array:
    """Encode the column `before` or `after`; null where there is no document.

    The dictionaries of VARIANTs are a dictionary array if `kind` says so: many rows share one.
    """
    encode = encoder(format, json_mode)
    valid = validity(places.starts >= 0)
    if format == "variant":
        children = _encode_variants(places, kind, encode)
        return pa.Array.from_buffers(kind, len(places), [valid], children=children)
    cells = Cells(len(places), 2 * places.size + 64)
    if format == "bson":
        _fill_bson(places, cells)
    elif json_mode == "relaxed":
        _fill_json(places, cells, encode)
    else:
        _fill_one_by_one(places, cells, encode)
    return cells.array(kind, valid)


def encode_keys(places: Places, alone: bool) -> tuple[pa.Array, pa.Array]:
    """Encode the columns `key` and `document_key`.

    With `alone`, each of `places` is a documentKey. Otherwise it is a document, whose documentKey
    is its `_id`. Raises UnmappableValue as `merge_key` and `key_of` do.
    """
    texts, wholes = Cells(len(places), places.size + 64), Cells(len(places), places.size + 64)
    columns = loading.columns()

    def step(at: int) -> Any:
        return columns.write_keys(
            *places.arrays, alone, at, texts.out, texts.ends, wholes.out, wholes.ends
        )

    def one(document: bytes) -> Texts:
        key = key_of(document)
        return merge_key(key), document_key_json(document if alone else key)

    _fill(places, step, (texts, wholes), one)
    return texts.array(pa.string()), wholes.array(pa.string())


def encode_json(places: Places, one: Callable[[bytes], str]) -> pa.Array:
    """Encode documents as relaxed Extended JSON; `one` encodes those that are refused."""
    cells = Cells(len(places), 2 * places.size + 64)
    _fill_json(places, cells, one)
    return cells.array(pa.string(), validity(places.starts >= 0))


def copy_texts(places: Places) -> pa.Array:
    """The bytes at these places as strings; they must be UTF-8."""
    cells = Cells(len(places), places.size + 64)
    _fill_bson(places, cells)
    return cells.array(pa.string(), validity(places.starts >= 0))


class _Dictionaries:
    """The dictionaries of a column of VARIANTs, and for each row the number of its dictionary.

    The compiled encoder learns one dictionary at a time. It is complete when the next one begins.
    """

    def __init__(self, rows: int, longest: int) -> None:
        self.learnt = loading.columns().learn_nothing(longest)
        self._numbers = np.zeros(rows, np.int32)
        self._complete = list[bytes]([b""])
        self._current = self._next_row = 0

    def put(self, row: int, metadata: bytes) -> None:
        """Give a row a dictionary of its own."""
        self._numbers[self._next_row : row] = self._current
        self._numbers[row] = len(self._complete)
        self._complete.append(metadata)
        self._next_row = row + 1

    def end(self, row: int) -> None:
        """End the current dictionary before a row."""
        self._numbers[self._next_row : row] = self._current
        self._complete[self._current] = self._take()
        self._current, self._next_row = len(self._complete), row
        self._complete.append(b"")

    def array(self, kind: pa.DataType) -> pa.Array:
        """The dictionaries of all rows; call `end` before."""
        is_shared = pa.types.is_dictionary(kind)
        complete = pa.array(self._complete, kind.value_type if is_shared else kind)
        numbers = pa.array(self._numbers)
        if is_shared:
            return pa.DictionaryArray.from_arrays(numbers, complete)
        return complete.take(numbers)

    def _take(self) -> bytes:
        columns, out = loading.columns(), np.empty(2**12, np.uint8)
        size = columns.write_dictionary(*self.learnt, out)
        if size > len(out):
            out = np.empty(size, np.uint8)
            columns.write_dictionary(*self.learnt, out)
        return out[:size].tobytes()


def _encode_variants(
    places: Places, kind: pa.StructType, encode: Callable[[bytes], Column]
) -> list[pa.Array]:
    columns, at = loading.columns(), 0
    dictionaries = _Dictionaries(len(places), places.longest)
    values = Cells(len(places), 2 * places.size + columns.variant.room(places.longest))
    while at < len(places):
        at, why = columns.write_variants(
            *places.arrays, at, values.out, values.ends, *dictionaries.learnt
        )
        if why == columns.FULL:
            values.grow()
        elif why == columns.CHANGED:
            dictionaries.end(at)
        elif why == columns.DOUBTFUL:
            image = encode(places[at])
            assert isinstance(image, tuple), "a VARIANT has two parts"
            value, metadata = image
            values.put(at, value)
            dictionaries.put(at, metadata)
            at += 1
    dictionaries.end(at)
    return [values.array(kind.field(0).type), dictionaries.array(kind.field(1).type)]


def _fill_bson(places: Places, cells: Cells) -> None:
    columns = loading.columns()
    _fill(
        places,
        lambda at: columns.gather(*places.arrays, at, cells.out, cells.ends),
        (cells,),
        lambda document: (document,),
    )


def _fill_json(places: Places, cells: Cells, encode: Callable[[bytes], Column]) -> None:
    """Fill cells with relaxed Extended JSON."""
    columns = loading.columns()
    learnt = columns.learn_nothing(places.longest)

    def step(at: int) -> Any:
        return columns.write_relaxed_json(*places.arrays, at, cells.out, cells.ends, *learnt)

    _fill(places, step, (cells,), lambda document: (encode(document),))


def _fill_one_by_one(places: Places, cells: Cells, encode: Callable[[bytes], Column]) -> None:
    for row, document in enumerate(places):
        text = str(encode(document)) if places.starts[row] >= 0 else ""
        cells.put(row, text.encode())


def _fill(places: Places, step: Step, filled: Sequence[Cells], one: Callable[[bytes], Any]) -> None:
    columns, at = loading.columns(), 0
    while at < len(places):
        at, why = step(at)
        if why == columns.FULL:
            for cells in filled:
                cells.grow()
        elif why == columns.DOUBTFUL:
            for cells, text in zip(filled, one(places[at]), strict=True):
                cells.put(at, text.encode() if isinstance(text, str) else text)
            at += 1


def validity(is_there: np.ndarray[Any, np.dtype[np.bool_]]) -> pa.Buffer | None:
    """The Arrow validity bitmap, with a 1 for each cell that is not null; None if none is null."""
    if is_there.all():
        return None
    return pa.py_buffer(np.packbits(is_there, bitorder="little"))
