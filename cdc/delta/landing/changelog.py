"""The changelog: every row of every batch, appended once, in one Delta table per namespace."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from cdc.delta.landing.batch_summary import UNTOLD, Facts
from cdc.delta.tables import CDF, Commit, State, Table, Tables, cdf, is_of
from cdc.model import Namespace

# Small enough to write in parallel, large enough that a quiet collection does not get one file per
# core and batch.
_ROWS_PER_FILE = 50_000
# What is asked of a changelog: a time, and a document.
_CLUSTER = ("cluster_time", "key")


def targets(facts: Facts, tables: Tables) -> list[Table]:
    """The changelogs that get rows of this batch, or of which it has something to say: that of a
    collection without documents is empty."""
    shared = {table for table in tables.known() if _is_told(table, facts, tables)}
    names = facts.counts.keys() | facts.copied | facts.torn
    own = {table for namespace in names if (table := tables.of(namespace))}
    return sorted(shared | own, key=lambda table: table.target)


def write(
    spark: SparkSession,
    batch: DataFrame,
    table: Table,
    facts: Facts,
    batch_id: int,
    tables: Tables,
) -> None:
    """Append the table's rows, creating it if need be. Idempotent per batch.

    Besides the rows of its own collections a changelog gets what concerns them: a rename onto their
    name, and rows without a collection (dropDatabase) or without a database (a gap), so that each
    changelog alone tells how its collections came to be as they are.
    """
    rows = cdf(batch) if table.options.changelog_form == CDF else batch
    tables.create(
        spark,
        table,
        # Nullable: what a later version of the source leaves out must not break the table.
        StructType([StructField(f.name, f.dataType) for f in rows.schema]),
        batch.schema["after"].dataType.simpleString(),
        _CLUSTER,
    )
    commit = _commit(table, facts, batch_id, tables)
    own = [namespace for namespace in facts.counts if tables.of(namespace) == table]
    count = sum(sum(facts.counts[namespace].values()) for namespace in own)
    files = max(1, math.ceil(count / _ROWS_PER_FILE))
    told = rows.where(_concerns(table, own, facts, tables)).coalesce(files)
    table.target.append(told, tables.transaction(commit))
    tables.committed(table, commit)


def _commit(table: Table, facts: Facts, batch_id: int, tables: Tables) -> Commit:
    last = tables.last(table)
    if last is not None and last.batch == batch_id:  # it is written again, and says the same
        return last
    before = last.states if last else {}
    told = facts.counts.keys() | facts.copied | facts.torn
    names = before.keys() | {name for name in told if tables.of(name) == table}
    states = {}
    for name in names:
        state = before.get(name, State())
        exact_from = state.exact_after(facts.exact_from.get(name), facts.watermark)
        whole = facts.coverage(name, state.whole, last.watermark if last else None, exact_from)
        states[name] = State(exact_from, whole=whole)
    return Commit(batch_id, facts.watermark, states, facts.said.offset)


def _is_told(table: Table, facts: Facts, tables: Tables) -> bool:
    """Whether the batch holds rows for it besides those of its own collections, or ends them."""
    last = tables.last(table)
    if any(facts.said.is_deselected(namespace) for namespace in (last.states if last else ())):
        return True
    if table.namespace is not None:
        return facts.shares_with(table.namespace)
    return bool(_renamed_onto(table, facts, tables)) or any(c is None for _, c in facts.shared)


def _renamed_onto(table: Table, facts: Facts, tables: Tables) -> list[Namespace]:
    names = (Namespace(db, coll) for db, coll in facts.shared if db is not None and coll)
    return [namespace for namespace in names if tables.of(namespace) == table]


def _concerns(table: Table, own: Iterable[Namespace], facts: Facts, tables: Tables) -> Column:
    # Written so that no term is null where another one is true.
    concerns = [*map(is_of, own)]
    if _is_told(table, facts, tables):
        db = F.lit(True) if table.namespace is None else F.col("db") == F.lit(table.namespace.db)
        concerns.append(F.col("coll").isNull() & F.coalesce(db, F.lit(True)))
        to = F.from_json("description", "to struct<db string, coll string>")["to"]
        for namespace in _renamed_onto(table, facts, tables):
            concerns.append((F.col("op") == "rename") & is_of(namespace, to))
    return reduce(or_, concerns, F.lit(False)) & ~F.col("op").isin(*UNTOLD)
