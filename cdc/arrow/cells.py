"""Arrow columns of documents, written by compiled functions.

Plain Python encodes the documents that the compiled functions refuse, one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from cdc.kernel import Places, loading
from cdc.model import document_key_json, document_key_of, key_of, merge_key, whole_key
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

    def array(
        self, kind: pa.DataType, valid: pa.Buffer | None = None, count: int | None = None
    ) -> pa.Array:
        """The first `count` cells, or all, as an Arrow array of strings or binaries, not copied."""
        rows = len(self.ends) - 1 if count is None else count
        used = self.out[: int(self.ends[rows])]
        buffers = [valid, pa.py_buffer(self.ends), pa.py_buffer(used)]
        return pa.Array.from_buffers(kind, rows, buffers)


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


def encode_whole_keys(places: Places, fields: Sequence[str]) -> tuple[pa.Array, pa.Array]:
    """Encode the columns `key` and `document_key` of documents by their whole document keys.

    `fields` are those of the shard key. Raises UnmappableValue as `document_key_of` does.
    """
    keys = [document_key_of(document, fields) for document in places]
    texts = [whole_key(key) for key in keys], [document_key_json(key) for key in keys]
    return pa.array(texts[0], pa.string()), pa.array(texts[1], pa.string())


def encode_json(places: Places, one: Callable[[bytes], str]) -> pa.Array:
    """Encode documents as relaxed Extended JSON; `one` encodes those that are refused."""
    cells = Cells(len(places), 2 * places.size + 64)
    _fill_json(places, cells, one)
    return cells.array(pa.string(), validity(places.starts >= 0))


def copy_texts(places: Places) -> pa.Array:
    """The bytes at these places as strings; they must be UTF-8."""
    return copy_bytes(places).view(pa.string())


def copy_bytes(places: Places) -> pa.Array:
    """The bytes at these places as binaries; null where there is none."""
    cells = Cells(len(places), places.size + 64)
    _fill_bson(places, cells)
    return cells.array(pa.binary(), validity(places.starts >= 0))


def _encode_variants(
    places: Places, kind: pa.StructType, encode: Callable[[bytes], Column]
) -> list[pa.Array]:
    """The two parts of VARIANTs. Documents that plain Python encodes have dictionaries of their
    own, the other rows share some."""
    columns, at, own = loading.columns(), 0, list[tuple[int, bytes]]()
    learnt = columns.tables.learn_nothing(places.longest)
    values = Cells(len(places), 2 * places.size + columns.variant.room(places.longest))
    shared, numbers = Cells(len(places) + 1, places.size + 64), np.zeros(len(places), np.int32)
    while at < len(places):
        at, why = columns.write_variants(
            *(*places.arrays, at, values.out, values.ends),
            *(numbers, shared.out, shared.ends, *learnt),
        )
        if why == columns.FULL:
            values.grow()
            shared.grow()
        elif why == columns.DOUBTFUL:
            value, metadata = _parts(encode(places[at]))
            values.put(at, value)
            own.append((at, metadata))
            at += 1
    count, why = columns.end_dictionary(*learnt[1:], shared.out, shared.ends)
    while why == columns.FULL:
        shared.grow()
        count, why = columns.end_dictionary(*learnt[1:], shared.out, shared.ends)
    for row, _ in own:
        numbers[row] = count
        count += 1
    found = pa.concat_arrays(
        [
            shared.array(pa.binary(), count=count - len(own)),
            pa.array([metadata for _, metadata in own], pa.binary()),
        ]
    )
    metadata = pa.DictionaryArray.from_arrays(pa.array(numbers), found)
    names = kind.field(1).type
    shares = pa.types.is_dictionary(names)
    return [values.array(kind.field(0).type), metadata if shares else metadata.cast(names)]


def _parts(image: Column) -> tuple[bytes, bytes]:
    assert isinstance(image, tuple), "a VARIANT has two parts"
    return image


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
    learnt = columns.tables.learn_nothing(places.longest)

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
