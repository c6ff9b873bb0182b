"""What a Spark task does: a split becomes rows, and rows become Arrow batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa

from cdc.model.change import Change, control_rows, event_row, read_row, void_row
from cdc.model.document import Column, encoder
from cdc.model.excerpt import Excerpt
from cdc.model.selection import Selection
from cdc.model.split import ControlSplit, SnapshotSplit, Split, StreamSplit
from cdc.mongo import cluster, sharded, snapshot, stream
from cdc.mongo.client import Member, member
from cdc.mongo.cluster import Source
from cdc.mongo.images import IMAGES, Event
from cdc.mongo.scan import Documents
from cdc.mongo.topology import discover

_ROWS_PER_BATCH = 2000
_BYTES_PER_BATCH = 32 * 2**20


def source_of(options: Mapping[str, Any]) -> Source:
    """What `uri` leads to. Raises SourceUnreachable, NotPermitted, UnsuitableSource."""
    if options["shards.direct"]:
        return _shards(options)
    return discover(options["uri"], options["server.timeout.ms"])


def _shards(options: Mapping[str, Any]) -> cluster.Cluster:
    return cluster.discover(options["uri"], options["server.timeout.ms"])


def open_member(options: Mapping[str, Any]) -> Member:
    return member(options["uri"], options["server.timeout.ms"])


def record_batches(
    split: Split, options: Mapping[str, Any], schema: pa.Schema, may_be_void: bool
) -> Iterator[pa.RecordBatch]:
    """The rows of a split; see `rows`."""
    chunk, size = list[Change](), 0
    for row in rows(split, options, may_be_void):
        chunk.append(row)
        size += _size(row.before) + _size(row.after)
        if len(chunk) == _ROWS_PER_BATCH or size >= _BYTES_PER_BATCH:
            yield _batch(chunk, schema)
            chunk, size = [], 0
    if chunk:
        yield _batch(chunk, schema)


def _size(image: Column | None) -> int:
    if image is None:
        return 0
    return sum(map(len, image)) if isinstance(image, tuple) else len(image)


def rows(split: Split, options: Mapping[str, Any], may_be_void: bool) -> Iterator[Change]:
    """The rows of a split, each once. Without `may_be_void`, a collection that is gone meanwhile is
    an error (UnsuitableSource), not an empty split."""
    encode = encoder(options["document.format"], options["document.json"])
    patience = float(options["retry.seconds"])
    if isinstance(split, ControlSplit):
        yield from control_rows(split)
    elif isinstance(split, SnapshotSplit):
        for documents in _documents(split, options, patience, may_be_void):
            for raw in documents.raw:
                yield read_row(raw, split.namespace, split.at, documents.exact_from, encode)
            if documents.is_void and options["emit.watermark"]:
                yield void_row(split)
    elif isinstance(split, StreamSplit):
        selection, excerpt = Selection.parse(split.collections), Excerpt.parse(split.excerpt)
        for events in _changes(split, options, patience):
            for event in events:
                yield event_row(*event, split.shard, selection, excerpt, encode)


def _documents(
    split: SnapshotSplit, options: Mapping[str, Any], patience: float, may_be_void: bool
) -> Iterator[Documents]:
    if options["shards.direct"]:
        return sharded.read(_shards(options), split, patience, may_be_void)
    return snapshot.read(partial(open_member, options), split, patience, may_be_void)


def _changes(
    split: StreamSplit, options: Mapping[str, Any], patience: float
) -> Iterator[list[Event]]:
    images = replace(IMAGES[options["images"]], on_oversize=options["on.oversize"])
    if options["shards.direct"]:
        return sharded.changes(_shards(options), split, images, patience)
    return stream.read(partial(open_member, options), split, images, patience)


def _batch(rows: list[Change], arrow: pa.Schema) -> pa.RecordBatch:
    columns = [
        pa.array(_cells(column, field.type), field.type)
        for column, field in zip(zip(*rows, strict=True), arrow, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=arrow)


def _cells(column: tuple[Any, ...], kind: pa.DataType) -> Sequence[Any]:
    """A VARIANT crosses as the struct of its two binaries."""
    if pa.types.is_struct(kind) and kind.field(0).name == "value":
        names = [kind.field(index).name for index in range(kind.num_fields)]
        return [None if cell is None else dict(zip(names, cell, strict=True)) for cell in column]
    return column
