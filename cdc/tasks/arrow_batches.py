"""Arrow batches of rows, encoded one by one or a reply at once.

Both ways give the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from bson.raw_bson import RawBSONDocument

from cdc.arrow import cells
from cdc.kernel import WORTH, Places, Total
from cdc.kernel import event_columns as at
from cdc.model import (
    CaptureFilter,
    Change,
    SnapshotSplit,
    StreamSplit,
    describe_update,
    read_row,
    transaction,
)
from cdc.model.bson import element
from cdc.model.encoding import Column
from cdc.mongo.read import Documents, Located, Run
from cdc.options import SourceOptions
from cdc.tasks.statistics import is_variant

_encoded = Total()
_ROWS_PER_BATCH = 2000
# A task has a few batches of this size in memory at once.
_BYTES_PER_BATCH = 8 * 2**20


def encode_rows(rows: Iterator[Change], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Encode rows one by one, in batches of at most 2,000 rows and about 8 MiB of images."""
    chunk, size = list[Change](), 0
    for row in rows:
        chunk.append(row)
        size += _size(row.before) + _size(row.after)
        if len(chunk) == _ROWS_PER_BATCH or size >= _BYTES_PER_BATCH:
            batch = _batch(chunk, schema)
            # Not kept while the batch is written.
            chunk.clear()
            del row
            size = 0
            yield batch
    if chunk:
        yield _batch(chunk, schema)


def is_large(documents: Sequence[bytes]) -> bool:
    """Whether the documents are encoded faster as columns than row by row.

    True once this process was asked about 256 KiB of documents in all. Call it once for each list
    of documents, because each call counts them.
    """
    return _encoded.add(total_size(documents)) >= WORTH


def total_size(documents: Sequence[bytes]) -> int:
    """The size of all documents in bytes."""
    return documents.size if isinstance(documents, Places) else sum(map(len, documents))


def encode_documents(
    documents: Documents,
    split: SnapshotSplit,
    options: SourceOptions,
    schema: pa.Schema,
    fields: Sequence[str] = (),
) -> Iterator[pa.RecordBatch]:
    """Encode the documents of a split as columns; for `fields` see `read_row`."""
    for places in _parts(documents.raw):
        first = read_row(places[0], split.namespace, split.at, documents.exact_from, _encode_empty)
        formats = options.document_format, options.document_json
        if fields:
            key, document_key = cells.encode_whole_keys(places, fields)
        else:
            key, document_key = cells.encode_keys(places, alone=False)
        after = cells.encode_images(places, schema.field("after").type, *formats)
        own = {"key": key, "document_key": document_key, "after": after}
        yield _fill_columns(own, first, len(places), schema)


def split_by_collection(run: Run) -> list[Run]:
    """Divide a run into one for each collection; the order of a collection's events remains.

    Documents that are encoded together share the names of their fields, which must not get into
    the table of another collection.
    """
    names = [cells.copy_texts(run.located.places(each)) for each in (at.DATABASE, at.COLL)]
    db, coll = (each.dictionary_encode() for each in names)
    numbers = db.indices.to_numpy() * len(coll.dictionary) + coll.indices.to_numpy()
    if len(db.dictionary) == len(coll.dictionary) == 1:
        return [run]
    masks = [numbers == number for number in np.unique(numbers)]
    return [Run(run.located.select(mask), run.exact[mask]) for mask in masks]


