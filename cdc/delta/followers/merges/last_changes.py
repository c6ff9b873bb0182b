"""The last change of each key, read from the data files of changelogs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cdc.delta.landing import ROW_OPS
from cdc.delta.log import UnsuitableTable
from cdc.model import Namespace
from cdc.tasks import DataFile, Storage, open_folder

# Texts that no value is below, or above; None where there is none.
Bounds: TypeAlias = tuple[str | None, str | None]
_COLUMNS = ("op", "position", "cluster_time", "cluster_inc", "db", "coll", "key", "after")
# What Arrow, by which tasks write, states in each file.
_TASKS = "parquet-cpp-arrow"
_READ, _DELETE = "read", "delete"
_COPIED = (_READ, _READ)


class TooManyChanges(Exception):
    """The changes need more memory than one process should take."""


@dataclass(frozen=True, slots=True)
class LastChanges:
    """The last change of each key, in the order of the keys.

    Attributes:
        rows: the changes, with the columns of a changelog that a mirror needs.
        count: how many rows about documents were read.
        keys: the keys as Python has them, to find those between two bounds.
    """

    rows: pa.Table
    count: int
    keys: list[str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "keys", self.rows.column("key").to_pylist())

    @property
    def is_delete(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        return as_mask(pc.equal(self.rows.column("op"), _DELETE))


def read_changes(
    files: Iterable[tuple[DataFile, bool]],
    names: Sequence[Namespace],
    storage: Storage,
    most_bytes: int,
) -> LastChanges:
    """Read the changes of documents of some collections; of each key that at the last position.

    An insert, update or replace without an image is no change of a document.

    Args:
        files: data files of changelogs, and for each whether its copied documents are left out.
        names: the collections.
        storage: how folders are reached that are URLs.
        most_bytes: how many bytes of rows may be read.

    Raises TooManyChanges; UnsuitableTable if a file was written by another program than a task; and
    FileNotFoundError if a file is missing.
    """
    parts, count, size = list[pa.Table](), 0, 0
    for each, without_copy in files:
        stream = open_folder(each.folder, storage).open(each.name)
        with closing(stream), pq.ParquetFile(stream) as file:
            if not file.metadata.created_by.startswith(_TASKS):
                # Its columns may have other names and other types.
                raise UnsuitableTable("Spark wrote rows of its changelog")
            for group in range(file.num_row_groups):
                if without_copy and bounds_of(file.metadata.row_group(group), "op") == _COPIED:
                    continue
                found = file.read_row_group(group, columns=["op", "db", "coll"])
                is_own = _is_own(found, names, without_copy)
                if not pc.any(is_own).as_py():
                    continue
                # Not what the file states: a value that repeats is stored once there.
                rows = file.read_row_group(group, columns=[*_COLUMNS]).filter(is_own)
                size += rows.nbytes
                if size > most_bytes:
                    raise TooManyChanges(f"there are more than {most_bytes // 2**20} MB of them")
                count += len(rows)
                parts.append(rows.filter(_states_document(rows)).drop_columns(["db", "coll"]))
    if not parts:
        none = pa.schema([(name, pa.string()) for name in ("op", "position", "key")])
        return LastChanges(none.empty_table(), 0)
    return LastChanges(_last(pa.concat_tables(parts)), count)


def _is_own(rows: pa.Table, names: Sequence[Namespace], without_copy: bool) -> pa.ChunkedArray:
    """Which rows are about documents of the collections."""
    ops = [op for op in ROW_OPS if op != _READ or not without_copy]
    own = [
        pc.and_(pc.equal(rows.column("db"), db), pc.equal(rows.column("coll"), coll))
        for db, coll in names
    ]
    return pc.and_(pc.is_in(rows.column("op"), pa.array(ops)), reduce(pc.or_, own))


def _states_document(rows: pa.Table) -> pa.ChunkedArray:
    return pc.or_(pc.equal(rows.column("op"), _DELETE), pc.is_valid(rows.column("after")))


def _last(rows: pa.Table) -> pa.Table:
    """Of each key the row with the greatest position; Arrow compares texts by their UTF-8 bytes."""
    order = pc.sort_indices(rows, [("key", "ascending"), ("position", "ascending")])
    keys = rows.column("key").take(order).combine_chunks()
    is_last = np.ones(len(keys), bool)
    is_last[:-1] = as_mask(pc.not_equal(keys[:-1], keys[1:]))
    return rows.take(order.filter(pa.array(is_last)))


def bounds_of(group: pq.RowGroupMetaData, name: str) -> Bounds:
    """The bounds of a column of texts. Raises UnsuitableTable if there is no such column."""
    for column in map(group.column, range(group.num_columns)):
        if column.path_in_schema == name:
            known = column.statistics
            return (known.min, known.max) if known and known.has_min_max else (None, None)
    raise UnsuitableTable("its data files have other names of columns")


def as_mask(found: pa.Array | pa.ChunkedArray) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Truth values of Arrow; null is false."""
    return np.asarray(pc.fill_null(found, False).to_numpy(zero_copy_only=False), bool)
