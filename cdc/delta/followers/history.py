"""The history: every version of each document, with the interval in which it was valid.

A slowly changing dimension of type 2, with the column names of AUTO CDC. The keys are `key` and, in
a table that several collections share, the collection's name. `sequence_by` is the position.
`__START_AT` and `__END_AT` are structs of the second of the cluster time and of the position. A
version is valid from `__START_AT` on and before `__END_AT`; null means that it is still valid.

Rows whose `__START_AT` and `__END_AT` are equal are no versions. They store what a late row needs
(`cdc.delta.followers.merges.scd2_rule`); those without a key store which event emptied the
namespace. They may be deleted once no older row can come any more."""

from __future__ import annotations

from collections.abc import Sequence

from delta.tables import DeltaMergeBuilder, DeltaTable
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructType

from cdc.delta.columns import Image, with_after
from cdc.delta.followers.follower_kind import Changes, FollowerKind
from cdc.delta.followers.merges.scd2_merge import (
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
from cdc.delta.followers.merges.scd2_rule import Same, versions
from cdc.delta.landing import BatchSummary, effects, voiding_events
from cdc.delta.tables import TRACK, Options, Table, Tables

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


class History(FollowerKind):
    """The kind of tables that contain every version of each document.

    A late row takes the place of its position. Rows count as in a mirror: a row without `after`
    does not count, an image counts whether it is exact or not, and a delete by which a document
    only moves to another shard does not count.
    """

    name, form_option = "history", TRACK
    has_past = True

    def form(self, options: Options) -> str:
        return f"[{', '.join(options.track)}]" if options.track else super().form(options)

    def shape(self, document: DataType, table: Table, image: Image) -> Shape:
        return Shape(tuple(self.key(table)), tuple(image.fields(document)), table.options.track)

    def schema(self, document: DataType, table: Table, image: Image) -> StructType:
        return self.shape(document, table, image).schema()

    def targets(self, summary: BatchSummary, tables: Tables) -> list[Table]:
        found = {table for table in tables.known() if effects.emptied(table, summary, tables)}
        found |= {table for n in summary.counts if summary.rows(n) and (table := tables.of(n))}
        return sorted(found, key=lambda table: table.target)

    def merge(self, held: DeltaTable, table: Table, changes: Changes) -> DeltaMergeBuilder:
        own = self.shape(changes.document, table, changes.image)
        # Typed columns can have any name but one of these.
        place = F.col("position").alias("_position"), F.col("op").alias("_op")
        rows = changes.rows.select(*own.keys, *place, F.col("after").alias("document"))
        place = F.col("_position").alias("position"), F.col("_op").alias("op")
        rows = changes.image.select(rows).select(*own.keys, *place, own.struct().alias("image"))
        scopes = [Scope.of(each, is_shared=table.is_shared) for each in changes.emptied]
        return merge(held, rows, scopes, own, changes.bounds)

    def origins(self, rows: DataFrame, table: Table) -> DataFrame:
        start, end = F.col(f"{START}.position"), F.col(f"{END}.position")
        rows = rows.where(F.col("key").isNotNull() & ~start.eqNullSafe(end))
        return rows.select(*self.key(table), start.alias("position"))


HISTORY = History()
