"""A batch whose rows tasks have written to data files: their manifest, and the rows as a frame."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import reduce
from threading import Lock
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from cdc.delta.columns import BATCH, Image
from cdc.delta.landing.batch_summary import BatchFiles, BatchSummary
from cdc.delta.landing.destinations import mirror_columns, rows_of_copies, with_batch
from cdc.delta.landing.summarize import summary_of
from cdc.delta.log import escape_glob
from cdc.delta.tables import Table
from cdc.model import Namespace
from cdc.tasks import (
    MANIFEST,
    DataFile,
    Manifest,
    Part,
    Storage,
    foreign_manifest,
    is_data_file,
    remove,
    write_parts,
)

Row: TypeAlias = Mapping[str, Any]
_NAMES = [part.split()[0] for part in MANIFEST.split(", ")]
_IMAGES = ("before", "after")


def is_manifest(batch: DataFrame) -> bool:
    """Whether the rows of a batch are manifests of its tasks, and not its changes."""
    return set(batch.columns) == set(_NAMES)


class LandedBatch:
    """The data files of a batch. Used by one thread per table.

    Attributes:
        is_repeated: whether a changelog contained the batch already.
    """

    def __init__(self, manifest: Manifest, storage: Storage) -> None:
        self._manifest, self._storage, self.is_repeated = manifest, storage, False
        self._files: dict[tuple[str, bool], list[DataFile]] = {}
        for file in manifest.files:
            self._files.setdefault((file.folder, file.is_copy), []).append(file)
        self._attempted: set[str] = set()
        self._lock, self._is_removed = Lock(), False

    @classmethod
    def collect(cls, batch: DataFrame, number: int, storage: Storage) -> LandedBatch:
        """Run the tasks of the batch of that number; its rows are manifests.

        Call it once per batch: a second action on the frame would read MongoDB again and write all
        files again. Raises ForeignManifest.
        """
        manifest = Manifest.of(number, batch.select(*_NAMES).collect())
        for reason in _find_foreign(manifest.files, number):
            raise foreign_manifest(reason)
        return cls(manifest, storage)

    @property
    def streamed(self) -> Mapping[str, int]:
        """How many slices a change stream had to read instead of the oplog, by the reason."""
        return self._manifest.streamed

    def summary(self) -> BatchSummary | None:
        return summary_of(self._manifest.groups)

    def require_folders(self, rows: Collection[str], mirrors: Collection[str]) -> None:
        """Raise ForeignManifest unless copies lie in mirrors, and all other files in `rows`."""
        for file in self._manifest.files:
            if file.folder not in (mirrors if file.is_copy else rows):
                # `remove_leftovers` must not remove what is perhaps somebody else's.
                self._attempted.update(each.name for each in self._manifest.files)
                kind = "copies" if file.is_copy else "rows"
                raise foreign_manifest(f"{file.path} is in no folder for {kind} of this batch")

    def files_of(self, folder: str) -> list[DataFile]:
        """The files with rows of the source in a folder; none after `remove_leftovers`."""
        return [] if self._is_removed else self._files.get((folder, False), [])

    def copies_of(self, folder: str) -> list[DataFile]:
        """The files with rows of the mirror in a folder; none after `remove_leftovers`."""
        return [] if self._is_removed else self._files.get((folder, True), [])

    def batch_files(self, rows: str, mirror: str, copied: int) -> BatchFiles:
        """The files that contain what the batch has for one mirror.

        Args:
            rows: the folder of the rows of its collection.
            mirror: the folder of the mirror.
            copied: how many documents of the collection the batch copies.
        """
        copies = self.copies_of(mirror)
        # The rows of documents that could not be mapped are in no copy.
        are_whole = copied == sum(file.rows for file in copies)
        changes = [(file, are_whole) for file in self.files_of(rows)]
        return BatchFiles(changes, copies, self.mark_attempted)

    def document_rows(
        self, spark: SparkSession, schema: StructType, alone: Mapping[Namespace, Table]
    ) -> DataFrame:
        """The rows that are about one document, read from the files.

        Args:
            spark: reads them.
            schema: the columns of the source.
            alone: the mirrors whose copies lie in their own files alone.
        """
        staged = [file for file in self._manifest.files if not file.is_copy]
        frames = [read_files(spark, staged, schema)]
        for namespace, table in alone.items():
            if copies := self.copies_of(table.target.address):
                image = Image.of_new(table.options.columns)
                found = read_files(spark, copies, mirror_columns(image, schema))
                frames.append(rows_of_copies(found, namespace, image, schema))
        return reduce(DataFrame.unionByName, frames)

    def all_rows(self, document_rows: DataFrame) -> DataFrame:
        """The rows of the files and of the manifest."""
        if not self._manifest.rows:
            return document_rows
        # Rows about no single document have no images.
        table = pa.Table.from_batches(self._manifest.rows).drop_columns(_IMAGES)
        schema = document_rows.schema
        others = document_rows.sparkSession.createDataFrame(table)
        columns = [
            (F.lit(None) if field.name in _IMAGES else F.col(field.name))
            .cast(field.dataType)
            .alias(field.name)
            for field in schema
        ]
        return document_rows.unionByName(others.select(*columns))

    def write_rows(
        self, folder: str, batch: int, concerns: Callable[[Row], bool]
    ) -> list[DataFile]:
        """Write the manifest's rows that concern the changelog in `folder` to a file of it."""
        parts = list[Part]()
        for rows in self._manifest.rows:
            seen = rows.select(["op", "db", "coll", "description"]).to_pylist()
            mask = [concerns(row) for row in seen]
            if any(mask):
                parts.append(Part(folder, with_batch(rows.filter(pa.array(mask)), batch)))
        return write_parts(parts, self._storage)

    def mark_attempted(self, files: Sequence[DataFile]) -> None:
        """Note that a commit of these files is about to be tried. There is no way back.

        Raises RuntimeError after `remove_leftovers`: another thread has removed the files.
        """
        with self._lock:
            if self._is_removed:
                raise RuntimeError("The data files of the batch were removed before their commit.")
            self._attempted.update(file.name for file in files)

    def remove_leftovers(self) -> None:
        """Remove the files that no commit names. Call it when nothing reads the rows any more.

        The files of a commit that was tried stay: it may have been made whatever it answered, and a
        removed file of a table is lost rows.
        """
        with self._lock:
            self._is_removed = True
            left = [file for file in self._manifest.files if file.name not in self._attempted]
            remove(left, self._storage)


