"""The rule by which the events of a key become versions with intervals of validity.

A version begins at the position of its event and ends at that of the next one: [start, end). So the
versions depend on the events alone, not on when or how often the events became known. Therefore an
event that begins no version is stored too, as an empty interval [p, p):

* a delete with no version before it: an earlier event may still become known;
* an image that continues a version (it "folds"): a `read` of the same document or, with tracked
  columns, any image in which those are the same. With tracked columns the version shows the last
  image, and the row of the folded image contains the image that was shown before it.

A delete after a version needs no row: it is the end of the version."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_

from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructType

from cdc.model import REPLACED

IMAGES = ("read", "insert", "update", "replace")
# The order at one position. What is read again may be as of the same time, and belongs after it;
# what is known is not learned again; and that something ended a version says nothing new where
# anything else is known of that place.
EMPTIED, KNOWN, NEW, ENDED = range(4)


@dataclass(frozen=True, slots=True)
class Same:
    """Which columns of an image decide whether a version goes on with it.

    `tracked`: a version may go on with any image, not only with one that was read again.
    """

    columns: tuple[str, ...]
    tracked: bool

    def holds(self, one: Column, other: Column, image: StructType) -> Column:
        """Whether two images are the same, by the values and types of those columns."""
        pairs = (
            _comparable(one[name], image[name].dataType).eqNullSafe(
                _comparable(other[name], image[name].dataType)
            )
            for name in self.columns
        )
        return reduce(and_, pairs)


def versions(events: DataFrame, keys: Sequence[str], same: Same) -> DataFrame:
    """Return all rows that the events of each key make: versions, and stored events.

    `events` has the columns `keys`; `position` and `rank`, its place; `op`; `image`, a struct; and
    `end`, for a KNOWN event the present end of its row (null: none). It contains all events of each
    key from some position on, and the version that was valid there. Events may be repeated.

    The result has `keys`, `op`, `rank` and `end` unchanged; `position`, the begin of the row;
    `until`, its end; `image`; and `needed`, which is false for a KNOWN row that must be deleted.
    """
    image = events.schema["image"].dataType
    assert isinstance(image, StructType), "an image is a struct of a table's columns"
    walk = _Walk(Window.partitionBy(*keys), same)
    events = walk.without_repetitions(events)
    events = walk.with_own_images(events)
    events = walk.with_folds(events, image)
    return walk.rows(walk.with_ends(events))


class _Walk:
    """Passes over the events of each key, forwards and backwards. `op` is never null."""

    def __init__(self, key: WindowSpec, same: Same) -> None:
        self._same = same
        self._forth = key.orderBy("position", "rank")
        self._back = key.orderBy(F.desc("position"), F.desc("rank"))
        # Frames that only grow: with one that shrinks, Spark would go through it for each row.
        self._before = self._forth.rowsBetween(Window.unboundedPreceding, -1)
        self._after = self._back.rowsBetween(Window.unboundedPreceding, -1)

    def without_repetitions(self, events: DataFrame) -> DataFrame:
        last = F.lag(F.struct("position", "rank")).over(self._forth)
        events = events.withColumn("_last", last)
        is_behind = (F.col("_last.rank") == EMPTIED) & (F.col("rank") != ENDED)
        again = F.col("_last.position").eqNullSafe(F.col("position")) & ~is_behind
        return events.where(~F.coalesce(again, F.lit(False))).drop("_last")

    def with_own_images(self, events: DataFrame) -> DataFrame:
        """The image of each event itself; known rows hold what they show. Those that fold into a
        version that is not there have no image."""
        is_known = (F.col("rank") == KNOWN) & _is_image()
        folds = F.col("end").eqNullSafe(F.col("position"))
        held = F.last(F.when(is_known & ~folds, F.col("image")), ignorenulls=True)
        up_to = self._forth.rowsBetween(Window.unboundedPreceding, Window.currentRow)
        own = held.over(up_to)
        if self._same.tracked:
            known = F.when(is_known, F.struct(folds.alias("folds"), "image"))
            following = F.last(known, ignorenulls=True).over(self._after)
            own = F.when(following["folds"], following["image"]).otherwise(own)
        own = F.when(is_known, own).otherwise(F.col("image"))
        events = events.withColumn("_own", own).where(~is_known | F.col("_own").isNotNull())
        return events.drop("image").withColumnRenamed("_own", "image")

    def with_folds(self, events: DataFrame, image: StructType) -> DataFrame:
        """`before`, the image before this one; `continues`, whether a version stands directly
        before it; and `folds`. What is read again goes on with the version before that."""
        event = F.when(F.col("op") != REPLACED, F.struct(_is_image().alias("is_image"), "image"))
        events = events.select(
            "*",
            F.last(event, ignorenulls=True).over(self._before).alias("_previous"),
            F.coalesce(F.lag(_is_image()).over(self._forth), F.lit(False)).alias("continues"),
        )
        before = F.col("_previous.image")
        may_fold = F.col("op") == "read"
        if self._same.tracked:
            may_fold |= F.col("continues")
        may_fold &= _is_image() & F.col("_previous.is_image")
        folds = F.when(may_fold, self._same.holds(F.col("image"), before, image))
        folds = F.coalesce(folds, F.lit(False))
        return events.select("*", before.alias("before"), folds.alias("folds")).drop("_previous")

    def with_ends(self, events: DataFrame) -> DataFrame:
        """`until`, where a version ends that begins here, and `shown`, the last image in it."""
        folds_next = F.last(F.when(F.col("op") != REPLACED, F.col("folds")), ignorenulls=True)
        is_void = (F.col("op") == REPLACED) & folds_next.over(self._after)
        ends = ~F.col("folds") & ~F.coalesce(is_void, F.lit(False))
        events = events.withColumn("_ends", ends)
        until = F.last(F.when(F.col("_ends"), F.col("position")), ignorenulls=True)
        events = events.withColumn("until", until.over(self._after))
        if not self._same.tracked:
            return events.withColumn("shown", F.col("image")).drop("_ends")
        is_last = F.coalesce(F.lag("_ends").over(self._back), F.lit(True))
        events = events.withColumn("_is_last", is_last)
        shown = F.last(F.when(F.col("_is_last"), F.col("image")), ignorenulls=True)
        back_to = self._back.rowsBetween(Window.unboundedPreceding, Window.currentRow)
        return events.withColumn("shown", shown.over(back_to)).drop("_ends", "_is_last")

    def rows(self, events: DataFrame) -> DataFrame:
        is_version = _is_image() & ~F.col("folds")
        is_needed = _is_image() | ((F.col("op") == "delete") & ~F.col("continues"))
        image = F.when(is_version, F.col("shown"))
        if self._same.tracked:
            image = image.when(F.col("folds"), F.col("before"))
        until = F.when(is_version, F.col("until")).otherwise(F.col("position"))
        rows = events.withColumns({"until": until, "image": image, "needed": is_needed})
        rows = rows.where(F.col("needed") | (F.col("rank") == KNOWN))
        return rows.drop("before", "continues", "folds", "shown")


def _is_image() -> Column:
    return F.col("op").isin(*IMAGES)


def _comparable(value: Column, kind: DataType) -> Column:
    """A value that Spark can compare, in place of a VARIANT, alone or inside another type."""
    text = kind.simpleString()
    if text == "variant":
        # In the text alone a decimal would be a double, and binary a string.
        return F.struct(F.to_json(value), F.schema_of_variant(value))
    return F.to_json(value) if "variant" in text or text.startswith("map") else value
