"""The changelog: every row of every batch, appended once, in one Delta table per namespace."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache, partial, reduce
from operator import or_

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from cdc.delta.columns import BATCH, in_form, is_of
from cdc.delta.landing.batch_summary import UNSTORED, Batch, BatchSummary
from cdc.delta.landing.effects import make_commit
from cdc.delta.landing.landed_batch import LandedBatch, Row
from cdc.delta.log import NO_BATCH, Commit, State, UnsuitableTable
from cdc.delta.tables import Kind, Options, Table, Tables, writes
from cdc.errors import TableOwnedElsewhere
from cdc.model import VOID, WATERMARK, Namespace
from cdc.tasks import Group, remove

_log = logging.getLogger(__name__)

# Small enough to write in parallel, large enough that a quiet collection does not get one file per
# core and batch.
_ROWS_PER_FILE = 50_000
# What is asked of a changelog: a time, and a document.
_CLUSTER = ("cluster_time", "key")


class Changelog(Kind):
    """The kind of tables that contain every row of every batch."""

    name, form_option = "changelog", "form"

    def form(self, options: Options) -> str:
        return options.changelog_form

    def targets(self, summary: BatchSummary, tables: Tables) -> list[Table]:
        """The changelogs that get rows of this batch, or a commit without rows.

        A collection without documents also gets a changelog, which is empty.
        """
        shared = {table for table in tables.known() if _gets_shared_rows(table, summary, tables)}
        names = summary.counts.keys() | summary.progress.copied | summary.torn
        own = {table for namespace in names if (table := tables.of(namespace))}
        return sorted(shared | own, key=lambda table: table.target)

    def write(self, spark: SparkSession, table: Table, tables: Tables, batch: Batch) -> None:
        """Append the rows of a table, and create the table if needed. Idempotent per batch.

        Besides the rows of its own collections a changelog gets rows that concern them: a rename
        onto their name, and rows without a collection (dropDatabase) or without a database (a gap).
        So each changelog alone contains everything that changed its collections.
        """
        summary, number = batch.summary, F.lit(batch.number).cast("long")
        rows = batch.read(spark).withColumn(BATCH, number)
        rows = in_form(rows, table.options.changelog_form)
        columns = _nullable(rows.schema)
        new = tables.describe_new(table, columns, batch.document.simpleString(), _CLUSTER)
        tables.require_contained(spark, table)
        writes.create(spark, table, tables, new)
        writes.complete(spark, table, tables, columns)
        commit = _commit(table, batch, tables)
        own = _own(table, summary, tables)
        count = sum(sum(summary.counts[namespace].values()) for namespace in own)
        files = max(1, math.ceil(count / _ROWS_PER_FILE))
        own_rows = rows.where(_concerns(table, own, summary, tables)).coalesce(files)
        table.target.append(own_rows, tables.transaction(commit))
        tables.committed(table, commit)


CHANGELOG = Changelog()


class LandedChangelog(Changelog):
    """The changelog of a batch whose rows the tasks have written to data files already.

    It commits the files. It writes the rows of the manifest itself, for each table that they
    concern. A table that demands more than a task can write gets the rows through Spark.
    """

    def __init__(self, landed: LandedBatch) -> None:
        self._landed = landed

    def write(self, spark: SparkSession, table: Table, tables: Tables, batch: Batch) -> None:
        """Commit the files of a table, and create it if needed. Idempotent per batch."""
        last = tables.last(table)
        if last is not None and last.batch == batch.number:
            self._landed.is_repeated = True
        schema = _nullable(batch.columns).add(BATCH, "long")
        document = batch.document.simpleString()
        commit = _commit(table, batch, tables)
        new = tables.describe_new(table, schema, document, _CLUSTER)
        writes.complete(spark, table, tables, schema)
        selector = _selector(table, batch.summary, tables)
        own = self._landed.write_rows(table.target.address, batch.number, selector)
        files = [*self._landed.files_of(table.target.address), *own]
        attempt = partial(self._landed.mark_attempted, files)
        try:
            is_new = writes.add_files(spark, table, tables, files, commit, new, attempt)
        except UnsuitableTable as reason:
            remove(own, tables.layout.storage)
            _warn_once(str(table.target), str(reason))
            every = self._landed.all_rows(batch.read(spark))
            super().write(spark, table, tables, replace(batch, read=lambda _: every))
            return
        except TableOwnedElsewhere:
            remove(own, tables.layout.storage)
            raise
        if not is_new:
            self._landed.is_repeated = True
            remove(own, tables.layout.storage)


@cache
def _warn_once(table: str, reason: str) -> None:
    _log.warning("%s: Spark writes the rows, because %s", table, reason)


def _nullable(columns: StructType) -> StructType:
    # What a later version of the source leaves out must not break the table.
    return StructType([StructField(f.name, f.dataType) for f in columns])


def _own(table: Table, summary: BatchSummary, tables: Tables) -> list[Namespace]:
    return [namespace for namespace in summary.counts if tables.of(namespace) == table]


def _commit(table: Table, batch: Batch, tables: Tables) -> Commit:
    summary = batch.summary
    last = tables.last(table)
    until = last.watermark if last else None

    def state(name: Namespace, before: State) -> State:
        whole = before.whole
        if tables.of(name) != table:  # it has another changelog now, or none
            return replace(before, whole=whole.cut(until))
        if last and tables.layouts.was_away(CHANGELOG.name, table, name, last.batch, batch.number):
            whole = whole.cut(until)
        exact_from = before.exact_after(summary.exact_from.get(name), summary.watermark)
        return State(exact_from, whole=summary.coverage(name, whole, until, exact_from))

    names = summary.counts.keys() | summary.copied | summary.torn
    made = make_commit(table, batch, tables, names, state)
    if made is last:
        return made
    after = last.batch if last else NO_BATCH
    return replace(made, groups=tuple(_groups(table, summary, tables)), after=after)


def _groups(table: Table, summary: BatchSummary, tables: Tables) -> Iterator[Group]:
    """The summary of the rows of a table, and of its namespaces."""
    concerns = _selector(table, summary, tables)
    for group in summary.groups:
        if group.op == VOID and tables.of(Namespace(group.db or "", group.coll or "")) == table:
            yield group
        names = {"op": group.op, "db": group.db, "coll": group.coll}
        texts = [mark.description for mark in group.marks] or [None]
        if group.op == WATERMARK or any(concerns({**names, "description": t}) for t in texts):
            yield group


def _gets_shared_rows(table: Table, summary: BatchSummary, tables: Tables) -> bool:
    """Whether the table gets rows besides those of its collections, or one of these ends."""
    last = tables.last(table)
    if any(
        summary.progress.is_deselected(namespace) for namespace in (last.states if last else ())
    ):
        return True
    if table.namespace is not None:
        return summary.shares_with(table.namespace)
    return bool(_renamed_onto(table, summary, tables)) or any(c is None for _, c in summary.shared)


def _renamed_onto(table: Table, summary: BatchSummary, tables: Tables) -> list[Namespace]:
    names = (Namespace(db, coll) for db, coll in summary.shared if db is not None and coll)
    return [namespace for namespace in names if tables.of(namespace) == table]


def _concerns(
    table: Table, own: Iterable[Namespace], summary: BatchSummary, tables: Tables
) -> Column:
    # Written so that no term is null where another one is true.
    concerns = [*map(is_of, own)]
    if _gets_shared_rows(table, summary, tables):
        db = F.lit(True) if table.namespace is None else F.col("db") == F.lit(table.namespace.db)
        concerns.append(F.col("coll").isNull() & F.coalesce(db, F.lit(True)))
        to = F.from_json("description", "to struct<db string, coll string>")["to"]
        for namespace in _renamed_onto(table, summary, tables):
            concerns.append((F.col("op") == "rename") & is_of(namespace, to))
    return reduce(or_, concerns, F.lit(False)) & ~F.col("op").isin(*UNSTORED)


def _selector(table: Table, summary: BatchSummary, tables: Tables) -> Callable[[Row], bool]:
    """The rule of `_concerns` for the rows of a manifest."""
    own, onto = set(_own(table, summary, tables)), set(_renamed_onto(table, summary, tables))
    has_more = _gets_shared_rows(table, summary, tables)

    def concerns(row: Row) -> bool:
        if row["op"] in UNSTORED:
            return False
        db, coll = row["db"], row["coll"]
        if coll is None:
            return has_more and (table.namespace is None or db in (None, table.namespace.db))
        if Namespace(db, coll) in own:
            return True
        if not has_more or row["op"] != "rename":
            return False
        to = json.loads(row["description"])["to"]
        return Namespace(to["db"], to["coll"]) in onto

    return concerns
