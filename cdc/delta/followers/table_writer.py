"""Writes pending batches to the tables of one kind.

Several processes may write to a table: each write begins with what the table contains by then.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from cdc.delta.followers import rebuild
from cdc.delta.followers.follower_kind import FollowerKind, Writer
from cdc.delta.followers.pending import Pending, join, units
from cdc.delta.landing import Batch
from cdc.delta.log import LogCheckpoints, Target, conflict, settings
from cdc.delta.tables import Table, Tables, small_write_settings

_log = logging.getLogger(__name__)


class TableWriter:
    """Writes batches to the tables of one kind, several at a time.

    Args:
        kind: their kind.
        tables: the tables.
        checkpoints: who writes the checkpoints of their logs.
        by_files: whether their folders can be reached without Spark.
    """

    def __init__(
        self, kind: FollowerKind, tables: Tables, checkpoints: LogCheckpoints, by_files: bool
    ) -> None:
        self.kind, self.tables, self._checkpoints = kind, tables, checkpoints
        self._writer: Writer = kind.writer() if by_files else kind
        self._sizes = small_write_settings.Sizes()

    def apply(
        self, spark: SparkSession, table: Table, pending: Iterable[Pending], columns: StructType
    ) -> None:
        """Apply batches to a table, as few commits as possible; `columns` are the source's.

        Stops where another process has emptied the table.
        """
        for unit in units(pending):
            batch = join(unit, table, self.tables, columns)
            if not self.write(spark, table, batch):
                return

    def rebuild(
        self,
        spark: SparkSession,
        table: Table,
        feeds: Iterable[Target],
        last: int,
        columns: StructType,
    ) -> None:
        """Give an emptied table all batches of its changelogs up to `last`."""
        batch = rebuild.join_everything(spark, table, feeds, last, columns)
        if batch is None:
            _log.warning("%s waits for the next batch of its changelog to be rebuilt", table.target)
            return
        self.write(spark, table, batch)

    def write(self, spark: SparkSession, table: Table, batch: Batch) -> bool:
        """Write a batch; return whether the table contains it.

        It does not if another process emptied the table: there the batch would be taken for all
        that there is.
        """
        tables, rebuilds = self.tables, _rebuilds(table, self.tables)

        def write() -> None:
            # Another process may have added columns. If it empties the table after this, Delta
            # passes over the batch.
            tables.require_contained(spark, table)
            if _rebuilds(table, tables) == rebuilds and not contains(table, tables, batch.number):
                self._writer.write(spark, table, tables, batch)

        is_small = self._sizes.are_small(spark, [table.target], batch.summary.count)
        with settings(spark, small_write_settings.SETTINGS if is_small else {}):
            conflict.repeated(write, table.target)
        tables.refresh(spark, table)
        self._checkpoints.committed(spark, table.target)
        return contains(table, tables, batch.number)


def _rebuilds(table: Table, tables: Tables) -> int:
    last = tables.last(table)
    return last.rebuilds if last else 0


def contains(table: Table, tables: Tables, batch: int) -> bool:
    """Whether the table contains a batch."""
    applied = tables.applied(table)
    return applied is not None and applied >= batch