def encode_events(
    run: Run, split: StreamSplit, options: SourceOptions, schema: pa.Schema
) -> pa.RecordBatch:
    """Encode events as columns: the same rows as those of `event_row`."""
    located, capture = run.located, split.capture
    formats = options.document_format, options.document_json
    seconds = (located.times >> np.uint64(32)).astype(np.int64)
    wall, has_wall = located.events[:, at.WALL], located.has(at.WALL)
    key, document_key = cells.encode_keys(located.places(at.KEY), alone=True)
    columns = {
        "op": cells.copy_texts(located.places(at.OPERATION)),
        "position": cells.copy_texts(located.places(at.POSITION)),
        "cluster_time": _times(seconds * 1_000_000, None),
        "cluster_inc": pa.array(located.times & np.uint64(0xFFFFFFFF)).cast(pa.int32()),
        "wall_time": _times(np.where(has_wall, wall, 0) * 1000, ~has_wall),
        "db": cells.copy_texts(located.places(at.DATABASE)),
        "coll": cells.copy_texts(located.places(at.COLL)),
        "key": key,
        "document_key": document_key,
        "before": cells.encode_images(
            located.places(at.BEFORE), schema.field("before").type, *formats
        ),
        "after": cells.encode_images(
            located.places(at.AFTER), schema.field("after").type, *formats
        ),
        "update_description": _updates(located, capture),
        "txn": _transactions(located, split.shard, schema.field("txn").type),
        "description": pa.nulls(len(run), pa.string()),
        "exact": pa.array(run.exact),
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def _times(micros: np.ndarray[Any, Any], missing: np.ndarray[Any, Any] | None) -> pa.Array:
    return pa.array(micros, mask=missing).cast(pa.timestamp("us", tz="UTC"))


def _updates(located: Located, capture: CaptureFilter) -> pa.Array:
    places = located.places(at.UPDATE)
    if not capture.fields:
        return cells.encode_json(
            places, lambda description: describe_update(description, capture, None)
        )
    images = [
        after if after is not None else before
        for before, after in zip(
            located.documents(at.BEFORE), located.documents(at.AFTER), strict=True
        )
    ]
    updates = zip(located.documents(at.UPDATE), images, strict=True)
    texts = [
        None if each is None else describe_update(each, capture, image) for each, image in updates
    ]
    return pa.array(texts, pa.string())


def _transactions(located: Located, shard: str, kind: pa.DataType) -> pa.Array:
    """Return the `txn` of each event. Each transaction is parsed once."""
    is_there = located.has(at.SESSION) & located.has(at.TRANSACTION)
    if not is_there.any():
        return pa.nulls(len(located), kind)
    places = located.places(at.SESSION), located.places(at.TRANSACTION)
    sessions, numbers = (cells.copy_bytes(each).dictionary_encode() for each in places)
    session, number = (
        each.indices.fill_null(0).to_numpy().astype(np.int64) for each in (sessions, numbers)
    )
    count = len(numbers.dictionary)
    found, rows = np.unique(session * count + number, return_inverse=True)
    transactions = [
        _transaction(sessions.dictionary[pair // count], numbers.dictionary[pair % count], shard)
        for pair in found.tolist()
    ]
    return pa.array(transactions, kind).take(pa.array(rows, mask=~is_there))


def _transaction(session: pa.Scalar, number: pa.Scalar, shard: str) -> dict[str, Any]:
    own = element.int64(number.as_py(), 0)[0]
    return transaction(RawBSONDocument(session.as_py()), own, shard)


def _parts(documents: Sequence[bytes]) -> Iterator[Places]:
    """Divide documents, in order, into parts of about the size of a batch."""
    if isinstance(documents, Places):
        yield documents
        return
    part, size = list[bytes](), 0
    for document in documents:
        part.append(document)
        size += len(document)
        if size >= _BYTES_PER_BATCH:
            yield Places.concatenate(part)
            part, size = [], 0
    if part:
        yield Places.concatenate(part)


def _encode_empty(document: bytes) -> Column:
    return b""


def _fill_columns(
    columns: dict[str, pa.Array], row: Change, count: int, schema: pa.Schema
) -> pa.RecordBatch:
    """Return a batch of `count` rows: `columns`, and the cells of `row` in all other columns."""
    return pa.RecordBatch.from_arrays(
        [
            columns[field.name]
            if field.name in columns
            else _repeat_cell(getattr(row, field.name), field.type, count)
            for field in schema
        ],
        schema=schema,
    )


def _repeat_cell(cell: Any, kind: pa.DataType, count: int) -> pa.Array:
    return pa.nulls(count, kind) if cell is None else pa.repeat(pa.scalar(cell, kind), count)


def _size(image: Column | None) -> int:
    if image is None:
        return 0
    return sum(map(len, image)) if isinstance(image, tuple) else len(image)


def _batch(rows: list[Change], arrow: pa.Schema) -> pa.RecordBatch:
    columns = [
        _column(cells, field.type)
        for cells, field in zip(zip(*rows, strict=True), arrow, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=arrow)


def _column(cells: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """An array of the cells of one column; a VARIANT is a tuple of two binaries."""
    if not is_variant(kind):
        return pa.array(cells, kind)
    # Empty binaries below a null: Parquet requires both, and a dictionary array needs a value.
    values, metadata = zip(*((b"", b"") if cell is None else cell for cell in cells), strict=True)
    parts = [pa.array(values, kind.field(0).type), pa.array(metadata, kind.field(1).type)]
    is_null = pa.array([cell is None for cell in cells])
    return pa.StructArray.from_arrays(parts, fields=[kind.field(0), kind.field(1)], mask=is_null)
