"""The MERGE of a table of versions, and which of its rows a batch can change.

Changes that come late, in another order, or repeatedly give the same table as changes that come in
order and once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import NamedTuple

from delta.tables import DeltaMergeBuilder, DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType, TimestampType

from cdc.delta.followers.follower_kind import within
from cdc.delta.followers.merges.scd2_rule import EMPTIED, ENDED, IMAGES, KNOWN, NEW, Same, versions
from cdc.delta.landing import Bounds
from cdc.delta.sql import quoted
from cdc.model import REPLACED, Namespace, NamespaceEvent

START, END, OP, NAMESPACE = "__START_AT", "__END_AT", "_op", "_namespace"
_PLACE = StructType().add("time", TimestampType()).add("position", StringType())
_TABLE = "history"
# Beside typed columns: none of these begins with an underscore and is not the table's own.
_NEEDED = "_needed"


class Scope(NamedTuple):
    """An event that emptied collections: which, where and why.

    `names` is a namespace, the name of a database, or None for the whole table.
    """

    names: str | None
    position: str
    reason: str

    @classmethod
    def of(cls, event: NamespaceEvent, *, is_shared: bool) -> Scope:
        """Return the scope of an event in a table: the whole table if it is of one collection."""
        names = event.db if is_shared else None
        if names is not None and event.coll is not None:
            names = str(Namespace(names, event.coll))
        return cls(names, event.position, str(event.reason))


@dataclass(frozen=True, slots=True)
class Shape:
    """The columns of a table of versions.

    `keys` identify a document, `image` contains one. `track` are the columns of the image that
    begin a new version (`track_history_columns`). With None each event begins one, except a
    document that was read again and is the same.
    """

    keys: tuple[str, ...]
    image: tuple[StructField, ...]
    track: tuple[str, ...] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(field.name for field in self.image)

    @property
    def same(self) -> Same:
        return Same(self.names if self.track is None else self.track, self.track is not None)

    def struct(self) -> Column:
        """An image, of these columns."""
        return F.struct(*(F.col(quoted(name)) for name in self.names))

    def schema(self) -> StructType:
        """Return the columns. Those that decide which files a MERGE reads come first.

        Delta keeps statistics of the first columns only.
        """
        first = StructType([StructField(name, StringType()) for name in self.keys])
        first.add(START, _PLACE).add(END, _PLACE)
        return StructType([*first, *self.image, StructField(OP, StringType())])


def sequence(position: Column) -> Column:
    """A place in the order of all rows, in the form of `__START_AT`; null for null."""
    seconds = F.conv(F.substring(position, 3, 8), 16, 10).cast("long")
    place = F.struct(F.timestamp_seconds(seconds).alias("time"), position.alias("position"))
    return F.when(position.isNotNull(), place)


def emptied_events(events: DataFrame, scopes: Iterable[Scope], keys: Sequence[str]) -> DataFrame:
    """The events that emptied the namespace, repeated for each key of `events`."""
    each = events.select(*keys).distinct()
    frame, nothing = F.broadcast(_frame(events.sparkSession, scopes)), F.lit(None)
    found = each.join(frame, _concerns(F.col("names"), keys))
    columns = {"rank": F.lit(EMPTIED), "image": nothing, "end": nothing}
    return found.drop("names").withColumns(columns).withColumnRenamed("reason", "op")


def change_events(changes: DataFrame, keys: Sequence[str]) -> DataFrame:
    """The changes as events of the kind NEW."""
    end = F.lit(None).cast("string").alias("end")
    return changes.select(*keys, "position", F.lit(NEW).alias("rank"), "op", "image", end)


def merge(
    table: DeltaTable,
    rows: DataFrame,
    emptied: Iterable[Scope],
    shape: Shape,
    bounds: Sequence[Bounds],
) -> DeltaMergeBuilder:
    """Return a MERGE after which the table contains the versions of all rows that it ever got.

    `rows` has the keys of the shape, `position`, `op` (of a row), and `image`, a struct of the
    columns of the shape. `bounds` are those of its `key`. `rows` is read more than once. The order
    of rows and batches, and repetitions, make no difference; of rows that share key and position,
    the first counts.
    """
    there = table.toDF().alias(_TABLE)
    known = _known_scopes(there, shape)
    new = set(emptied) - known
    reach = F.lit(True) if new else within(F.col(f"{_TABLE}.key"), bounds)
    affected = _affected(there.where(reach), _touched(rows, known | new, shape.keys), new, shape)
    events = _known(affected, shape).unionByName(change_events(rows, shape.keys))
    if known | new:
        events = events.unionByName(emptied_events(events, known | new, shape.keys))
    changes = _changes(versions(events, shape.keys, shape.same), shape)
    if new:
        remembered = _remembered(_frame(rows.sparkSession, new), shape)
        changes = changes.unionByName(remembered, allowMissingColumns=True)
    return _merge(table, changes, reach, shape)


def _known_scopes(rows: DataFrame, shape: Shape) -> set[Scope]:
    names = F.col(NAMESPACE) if NAMESPACE in shape.keys else F.lit(None)
    found = rows.where("key IS NULL").select(names, f"{START}.position", OP).collect()
    return {Scope(*row) for row in found}


def _frame(spark: SparkSession, scopes: Iterable[Scope]) -> DataFrame:
    return spark.createDataFrame([*scopes], "names string, position string, reason string")


def _concerns(names: Column, keys: Sequence[str]) -> Column:
    """Whether `names` includes a row. A database name has no dot, a namespace has one."""
    if NAMESPACE not in keys:
        return F.lit(True)
    name = F.col(NAMESPACE)
    is_database = ~F.contains(names, F.lit(".")) & F.startswith(name, F.concat(names, F.lit(".")))
    return names.isNull() | (name == names) | is_database


def _touched(rows: DataFrame, scopes: Iterable[Scope], keys: Sequence[str]) -> DataFrame:
    """The keys of `rows`, with the position `_lowest`; versions that ended before it do not change.

    It is the first position of the key. But a document that is read again may continue the version
    that ended where the copy of its namespace was repeated.
    """
    lowest = F.col("position")
    if anew := [(each.names, each.position) for each in scopes if each.reason == REPLACED]:
        frame = F.broadcast(rows.sparkSession.createDataFrame(anew, "names string, anew string"))
        is_read = (F.col("op") == "read") & (F.col("position") >= F.col("anew"))
        rows = rows.join(frame, _concerns(F.col("names"), keys) & is_read, "left")
        lowest = F.least("position", "anew")
    return rows.groupBy(*keys).agg(F.min(lowest).alias("_lowest"))


def _affected(
    rows: DataFrame, touched: DataFrame, new: Collection[Scope], shape: Shape
) -> DataFrame:
    """The rows that new events may change, and the rows that are needed to decide that.

    Documents that were read again are affected wherever they are: they decide which versions go on.
    """
    keys, lowest = [*shape.keys], F.col("_lowest")
    if new:
        first = F.lit(min(each.position for each in new))
        names = F.array(*(F.lit(each.names) for each in new))
        is_emptied = F.exists(names, lambda each: _concerns(each, keys))
        lowest = F.least(lowest, F.when(is_emptied, first))
    end = F.col(f"{END}.position")
    is_again = (F.col(OP) == "read") & (F.col(f"{START}.position") == end)
    rows = rows.where("key IS NOT NULL").join(touched, keys, "left" if new else "inner")
    return rows.where(lowest.isNotNull() & (end.isNull() | (end >= lowest) | is_again))


def _known(rows: DataFrame, shape: Shape) -> DataFrame:
    """Each row as its first event and, if something ended it, as a second event."""
    image, nothing = shape.struct(), F.lit(None).cast("string")
    position, end = F.col(f"{START}.position"), F.col(f"{END}.position")
    own = _event(position, KNOWN, F.col(OP), image, end)
    ended = _event(end, ENDED, F.lit("delete"), F.when(F.lit(False), image), nothing)
    both = F.array_compact(F.array(own, F.when(end != position, ended)))
    return rows.select(*shape.keys, F.explode(both).alias("event")).select(*shape.keys, "event.*")


def _event(position: Column, rank: int, op: Column, image: Column, end: Column) -> Column:
    values = {"position": position, "rank": F.lit(rank), "op": op, "image": image, "end": end}
    return F.struct(*(value.alias(name) for name, value in values.items()))


def _changes(rows: DataFrame, shape: Shape) -> DataFrame:
    """The rows that differ from those in the table."""
    is_new = (F.col("rank") != KNOWN) | ~F.col("needed")
    is_other = is_new | ~F.col("until").eqNullSafe(F.col("end"))
    if shape.track is not None:
        is_other |= F.col("op").isin(*IMAGES)
    start, end = sequence(F.col("position")), sequence(F.col("until"))
    needed = F.col("needed").alias(_NEEDED)
    columns = start.alias(START), end.alias(END), F.col("op").alias(OP), "image.*", needed
    return rows.where(is_other).select(*shape.keys, *columns)


def _remembered(scopes: DataFrame, shape: Shape) -> DataFrame:
    """The rows without a key."""
    place = sequence(F.col("position"))
    names = [F.col("names").alias(NAMESPACE)] if NAMESPACE in shape.keys else []
    columns = place.alias(START), place.alias(END), F.col("reason").alias(OP)
    return scopes.select(*names, *columns, F.lit(True).alias(_NEEDED))


def _merge(table: DeltaTable, changes: DataFrame, reach: Column, shape: Shape) -> DeltaMergeBuilder:
    names = (*shape.keys, f"{START}.position")
    same = (F.col(f"{_TABLE}.{name}") == F.col(f"change.{name}") for name in names)
    written: dict[str, str | Column] = {
        quoted(name): F.col(f"change.{quoted(name)}") for name in shape.schema().names
    }
    return (
        table.alias(_TABLE)
        .merge(changes.alias("change"), reduce(and_, same, reach))
        .whenMatchedDelete(f"NOT change.{_NEEDED}")
        .whenMatchedUpdate(set=written)
        .whenNotMatchedInsert(values=written)
    )
