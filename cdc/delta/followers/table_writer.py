"""Writes pending batches to one mirror or history.

Several processes may write to a table: each write begins with what the table contains by then.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from pyspark.sql import SparkSession
from pyspark.sql.types import DataType, StructType

from cdc.delta.columns import Image
from cdc.delta.followers import history, mirror, rebuild
from cdc.delta.followers.file_merge import FileMerge
from cdc.delta.followers.pending import Pending, join, units
from cdc.delta.landing import Batch, Facts
from cdc.delta.log import LogCheckpoints, Target, conflict, settings
from cdc.delta.tables import Table, Tables, small_write_settings

_log = logging.getLogger(__name__)


class _Writer(Protocol):
    """What brings a table up to date."""

    def write(self, spark: SparkSession, table: Table, tables: Tables, batch: Batch) -> None: ...


class _Kind(_Writer, Protocol):
    """A module that brings one kind of table up to date."""

    def targets(self, facts: Facts, tables: Tables) -> list[Table]: ...

    def form(
        self, document: DataType, table: Table, image: Image
    ) -> tuple[StructType, list[str]]: ...


KINDS: Mapping[str, _Kind] = {"mirror": mirror, "history": history}


@dataclass(slots=True)
class TableWriter:
    """Writes batches to mirrors and histories, several at a time.

    Args:
        checkpoints: who writes the checkpoints of the tables' logs.
        by_files: whether mirrors may be merged by their data files.
        columns: those of the source's rows.
    """

    checkpoints: LogCheckpoints
    by_files: bool
    columns: StructType = field(default_factory=StructType)
    _sizes: small_write_settings.Sizes = field(default_factory=small_write_settings.Sizes)
    _merge: FileMerge = field(default_factory=FileMerge)

    def apply(
        self,
        spark: SparkSession,
        table: Table,
        tables: Tables,
        pending: Iterable[Pending],
    ) -> None:
        """Apply batches to a table, as few commits as possible.

        Stops where another process has emptied the table.
        """
        for unit in units(pending):
            batch = join(unit, table, tables, self.columns)
            if not self._write(tables, spark, table, batch):
                return

    def rebuild(
        self,
        spark: SparkSession,
        table: Table,
        tables: Tables,
        feeds: Iterable[Target],
        last: int,
    ) -> None:
        """Give an emptied table all batches of its changelogs up to `last`."""
        found = rebuild.find_everything(spark, feeds, last, self.columns)
        if found is None:
            _log.warning("%s waits for the next batch of its changelog to be rebuilt", table.target)
            return
        follows = frozenset(feed.relative_to(table.target) for feed in found.feeds)
        batch = Batch(found.batch, found.facts, self.columns, found.read, follows)
        self._write(tables, spark, table, batch)

    def _write(self, tables: Tables, spark: SparkSession, table: Table, batch: Batch) -> bool:
        """Write a batch; return whether the table contains it.

        It does not if another process emptied the table: there the batch would be taken for all
        that there is.
        """
        is_by_files = self.by_files and tables.kind == "mirror"
        writer: _Writer = self._merge if is_by_files else KINDS[tables.kind]
        rebuilds = _rebuilds(table, tables)

        def write() -> None:
            # Another process may have added columns. If it empties the table after this, Delta
            # passes over the batch.
            tables.refresh(spark, table)
            if _rebuilds(table, tables) == rebuilds and not contains(table, tables, batch.number):
                writer.write(spark, table, tables, batch)

        is_small = self._sizes.are_small(spark, [table.target], batch.facts.count)
        with settings(spark, small_write_settings.SETTINGS if is_small else {}):
            conflict.repeated(write, table.target)
        tables.refresh(spark, table)
        self.checkpoints.committed(spark, table.target)
        return contains(table, tables, batch.number)


def _rebuilds(table: Table, tables: Tables) -> int:
    last = tables.last(table)
    return last.rebuilds if last else 0


def contains(table: Table, tables: Tables, batch: int) -> bool:
    """Whether the table contains a batch."""
    applied = tables.applied(table)
    return applied is not None and applied >= batch
