"""The copied documents of a batch, which tasks have written to files of the mirror.

The files are committed as they are if the mirror provably contains none of their keys. Otherwise
the rows are merged: a second row of a key would stay for ever.

A batch may also change documents that were copied before. These changes are merged first, in a
commit of their own. So the mirror is as the batch found it, or has all changes up to the end of the
batch and no document of its copy, or contains the whole batch. Each of these states is one that the
offset of a pipeline describes, so a crash between the commits needs no repair."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructType

from cdc.delta.followers import mirror
from cdc.delta.followers.pending import Pending
from cdc.delta.landing import Batch, Bounds, Facts, LandedBatch, effects, read_files
from cdc.delta.log import UnsuitableTable
from cdc.delta.tables import Table, Tables, writes
from cdc.model import Namespace
from cdc.tasks import DataFile

_log = logging.getLogger(__name__)
_KEY = StructType().add("key", StringType())


class CopiedMirror:
    """Writes a mirror like `cdc.delta.followers.mirror`.

    For batches for which `has_files` is true, when the mirror contains everything else of them.
    """

    def __init__(self, landed: LandedBatch) -> None:
        self._landed = landed

    def write(self, spark: SparkSession, table: Table, tables: Tables, batch: Batch) -> None:
        """Add the copied documents to the mirror in one commit. Idempotent per batch."""
        files = self._landed.files_of(table.target.address)
        columns = mirror.schema(batch.document, table, tables.columns(table))
        kind = batch.document.simpleString()
        new = tables.describe_new(table, columns, kind, mirror.key_of(table))
        commit = effects.commit(table, batch, tables)
        assert table.namespace is not None, "tasks write no copies for a mirror of several"
        bounds = _copied_keys(batch.facts, table.namespace)
        objection = partial(_find_common_keys, spark, table, files, bounds)
        attempt = partial(self._landed.mark_attempted, files)
        try:
            if not files or has_other_columns(table, tables):
                raise UnsuitableTable("there are no files with the columns of the table any more")
            writes.add_files(spark, table, tables, files, commit, new, attempt, objection)
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


def _copied_keys(facts: Facts, namespace: Namespace) -> Bounds:
    """The bounds of the keys of copied documents; those of changes may be far apart."""
    found = [
        Bounds(each.least, each.greatest)
        for each in facts.groups
        if (each.db, each.coll) == namespace and each.op == "read"
        if each.least is not None and each.greatest is not None
    ]
    return Bounds(min(each.least for each in found), max(each.greatest for each in found))


def has_files(table: Table, tables: Tables, pending: Pending) -> bool:
    """Whether data files of the mirror contain all documents of it that a batch copies.

    A batch that empties the mirror is merged as a whole.
    """
    facts, landed, name = pending.facts, pending.landed, table.namespace
    files = [] if landed is None else landed.files_of(table.target.address)
    if not files or name is None or has_other_columns(table, tables):
        return False
    is_emptied = bool(effects.emptied(table, facts, tables))
    copied = facts.counts.get(name, {}).get("read")
    return not is_emptied and copied == sum(file.rows for file in files)


def has_other_columns(table: Table, tables: Tables) -> bool:
    """Whether the mirror, which is there, has other columns than the configured ones.

    The tasks know only these.
    """
    return tables.columns(table) != table.options.columns
