"""The history: every version of each document, with the interval in which it held.

Slowly changing dimension, type 2, with the names of AUTO CDC: the keys are `key` (in a table that
several collections share, with their name), `sequence_by` is the position. `__START_AT` and
`__END_AT` are structs of the second of cluster time and of the position, in whose order they are; a
version holds from the one on up to the other, itself not included, or for ever where that is null.

Rows whose interval is empty, as both are equal, are no versions and hold at no time: they remember
what a row that comes late has to know (`cdc.delta.followers.scd2_rule`); those without a key, what
emptied the namespace. They may be deleted when nothing that is older can come any more.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructType

from cdc.delta.columns import Columns, image, with_image
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
from cdc.delta.tables import Table, Tables, grow, merging, with_after

_KEYS = ("key",)
_SHARED_KEYS = (NAMESPACE, "key")


def history(
    changelog: DataFrame,
    columns: Sequence[Column] = (),
    track_history_columns: Sequence[str] | None = None,
) -> DataFrame:
    """All versions of the documents of a changelog of either form: `_namespace`, `key`, `document`,
    `__START_AT`, `__END_AT`.

    `columns` are taken from `after`, with names, in place of `document`. Of these only changes of
    `track_history_columns` begin a new version, if they are given; the others are as they were
    last while the version held. Reads what emptied the collections at once, all else when asked.
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


def shape(document: DataType, table: Table, typed: Columns | None) -> Shape:
    """The columns of the collection's history."""
    keys = _SHARED_KEYS if table.is_shared else _KEYS
    return Shape(keys, tuple(image(document, typed)), table.options.track)


def form(document: DataType, table: Table, typed: Columns | None) -> tuple[StructType, list[str]]:
    """The columns of the history, and those that identify a document."""
    own = shape(document, table, typed)
    return own.schema(), [*own.keys]


def targets(facts: Facts, tables: Tables) -> list[Table]:
    """The histories that this batch changes."""
    found = {table for table in tables.known() if effects.emptied(table, facts, tables)}
    found |= {table for n in facts.counts if facts.rows(n) and (table := tables.of(n))}
    return sorted(found, key=lambda table: table.target)


def write(spark: SparkSession, table: Table, tables: Tables, batch: Batch) -> None:
    """Bring the history to the batch's watermark, in one commit; idempotent per batch.

    Late rows belong where their position is. Rows count as in a mirror: a row
    without `after` does not count, images count as they are, exact or not, and a delete by which a
    document only moves to another shard is none.
    """
    facts = batch.facts
    names = effects.changed(table, facts, tables)
    ended = effects.emptied(table, facts, tables)
    commit = effects.commit(table, batch, tables)
    if not names and not ended:
        tables.commit_nothing(spark, table, commit)
        return
    rows = effects.rows(batch.read(spark), names, [], facts)
    if names:
        grow(spark, rows, table, tables)
    typed = tables.columns(table)
    own = shape(batch.document, table, typed)
    # Typed columns can have any name but one of these.
    place = F.col("position").alias("_position"), F.col("op").alias("_op")
    rows = with_image(rows.select(*own.keys, *place, F.col("after").alias("document")), typed)
    place = F.col("_position").alias("position"), F.col("_op").alias("op")
    changes = rows.select(*own.keys, *place, own.struct().alias("image"))
    scopes = [Scope.of(each, is_shared=table.is_shared) for each in ended]
    with merging(spark, tables.transaction(commit)):
        bounds, held = [facts.keys[name] for name in names], table.target.delta(spark)
        tables.require_current_columns(table, held.toDF().schema)
        merge(held, changes, scopes, own, bounds).execute()
    tables.committed(table, commit)
