"""Writes pending batches to one mirror or history.

Several processes may write to a table: each write begins with what the table contains by then.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from pyspark.sql import SparkSession
from pyspark.sql.types import DataType, StructType

from cdc.delta.columns import Columns
from cdc.delta.followers import history, mirror, rebuild
from cdc.delta.followers.copied_mirror import CopiedMirror, has_files
from cdc.delta.followers.pending import Pending, join, units
from cdc.delta.landing import Batch, Facts, effects
from cdc.delta.log import CHANGES, Commit, LogCheckpoints, Target, conflict, settings
from cdc.delta.tables import Table, Tables, small_write_settings

_log = logging.getLogger(__name__)
# So many copied rows are merged together with the changes around them. To append them takes a
# commit of their own, between a MERGE of the changes before and one of those after.
_MOST_MERGED_ROWS = 25_000


class _Writer(Protocol):
    """What brings a table up to date."""

    def write(self, spark: SparkSession, table: Table, tables: Tables, batch: Batch) -> None: ...


class _Kind(_Writer, Protocol):
    """A module that brings one kind of table up to date."""

    def targets(self, facts: Facts, tables: Tables) -> list[Table]: ...

    def form(
        self, document: DataType, table: Table, typed: Columns | None
    ) -> tuple[StructType, list[str]]: ...


KINDS: Mapping[str, _Kind] = {"mirror": mirror, "history": history}


@dataclass(slots=True)
class TableWriter:
    """Writes batches to mirrors and histories, several at a time.

    Args:
        checkpoints: who writes the checkpoints of the tables' logs.
        columns: those of the source's rows.
    """

    checkpoints: LogCheckpoints
    columns: StructType = field(default_factory=StructType)
    _sizes: small_write_settings.Sizes = field(default_factory=small_write_settings.Sizes)

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

        def ends(batch: Pending) -> bool:
            return _copies_many(batch, table) and has_files(table, tables, batch)

        for unit in units(pending, ends) if tables.kind == "mirror" else [[*pending]]:
            for writer, batch in self._steps(unit, table, tables):
                if not self._write(writer, tables, spark, table, batch):
                    return

    def _steps(
        self, unit: Sequence[Pending], table: Table, tables: Tables
    ) -> Iterator[tuple[_Writer, Batch]]:
        """The commits by which a table gets a unit of batches, one or two."""
        kind, last = KINDS[tables.kind], unit[-1]
        whole = partial(join, table=table, tables=tables, columns=self.columns)
        # Asked again: an earlier unit may have added columns that the data files lack.
        if tables.kind != "mirror" or last.landed is None or not has_files(table, tables, last):
            yield kind, whole(unit)
            return
        copy = CopiedMirror(last.landed)
        changes = whole(unit, lacks_copy=True)
        facts = changes.facts
        if not effects.changed(table, facts, tables) and not effects.emptied(table, facts, tables):
            yield copy, whole(unit)
        elif _copies_many(last, table) and _states_copy(
            effects.commit(table, changes, tables), table
        ):
            yield kind, changes
            yield copy, whole([last])
        else:
            yield kind, whole(unit)

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
        self._write(KINDS[tables.kind], tables, spark, table, batch)

    def _write(
        self, writer: _Writer, tables: Tables, spark: SparkSession, table: Table, batch: Batch
    ) -> bool:
        """Write a batch; return whether the table contains it.

        It does not if another process emptied the table: there the batch would be taken for all
        that there is.
        """
        rebuilds = _rebuilds(table, tables)

        def write() -> None:
            # Another process may have added columns. If it empties the table after this, Delta
            # passes over the batch.
            tables.refresh(spark, table)
            if _rebuilds(table, tables) == rebuilds and not _contains(table, tables, batch):
                writer.write(spark, table, tables, batch)

        is_small = self._sizes.are_small(spark, [table.target], batch.facts.count)
        with settings(spark, small_write_settings.SETTINGS if is_small else {}):
            conflict.repeated(write, table.target)
        tables.refresh(spark, table)
        self.checkpoints.committed(spark, table.target)
        return _contains(table, tables, batch)


def _copies_many(batch: Pending, table: Table) -> bool:
    """Whether a batch copies so many documents that their files are worth a commit."""
    counts = batch.facts.counts.get(table.namespace, {}) if table.namespace else {}
    return counts.get("read", 0) > _MOST_MERGED_ROWS


def _rebuilds(table: Table, tables: Tables) -> int:
    last = tables.last(table)
    return last.rebuilds if last else 0


def _states_copy(commit: Commit, table: Table) -> bool:
    """Whether a commit states that the copy of the table's collection is not complete."""
    return table.namespace is not None and commit.state(table.namespace).copying is not None


def _contains(table: Table, tables: Tables, batch: Batch) -> bool:
    last = tables.last(table)
    has_changes = last is not None and last.step == CHANGES and last.batch == batch.number
    return (batch.lacks_copy and has_changes) or contains(table, tables, batch.number)


def contains(table: Table, tables: Tables, batch: int) -> bool:
    """Whether the table contains a batch."""
    applied = tables.applied(table)
    return applied is not None and applied >= batch
