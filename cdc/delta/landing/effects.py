"""The rules by which a batch changes mirrors and histories.

They say which rows count, and which events void older rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from cdc.delta.columns import is_of
from cdc.delta.landing.batch_summary import ROW_OPS, Batch, BatchSummary
from cdc.delta.log import Commit, State
from cdc.delta.tables import FAIL, KEEP, Options, Table, Tables
from cdc.errors import CollectionGone
from cdc.model import DROPPED, RENAMED, VOIDING, Namespace, NamespaceEvent


def changed(table: Table, summary: BatchSummary, tables: Tables) -> list[Namespace]:
    """The namespaces in the table whose documents the batch changes."""
    return [name for name in summary.counts if summary.rows(name) and tables.of(name) == table]


def emptied(table: Table, summary: BatchSummary, tables: Tables) -> list[NamespaceEvent]:
    """The events that void rows of the table, the last first.

    Without those after which the table keeps its rows, see `kept`.
    """
    own = [each for each in summary.voiding if _holds(each, table, tables)]
    found = [each for each in own if _policy(each.reason, table.options) != KEEP]
    return sorted(found, key=lambda each: each.position, reverse=True)


def emptying(options: Options) -> list[str]:
    """The operations that void rows of a table with these options, see `emptied`.

    A rename onto the name of a collection does it in any case.
    """
    return [op for op, reason in VOIDING.items() if _policy(reason, options) != KEEP]


def kept(table: Table, summary: BatchSummary, tables: Tables) -> list[NamespaceEvent]:
    """The events after which the table keeps its rows because of `on.drop` or `on.rename`."""
    own = [each for each in summary.voiding if _holds(each, table, tables)]
    return [each for each in own if _policy(each.reason, table.options) == KEEP]


def commit(table: Table, batch: Batch, tables: Tables) -> Commit:
    """The commit by which a batch reaches a table of documents."""
    summary = batch.summary
    steps = [(step, kept(table, step, tables)) for step in summary.steps or (summary,)]

    def state(name: Namespace, before: State) -> State:
        for step, still in steps:
            before = _state(name, before, step, still)
        return before

    last = tables.last(table)
    found = make_commit(table, batch, tables, summary.counts, state)
    if last is None:
        return replace(found, follows=batch.follows)
    follows = last.follows | batch.follows
    return replace(found, follows=follows, rebuilds=last.rebuilds)


def make_commit(
    table: Table,
    batch: Batch,
    tables: Tables,
    names: Iterable[Namespace],
    state: Callable[[Namespace, State], State],
) -> Commit:
    """The commit of a batch. A commit that is made again states what it stated before.

    `state` gets each of `names` that lies in the table, and each that was there, with its state
    before the batch; it returns the state after it.
    """
    last = tables.last(table)
    if last is not None and last.batch == batch.number:
        return last
    before = last.states if last else {}
    own = before.keys() | {name for name in names if tables.of(name) == table}
    states = {name: state(name, before.get(name, State())) for name in own}
    summary = batch.summary
    return Commit(batch.number, summary.watermark, states, summary.progress.offset)


def require_allowed(summary: BatchSummary, tables: Tables) -> None:
    """Raise CollectionGone if a collection was dropped or renamed whose policy is `fail`."""
    for table in tables.known():
        for each in summary.voiding:
            if _holds(each, table, tables) and _policy(each.reason, table.options) == FAIL:
                option = "on.drop" if each.reason == DROPPED else "on.rename"
                raise CollectionGone(
                    f"{table.namespace or each.db} was {each.reason}, and {option} = fail.",
                    f"Set {option} in [table] to truncate or keep to go on. The changelog contains"
                    " the event already; all other tables are unchanged.",
                )


def rows(
    batch: DataFrame,
    names: Iterable[Namespace],
    emptied: Iterable[NamespaceEvent],
    summary: BatchSummary,
) -> DataFrame:
    """The rows that decide the state of a key, with the full name in `_namespace`.

    These are the rows after the last event that emptied the namespace. A row of an insert, update
    or replace without `after` does not count.
    """
    names = list(names)
    found = key_changes(batch.where(reduce(or_, map(is_of, names), F.lit(False))))
    for each in emptied:
        found = found.where(~is_void(each, F.col("_namespace"), F.col("position")))
    return found if summary.departures.isdisjoint(names) else without_moves(found)


def key_changes(rows: DataFrame) -> DataFrame:
    """The rows that state the document of a key, or its end; with the full name in `_namespace`."""
    states = (F.col("op") == "delete") | F.col("after").isNotNull()
    found = rows.where(F.col("op").isin(*ROW_OPS) & states)
    return found.withColumn("_namespace", F.concat("db", F.lit("."), "coll"))


def is_void(each: NamespaceEvent, name: Column, position: Column) -> Column:
    """Whether a row of the namespace `name` (text) at `position` is voided."""
    before = position < F.lit(each.position)
    if each.db is None:
        return before
    if each.coll is None:
        return name.startswith(F.lit(f"{each.db}.")) & before
    return (name == F.lit(str(Namespace(each.db, each.coll)))) & before


def _state(
    name: Namespace, before: State, summary: BatchSummary, kept: list[NamespaceEvent]
) -> State:
    exact_from = before.exact_after(summary.exact_from.get(name), summary.watermark)
    is_kept = before.kept or any(each.concerns(name) for each in kept)
    # A collection that was removed in the midst of its copy is reported no more, and is incomplete.
    unfinished = None if name in summary.progress.copied else before.copying
    return State(exact_from, summary.copying.get(name, unfinished), is_kept)


def _holds(each: NamespaceEvent, table: Table, tables: Tables) -> bool:
    if table.namespace is not None:
        return each.concerns(table.namespace)
    if each.db is None or each.coll is None:
        return True
    return tables.of(Namespace(each.db, each.coll)) == table


def _policy(reason: str | None, options: Options) -> str | None:
    """None for a collection that is read again: nobody may keep its old content."""
    return {DROPPED: options.on_drop, RENAMED: options.on_rename}.get(reason or "")


def without_moves(rows: DataFrame) -> DataFrame:
    """Leave out the half of a move between shards that does not decide where the document is.

    A change of a shard key's value may move a document to another shard. One transaction deletes
    it on one shard and inserts it on the other. Each shard reports it at a time of its own, so the
    delete may come last; both are in one batch. Only the shard that has the document counts.
    """
    transaction = ("_namespace", "key", "txn.lsid", "txn.number")
    last = (
        rows.where(F.col("txn.shard").isNotNull())
        .groupBy(*transaction, "txn.shard")
        .agg(F.max("position").alias("position"), F.max_by("op", "position").alias("op"))
    )
    present = F.when(F.col("op") != "delete", F.col("position"))
    # If all shards deleted it, the first delete counts: another document may get the key then.
    home = F.coalesce(F.max_by("shard", present), F.min_by("shard", "position"))
    names = [name.rpartition(".")[2] for name in transaction]
    homes = last.groupBy(*names).agg(home.alias("home")).alias("homes")
    pairs = zip(transaction, names, strict=True)
    same = [F.col(f"rows.{inner}") == F.col(f"homes.{name}") for inner, name in pairs]
    elsewhere = [*same, F.col("rows.txn.shard") != F.col("home")]
    return rows.alias("rows").join(F.broadcast(homes), elsewhere, "left_anti")
