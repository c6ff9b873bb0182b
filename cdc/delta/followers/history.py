"""The history: every version of each document, with the interval in which it was valid.

A slowly changing dimension of type 2, with the column names of AUTO CDC. The keys are `key` and, in
a table that several collections share, the collection's name. `sequence_by` is the position.
`__START_AT` and `__END_AT` are structs of the second of the cluster time and of the position. A
version is valid from `__START_AT` on and before `__END_AT`; null means that it is still valid.

Rows whose `__START_AT` and `__END_AT` are equal are no versions. They store what a late row needs
(`cdc.delta.followers.scd2_rule`); those without a key store which event emptied the namespace. They
may be deleted once no older row can come any more."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructType

from cdc.delta.columns import Image, with_after
from cdc.delta.followers.scd2_merge import (
    END,
    NAMESPACE,
    START,
    Scope,
    Shape,
    change_events,
    emptied_events,
    merge,
    sequence,
)
from cdc.delta.followers.scd2_rule import Same, versions
from cdc.delta.landing import Batch, Facts, effects, voiding_events
from cdc.delta.log import merging
from cdc.delta.tables import Table, Tables, grow, writes

_KEYS = ("key",)
_SHARED_KEYS = (NAMESPACE, "key")


def history(
    changelog: DataFrame,
    columns: Sequence[Column] = (),
    track_history_columns: Sequence[str] | None = None,
) -> DataFrame:
    """Return all versions of the documents of a changelog of either form.

    The columns are `_namespace`, `key`, `document`, `__START_AT`, `__END_AT`.

    `columns` are taken from `after`, with their names, instead of `document`. With
    `track_history_columns` only changes of those begin a new version; the other columns have their
    last value in the version. The events that emptied the collections are read at once, all else
    when the result is used.
    """
    changelog = with_after(changelog)
    shown = columns or [F.col("after").alias("document")]
    changes = effects.without_moves(effects.key_changes(changelog))
    changes = changes.select(*_SHARED_KEYS, "position", "op", F.struct(*shown).alias("image"))
    names = changes.select("image.*").columns
    same = Same(tuple(track_history_columns or names), track_history_columns is not None)
    events = change_events(changes, _SHARED_KEYS)
    if scopes := [Scope.of(each, is_shared=True) for each in voiding_events(changelog)]:
        events = events.unionByName(emptied_events(events, scopes, _SHARED_KEYS))
    start, end = F.col("position"), F.col("until")
    found = versions(events, _SHARED_KEYS, same).where(~start.eqNullSafe(end))
    places = sequence(start).alias(START), sequence(end).alias(END)
    return found.select(*_SHARED_KEYS, "image.*", *places)


def shape(document: DataType, table: Table, image: Image) -> Shape:
    """The columns of the collection's history."""
    keys = _SHARED_KEYS if table.is_shared else _KEYS
    return Shape(keys, tuple(image.fields(document)), table.options.track)


def form(document: DataType, table: Table, image: Image) -> tuple[StructType, list[str]]:
    """The columns of the history, and those that identify a document."""
    own = shape(document, table, image)
    return own.schema(), [*own.keys]


def targets(facts: Facts, tables: Tables) -> list[Table]:
    """The histories that get a commit for this batch."""
    found = {table for table in tables.known() if effects.emptied(table, facts, tables)}
    found |= {table for n in facts.counts if facts.rows(n) and (table := tables.of(n))}
    return sorted(found, key=lambda table: table.target)


def write(spark: SparkSession, table: Table, tables: Tables, batch: Batch) -> None:
    """Apply a batch to the history in one commit. Idempotent per batch.

    A late row takes the place of its position. Rows count as in a mirror: a row without `after`
    does not count, an image counts whether it is exact or not, and a delete by which a document
    only moves to another shard does not count.
    """
    facts = batch.facts
    names = effects.changed(table, facts, tables)
    ended = effects.emptied(table, facts, tables)
    commit = effects.commit(table, batch, tables)
    if not names and not ended:
        writes.commit_nothing(spark, table, tables, commit)
        return
    rows = effects.rows(batch.read(spark), names, [], facts)
    if names:
        grow(spark, rows, table, tables)
    image = tables.image(table)
    own = shape(batch.document, table, image)
    # Typed columns can have any name but one of these.
    place = F.col("position").alias("_position"), F.col("op").alias("_op")
    rows = image.select(rows.select(*own.keys, *place, F.col("after").alias("document")))
    place = F.col("_position").alias("position"), F.col("_op").alias("op")
    changes = rows.select(*own.keys, *place, own.struct().alias("image"))
    scopes = [Scope.of(each, is_shared=table.is_shared) for each in ended]
    with merging(spark, tables.transaction(commit)):
        bounds, held = [facts.keys[name] for name in names], table.target.delta(spark)
        tables.require_current_columns(table, held.toDF().schema)
        merge(held, changes, scopes, own, bounds).execute()
    tables.committed(table, commit)
