"""The mirror of a batch that only adds rows, which tasks have written to files of the mirror.

The files are committed as they are if the mirror provably contains none of their keys. Otherwise
the batch is merged: a second row of a key would stay for ever."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructType

from cdc.delta.followers import mirror
from cdc.delta.landing import Batch, Bounds, Facts, LandedBatch, effects, read_files
from cdc.delta.tables import Table, Tables, UnsuitableTable
from cdc.tasks import DataFile

_log = logging.getLogger(__name__)
_KEY = StructType().add("key", StringType())


class CopiedMirror:
    """Writes a mirror like `cdc.delta.followers.mirror`.

    For batches for which `is_nothing_but_a_copy` is true.
    """

    def __init__(self, landed: LandedBatch) -> None:
        self._landed = landed

    def write(self, spark: SparkSession, table: Table, tables: Tables, batch: Batch) -> None:
        """Apply a batch to the mirror in one commit. Idempotent per batch."""
        files = self._landed.files_of(table.target.address)
        facts = batch.facts
        columns = mirror.schema(batch.document, table, tables.columns(table))
        kind = batch.document.simpleString()
        new = tables.describe_new(table, columns, kind, mirror.key_of(table))
        commit = effects.commit(table, batch, tables)
        [name] = effects.changed(table, facts, tables)
        objection = partial(_find_common_keys, spark, table, files, facts.keys[name])
        attempt = partial(self._landed.mark_attempted, files)
        try:
            tables.add_files(spark, table, files, commit, new, attempt, objection)
        except UnsuitableTable as reason:
            _log.info("%s: the copied rows are merged, because %s", table.target, reason)
            mirror.write(spark, table, tables, batch)


def _find_common_keys(
    spark: SparkSession, table: Table, files: Sequence[DataFile], bounds: Bounds, version: int
) -> str | None:
    """The reason why the files may not be appended to that version; None if they may."""
    there = table.target.read(spark, version).select("key").where(F.col("key").between(*bounds))
    if there.isEmpty():
        return None
    copied = read_files(spark, files, _KEY)
    is_common = not there.join(copied, "key", "left_semi").isEmpty()
    return "it has rows of the same keys" if is_common else None


def is_nothing_but_a_copy(
    table: Table, tables: Tables, facts: Facts, landed: LandedBatch | None
) -> bool:
    """Whether a batch only adds rows to the mirror, and its files contain these rows."""
    files = [] if landed is None else landed.files_of(table.target.address)
    names = effects.changed(table, facts, tables)
    # The tasks know the configured columns only; a table that is there may have other ones.
    has_other_columns = tables.columns(table) != table.options.columns
    if not files or has_other_columns or effects.emptied(table, facts, tables):
        return False
    [name] = names  # tasks write no copies for a mirror of several collections
    return facts.rows(name) == facts.counts[name].get("read") == sum(file.rows for file in files)
