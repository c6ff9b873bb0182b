"""A kind of table that follows changelogs: its columns, and what a batch changes in it.

The followers decide which batches a table lacks. The kind decides what becomes of their rows.
`KINDS` in `cdc.delta.followers` lists the kinds that there are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Protocol

from delta.tables import DeltaMergeBuilder, DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructType

from cdc.delta.columns import Image
from cdc.delta.landing import Batch, BatchSummary, Bounds, effects
from cdc.delta.log import merging
from cdc.delta.tables import Kind, Table, Tables, grow, writes
from cdc.model import NamespaceEvent


class Writer(Protocol):
    """What applies a batch to a table in one commit."""

    def write(self, spark: SparkSession, table: Table, tables: Tables, batch: Batch) -> None: ...


@dataclass(frozen=True, slots=True)
class Changes:
    """What a batch changes in one table.

    Attributes:
        rows: the rows of changelogs that count, see `effects.rows`; with the names in `_namespace`.
        count: how many rows the changelogs have about documents of the table.
        bounds: the least and the greatest key of each collection that has rows.
        emptied: the events that void rows of the table, the last first.
        document: the type of the images in `rows`.
        image: how the table stores documents.
    """

    rows: DataFrame
    count: int
    bounds: Sequence[Bounds]
    emptied: Sequence[NamespaceEvent]
    document: DataType
    image: Image


class FollowerKind(Kind, ABC):
    """A kind of table that the followers bring up to date from changelogs.

    Attributes:
        has_past: whether the rows before an event that empties the table count too.
    """

    is_typed = True
    # A row that changes is marked, instead of rewriting the file that contains it.
    properties = MappingProxyType({"delta.enableDeletionVectors": "true"})
    has_past: ClassVar[bool] = False

    @abstractmethod
    def schema(self, document: DataType, table: Table, image: Image) -> StructType:
        """The columns of a table; whole documents have the type `document`."""

    def key(self, table: Table) -> list[str]:
        """The columns that identify a document in a table. It is clustered by them."""
        return ["_namespace", "key"] if table.is_shared else ["key"]

    @abstractmethod
    def targets(self, summary: BatchSummary, tables: Tables) -> list[Table]:
        """The tables that get a commit for this batch."""

    @abstractmethod
    def merge(self, held: DeltaTable, table: Table, changes: Changes) -> DeltaMergeBuilder:
        """The MERGE that applies changes to a table. A batch may be applied again with later ones,
        which must change nothing."""

    @abstractmethod
    def origins(self, rows: DataFrame, table: Table) -> DataFrame:
        """The changes that made the `rows` of a table: the columns of its key, and `position`."""

    def writer(self) -> Writer:
        """What writes the tables where their folders can be reached without Spark."""
        return self

    def write(self, spark: SparkSession, table: Table, tables: Tables, batch: Batch) -> None:
        """Apply a batch to a table in one commit. Idempotent per batch."""
        summary = batch.summary
        commit = effects.commit(table, batch, tables)
        names = effects.changed(table, summary, tables)
        emptied = effects.emptied(table, summary, tables)
        if not names and not emptied:
            writes.commit_nothing(spark, table, tables, commit)
            return
        voiding = [] if self.has_past else emptied
        rows = effects.rows(batch.read(spark), names, voiding, summary)
        if names:
            grow(spark, rows, table, tables)
        count, bounds = sum(map(summary.rows, names)), [summary.keys[name] for name in names]
        image = tables.image(table)
        changes = Changes(rows, count, bounds, emptied, batch.document, image)
        with merging(spark, tables.transaction(commit)):
            held = table.target.delta(spark)
            tables.require_current_columns(table, held.toDF().schema)
            self.merge(held, table, changes).execute()
        tables.committed(table, commit)


def within(key: Column, bounds: Sequence[Bounds]) -> Column:
    """A condition by which Delta skips files that contain no key between the bounds."""
    if not bounds:
        return F.lit(False)
    least, greatest = min(each.least for each in bounds), max(each.greatest for each in bounds)
    return key.between(F.lit(least), F.lit(greatest))
