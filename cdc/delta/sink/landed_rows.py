"""Where the rows of a batch lie that tasks have written: in which folder, and in which files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from cdc.delta.followers import MIRROR
from cdc.delta.landing import Batch, BatchFiles, BatchSummary, LandedBatch
from cdc.delta.tables import Kind, Layout, Table, Tables
from cdc.model import Namespace


@dataclass(frozen=True, slots=True)
class LandedRows:
    """Finds the rows of batches by the rule of `cdc.delta.landing.destinations`.

    Args:
        layout: which tables there are.
        tables: the tables of each kind.
        columns: the columns of the source.
    """

    layout: Layout
    tables: Mapping[Kind, Tables]
    columns: StructType

    def batch(self, landed: LandedBatch, number: int, summary: BatchSummary) -> Batch:
        """The batch of that number, as a writer of tables gets it."""

        def read(spark: SparkSession) -> DataFrame:
            names = [n for n in summary.counts if self.layout.of(n).row_kind == MIRROR.name]
            alone = {name: table for name in names if (table := self._row_table(name))}
            return landed.document_rows(spark, self.columns, alone)

        def find_files(table: Table) -> BatchFiles | None:
            rows = self._row_table(table.namespace) if table.namespace else None
            if rows is None or table.namespace is None:
                return None
            copied = summary.counts.get(table.namespace, {}).get("read", 0)
            return landed.batch_files(rows.target.address, table.target.address, copied)

        return Batch(number, summary, self.columns, read, find_files=find_files)

    def folders(self, summary: BatchSummary) -> set[str]:
        """The folders in which the batch has rows of the source."""
        found = map(self._row_table, summary.counts)
        return {table.target.address for table in found if table is not None}

    def _row_table(self, namespace: Namespace) -> Table | None:
        """The table in whose folder the rows of a collection lie; None if nothing stores them."""
        name = self.layout.of(namespace).row_kind
        for kind, tables in self.tables.items():
            if kind.name == name:
                return tables.of(namespace)
        return None
