"""Merges batches into a mirror by its data files, without a Spark job.

A row that changes gets a mark in the deletion vector of its file. The new images of changed keys
become a new file. Copied documents are in files already, which tasks have written. All of this is
one commit of `cdc.delta.log.transaction`. The mirror then contains what
the MERGE of `cdc.delta.followers.mirror` would make of it, by which Spark merges everything that
this module does not take:

* tables of a catalog, of several collections, with `delete = soft` or with growing columns;
* batches with an event that empties the mirror, or with moves between shards;
* batches whose rows somebody has changed or moved in a changelog, or whose commits its log does not
  contain any more, and more changes than the driver should hold;
* tables that were altered so that a writer has more to observe than this one knows of.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyroaring import BitMap
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from cdc.delta.columns import Image
from cdc.delta.followers.follower_kind import FollowerKind
from cdc.delta.followers.merges.key_search import find_outdated, have_common_keys
from cdc.delta.followers.merges.last_changes import LastChanges, TooManyChanges, read_changes
from cdc.delta.landing import Batch, BatchFiles, effects, mirror_rows, takes_copies
from cdc.delta.log import (
    ChangedFiles,
    LiveFile,
    LiveFiles,
    Target,
    UnknownVector,
    UnsuitableTable,
    added,
    is_local,
    require_changeable,
    require_suitable,
    schema_of,
    write_vectors,
)
from cdc.delta.tables import Table, Tables, writes
from cdc.tasks import DataFile, Folder, Part, explain, is_remote, open_folder, remove, write_parts

_log = logging.getLogger(__name__)
# Of the rows of changes, in memory.
_MOST_BYTES = 2**27


@dataclass(slots=True)
class FileMerge:
    """Writes mirrors like their `kind`, several at a time."""

    kind: FollowerKind
    _files: dict[Target, LiveFiles] = field(default_factory=dict)

    def write(self, spark: SparkSession, table: Table, tables: Tables, batch: Batch) -> None:
        """Apply a batch to the mirror in one commit. Idempotent per batch."""
        if not self._is_written(spark, table, tables, batch):
            self.kind.write(spark, table, tables, batch)

    def _is_written(self, spark: SparkSession, table: Table, tables: Tables, batch: Batch) -> bool:
        """Apply a batch by files; return whether it was possible."""
        if not _is_possible(spark, table, tables, batch):
            return False
        known = self._files.setdefault(table.target, LiveFiles(table.target))
        try:
            if (files := batch.find_files(table)) is None:
                return False
            _Merge(self.kind, table, tables, batch, files).commit(spark, known)
            return True
        except (UnsuitableTable, UnknownVector, TooManyChanges) as reason:
            _log.info("%s: Spark merges the rows, because %s", table.target, reason)
        except (OSError, ValueError, pa.ArrowException) as error:
            # Somebody may have removed files, or a store does not answer. If Spark fails as well,
            # its error is tried again, and is reported in the end.
            del self._files[table.target]
            _log.warning("%s: Spark merges the rows, because of %s", table.target, explain(error))
        return False


def _is_possible(spark: SparkSession, table: Table, tables: Tables, batch: Batch) -> bool:
    summary = batch.summary
    names = effects.changed(table, summary, tables)
    return (
        bool(names)
        and (is_remote(table.target.address) or is_local(spark, table.target))
        and takes_copies(table)
        and tables.image(table).typed == table.options.columns
        and not effects.emptied(table, summary, tables)
        and summary.departures.isdisjoint(names)
    )


class _Merge:
    """One attempt to apply a batch."""

    def __init__(
        self, kind: FollowerKind, table: Table, tables: Tables, batch: Batch, files: BatchFiles
    ) -> None:
        self._kind, self._table, self._tables = kind, table, tables
        self._batch, self._files = batch, files
        self._address, self._storage = table.target.address, tables.layout.storage
        self._folder = open_folder(self._address, self._storage)
        self._names = effects.changed(table, batch.summary, tables)
        self._image = tables.image(table)

    def commit(self, spark: SparkSession, known: LiveFiles) -> None:
        table, tables, batch = self._table, self._tables, self._batch
        columns = self._kind.schema(batch.document, table, self._image)
        snapshot = table.target.snapshot(spark)
        self._require_possible(snapshot, columns)
        version = int(snapshot.version())
        there = known.read(spark, version, self._storage)
        copies, changes = self._read(there)
        there += [LiveFile.of(added(file)["add"]) for file in copies]
        outdated, is_stale = find_outdated(there, self._folder, changes)
        rows = changes.rows.filter(pa.array(~(changes.is_delete | is_stale)))
        kind = batch.document.simpleString()
        new = tables.describe_new(table, columns, kind, self._kind.key(table))
        written, vectors, is_attempted = list[DataFile](), None, False

        def attempt() -> None:
            nonlocal is_attempted
            self._files.mark_attempted(copies)
            is_attempted = True

        try:
            written = self._write(rows)
            vectors, changed = _changed(there, outdated, self._folder, version)
            commit = effects.commit(table, batch, tables)
            files = [*copies, *written]
            writes.add_files(spark, table, tables, files, commit, new, attempt, changed)
        finally:
            if not is_attempted:
                remove(written, self._storage)
                if vectors is not None:
                    with suppress(OSError):
                        self._folder.remove(vectors)

    def _require_possible(self, snapshot: Any, columns: StructType) -> None:
        """What the commit would find only after all the work. Raises UnsuitableTable; Outdated."""
        self._tables.require_current_columns(self._table, schema_of(snapshot))
        require_suitable(snapshot, columns)
        if any(self._batch.summary.counts[name].keys() - {"read"} for name in self._names):
            require_changeable(snapshot, columns)

    def _read(self, there: Sequence[LiveFile]) -> tuple[Sequence[DataFile], LastChanges]:
        """The files of copies that may be added as they are, and the changes besides them."""
        copies, found = self._files.copies, self._files.changes
        own = [LiveFile.of(added(file)["add"]) for file in copies]
        # Tasks write copies in the columns of a new table.
        is_other = self._image != Image.of_new(self._table.options.columns)
        if copies and (is_other or have_common_keys(own, there, self._folder)):
            # A second row of a key would stay for ever.
            copies, found = [], [(file, False) for file, _ in found]
        changes = read_changes(found, self._names, self._storage, _MOST_BYTES)
        count = changes.count + sum(file.rows for file in copies)
        if count != sum(map(self._batch.summary.rows, self._names)):
            raise UnsuitableTable("the files of the batch do not contain all of its rows")
        return copies, changes

    def _write(self, rows: pa.Table) -> list[DataFile]:
        """Write images as rows of the mirror."""
        parts = (
            Part(self._address, mirror_rows(each, self._image), is_copy=True)
            for each in rows.to_batches()
            if len(each)
        )
        return write_parts(parts, self._storage)


def _changed(
    there: Sequence[LiveFile], outdated: Mapping[int, BitMap], folder: Folder, version: int
) -> tuple[str | None, ChangedFiles]:
    """The actions that remove rows, and the name of the file of vectors, if one was written."""
    partly, vectors, name = dict[str, BitMap](), dict[str, Any](), None
    for number, rows in outdated.items():
        if (count := there[number].rows) is None:
            raise UnsuitableTable("files of it do not state their number of rows")
        if len(rows) < count:
            partly[there[number].name] = rows
    if partly:
        name, vectors = write_vectors(folder, partly)
    return name, ChangedFiles(version, [there[number] for number in outdated], vectors)