def _find_foreign(files: Sequence[DataFile], batch: int) -> Iterator[str]:
    """Yield why the tasks of a batch cannot have written these files; nothing if they can.

    Folders are checked by `LandedBatch.require_folders`, which knows the tables of the batch.
    """
    for file in files:
        if not is_data_file(file.name):
            yield f"{file.name!r} is no name of a data file"
        elif not file.is_copy and _batches_of(file) != {batch}:
            yield f"{file.name} contains rows of another batch than {batch}"
    for name, count in Counter(file.name for file in files).items():
        if count > 1:
            yield f"{name} is there {count} times"


def _batches_of(file: DataFile) -> set[int | None]:
    """The least and the greatest batch in a file of a changelog."""
    bounds = json.loads(file.statistics)
    return {bounds[name].get(BATCH) for name in ("minValues", "maxValues")}


def read_files(spark: SparkSession, files: Sequence[DataFile], schema: StructType) -> DataFrame:
    """The rows of data files. A missing or damaged file is an error, whatever the session says."""
    if not files:
        return spark.createDataFrame([], schema)
    reader = spark.read.schema(schema)
    for name in ("ignoreMissingFiles", "ignoreCorruptFiles"):
        reader = reader.option(name, "false")
    # Spark takes each path for a glob.
    return reader.parquet(*(escape_glob(file.path) for file in files))
