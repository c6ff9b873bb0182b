"""Parquet files that a task writes into the folders of Delta tables.

No reader of a table sees a file before a commit names it. A task attempt that fails, or that Spark
starts twice, leaves at most files without a commit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cdc.errors import BadOption, TableOwnedElsewhere
from cdc.tasks.allocator import LARGE_BYTES, return_large_buffers
from cdc.tasks.folders import Folder, local_path, open_folder, remove_empty
from cdc.tasks.statistics import columns_with_statistics, file_statistics, is_variant
from cdc.tasks.storage import Storage, is_remote

_PREFIX, _SUFFIX, DELTA_LOG = "cdc-", ".parquet", "_delta_log"
_UUID = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_NAME = re.compile(re.escape(_PREFIX) + _UUID + re.escape(_SUFFIX))
# Rows wait in memory until they fill a row group: what a task needs on top of its readers. More
# wait only if one batch of rows is larger.
_ROW_GROUP_BYTES = 16 * 2**20
_MOST_OPEN_FILES = 64
_LARGEST_FILE = 2**27
# A folder, and whether the rows are copies.
_Place: TypeAlias = tuple[str, bool]
# A page and its compressed form fit into a core's own cache: a tenth of the CPU time of a
# changelog's files.
_PAGE_BYTES = 2**17
# Columns whose values repeat. The others would fill a dictionary in vain.
_REPEATED = (
    *("_position", "_cluster_time", "_cluster_inc", "document.metadata"),
    *("op", "position", "cluster_time", "cluster_inc", "wall_time", "db", "coll"),
    *("before.metadata", "after.metadata", "description", "exact"),
    *("txn.lsid", "txn.number", "txn.shard"),
)


@dataclass(frozen=True, slots=True)
class DataFile:
    """A complete data file.

    Attributes:
        folder: the table's folder, as the caller of `DataFiles` names it.
        name: the name of the file in it.
        size: its bytes.
        rows: its rows.
        statistics: Delta's statistics, as JSON.
        made: the topmost folder that did not exist before this file; None if all of them did.
        is_copy: the file contains rows of a mirror; otherwise rows of the source.
    """

    folder: str
    name: str
    size: int
    rows: int
    statistics: str
    made: str | None = None
    is_copy: bool = False

    @property
    def path(self) -> str:
        return f"{local_path(self.folder)}/{self.name}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> DataFile:
        return cls(**data)


class Part(NamedTuple):
    """Rows for the folder of a table; see `DataFile`."""

    folder: str
    rows: pa.RecordBatch
    is_copy: bool = False


class DataFiles:
    """The data files of one task attempt.

    `add` takes rows, `finish` returns the files, `discard` removes them. Each file has a random
    name and is created, never overwritten: attempt numbers repeat after a restart, and a replayed
    batch must not touch a file that was committed.

    Args:
        file_bytes: the size at which a file is complete; the next row group begins a new one.
        storage: how folders are reached that are URLs.
    """

    def __init__(self, file_bytes: int, storage: Storage) -> None:
        self._file_bytes, self._storage = file_bytes, storage
        self._waiting: dict[_Place, list[Part]] = {}
        self._sizes: dict[_Place, int] = {}
        self._open: dict[_Place, _OpenFile] = {}
        self._done: list[DataFile] = []

    def add(self, part: Part) -> None:
        """Add at least one row. All rows of one folder have one schema, and so have its copies."""
        place, size = (part.folder, part.is_copy), part.rows.get_total_buffer_size()
        if size >= LARGE_BYTES * len(part.rows):
            return_large_buffers()
        while self._sizes and sum(self._sizes.values()) + size > _ROW_GROUP_BYTES:
            self._write(max(self._sizes, key=lambda each: self._sizes[each]))
        self._waiting.setdefault(place, []).append(part)
        self._sizes[place] = self._sizes.get(place, 0) + size

    def finish(self) -> list[DataFile]:
        """Write what waits, close all files and return them."""
        for place in list(self._waiting):
            self._write(place)
        for place in list(self._open):
            self._close(place)
        return self._done

    def discard(self) -> None:
        """Remove all files. What cannot be removed stays without a commit, like after a crash."""
        for each in self._open.values():
            each.abandon()
        self._open.clear()
        remove(self._done, self._storage)

    def _write(self, place: _Place) -> None:
        table = pa.Table.from_batches([part.rows for part in self._waiting.pop(place)])
        del self._sizes[place]
        if place not in self._open:
            if len(self._open) >= _MOST_OPEN_FILES:
                self._close(next(iter(self._open)))
            folder, is_copy = place
            self._open[place] = _OpenFile(folder, self._storage, table.schema, is_copy)
        if self._open[place].write(table) >= self._file_bytes:
            self._close(place)

    def _close(self, place: _Place) -> None:
        self._done.append(self._open.pop(place).close())


def write_parts(parts: Iterable[Part], storage: Storage) -> list[DataFile]:
    """Write rows that are too few to fill a file. If it fails, no file is left."""
    files = DataFiles(_LARGEST_FILE, storage)
    try:
        for part in parts:
            files.add(part)
        return files.finish()
    except BaseException:
        files.discard()
        raise


class _OpenFile:
    def __init__(self, folder: str, storage: Storage, schema: pa.Schema, is_copy: bool) -> None:
        self._folder, self._name, self._is_copy = folder, f"{_PREFIX}{uuid4()}{_SUFFIX}", is_copy
        self._place = open_folder(folder, storage)
        _require_free(folder, self._place)
        self._stream = self._place.create(self._name)
        self._metadata: list[pq.FileMetaData] = []
        self._schema = schema
        self._writer = pq.ParquetWriter(
            self._stream,
            schema,
            compression="snappy",
            data_page_size=_PAGE_BYTES,
            use_dictionary=[name for name in _REPEATED if _is_in(name, schema)],
            store_schema=False,
            # To compare whole documents takes a tenth of the time.
            write_statistics=columns_with_statistics(schema),
            metadata_collector=self._metadata,
        )

    def write(self, table: pa.Table) -> int:
        """Write one row group; return the bytes of the file so far."""
        table = _without_null_parts(_without_unused_names(table.unify_dictionaries()))
        self._writer.write_table(table, row_group_size=len(table))
        size: int = self._stream.tell()
        return size

    def close(self) -> DataFile:
        self._writer.close()
        size = self._place.complete(self._stream)
        [metadata] = self._metadata
        statistics = file_statistics(metadata, self._schema)
        return DataFile(
            *(self._folder, self._name, size, metadata.num_rows, statistics),
            *(self._place.made, self._is_copy),
        )

    def abandon(self) -> None:
        # A writer whose write failed cannot complete its file, and the file goes anyway.
        with suppress(pa.ArrowException, OSError, RuntimeError):
            self._writer.close()
        # A store may refuse the end of the upload too.
        with suppress(OSError):
            self._stream.close()
        with suppress(OSError):
            self._place.remove(self._name)
        remove_empty(Path(local_path(self._folder)) / self._name, self._place.made)


def _without_unused_names(table: pa.Table) -> pa.Table:
    """Leave out the names of rows that were filtered away; all chunks have equal dictionaries."""
    for number, field in enumerate(table.schema):
        if is_variant(field.type) and pa.types.is_dictionary(field.type.field(1).type):
            chunks = _use_names(table.column(number).chunks, field.type)
            table = table.set_column(number, field, pa.chunked_array(chunks, field.type))
    return table


def _use_names(chunks: list[pa.StructArray], kind: pa.StructType) -> list[pa.StructArray]:
    valid = [np.asarray(chunk.is_valid()) for chunk in chunks]
    indices = [chunk.field(1).indices.fill_null(0).to_numpy() for chunk in chunks]
    pairs = zip(indices, valid, strict=True)
    used = np.flatnonzero(np.bincount(np.concatenate([each[is_there] for each, is_there in pairs])))
    names = chunks[0].field(1).dictionary
    if len(used) == len(names) and not any(chunk.field(1).null_count for chunk in chunks):
        return chunks
    # A null has the first dictionary, or an empty one if there is no other.
    numbers = np.zeros(max(len(names), 1), np.int32)
    numbers[used] = np.arange(len(used))
    kept = names.take(pa.array(used)) if len(used) else pa.array([b""], names.type)
    found = []
    for chunk, each, is_there in zip(chunks, indices, valid, strict=True):
        new = pa.array(np.where(is_there, numbers[np.where(is_there, each, 0)], 0).astype(np.int32))
        parts = [chunk.field(0), pa.DictionaryArray.from_arrays(new, kept)]
        fields = [kind.field(0), kind.field(1)]
        found.append(pa.StructArray.from_arrays(parts, fields=fields, mask=pa.array(~is_there)))
    return found


def _without_null_parts(table: pa.Table) -> pa.Table:
    """Fill the parts of VARIANTs that are null: Parquet requires both, also below a null."""
    for number, field in enumerate(table.schema):
        if is_variant(field.type):
            chunks = [_fill_parts(chunk, field.type) for chunk in table.column(number).chunks]
            table = table.set_column(number, field, pa.chunked_array(chunks, field.type))
    return table


def _fill_parts(documents: pa.StructArray, kind: pa.StructType) -> pa.StructArray:
    parts = [documents.field(number) for number in range(kind.num_fields)]
    if all(part.null_count == 0 for part in parts):
        return documents
    full = [pc.fill_null(part, b"") if part.null_count else part for part in parts]
    fields = [kind.field(number) for number in range(kind.num_fields)]
    return pa.StructArray.from_arrays(full, fields=fields, mask=documents.is_null())


def _is_in(path: str, schema: pa.Schema) -> bool:
    name, _, inner = path.partition(".")
    if name not in schema.names:
        return False
    kind = schema.field(name).type
    if not pa.types.is_struct(kind):
        return not inner
    return any(kind.field(number).name == inner for number in range(kind.num_fields))


def remove(files: list[DataFile], storage: Storage) -> None:
    """Remove data files that no commit names, and the folders made for them if they are empty.

    What is gone, or refuses, is passed over.
    """
    places: dict[str, Folder] = {}
    for each in files:
        # A secret may have become unreadable, or a store unreachable.
        with suppress(OSError, ValueError, BadOption):
            if each.folder not in places:
                places[each.folder] = open_folder(each.folder, storage)
            places[each.folder].remove(each.name)
    for each in files:
        if not is_remote(each.folder):
            remove_empty(Path(each.path), each.made)


def _require_free(name: str, folder: Folder) -> None:
    """Raise TableOwnedElsewhere if the folder has files of somebody else, and no table of Delta."""
    if not folder.has(DELTA_LOG) and any(map(is_foreign, folder.names())):
        raise TableOwnedElsewhere(
            f"The folder {name} holds files, and no Delta table.",
            "Choose another path, or remove them.",
        )


def is_data_file(name: str) -> bool:
    """Whether a name is exactly one that `DataFiles` gives to a file: no path, and no pattern."""
    return _NAME.fullmatch(name) is not None


def is_foreign(name: str) -> bool:
    """Whether a name in a folder is neither the log of a table nor a file of `DataFiles`."""
    return name != DELTA_LOG and not (name.startswith(_PREFIX) and name.endswith(_SUFFIX))
