"""The two forms of a changelog: one row per event, or as a change data feed has it."""

from __future__ import annotations

from collections.abc import Collection

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from cdc.delta.sql import literal
from cdc.model import Namespace

EVENT, CDF = "event", "cdf"
# The column of a changelog with the number of the batch that wrote the row. It is null in rows that
# a backfill added, and in those of releases without the column.
BATCH = "_batch"
_INSERT, _DELETE, _BEFORE, _AFTER = "insert", "delete", "update_preimage", "update_postimage"
_IMAGES = {
    "read": (_INSERT,),
    "insert": (_INSERT,),
    "update": (_BEFORE, _AFTER),
    "replace": (_BEFORE, _AFTER),
    "delete": (_DELETE,),
}


def cdf(changelog: DataFrame) -> DataFrame:
    """Convert events to the form of a change data feed.

    The columns `_change_type`, `_commit_timestamp` and `document` replace `before` and `after`; all
    other columns are unchanged.

    `read` and `insert` become `insert`. `update` and `replace` become an `update_preimage`, if
    there is an image before, and an `update_postimage`, if there is an image after or none at all.
    `delete` has the image before as its document, which may be null; the key says which document is
    gone. Rows that concern no document (DDL, `gap`, `resync`) keep their `op` as type and have no
    document.
    """
    has_row = {
        _BEFORE: F.col("before").isNotNull(),
        _AFTER: F.col("after").isNotNull() | F.col("before").isNull(),
    }
    types = F.array(F.col("op"))
    for op, kinds in _IMAGES.items():
        found = [F.when(has_row[k], k) if k in has_row else F.lit(k) for k in kinds]
        types = F.when(F.col("op") == op, F.array_compact(F.array(*found))).otherwise(types)
    image = F.when(F.col("_change_type").isin(_BEFORE, _DELETE), F.col("before"))
    image = image.when(F.col("_change_type").isin(_INSERT, _AFTER), F.col("after"))
    return (
        changelog.withColumn("_change_type", F.explode(types))
        .withColumn("_commit_timestamp", F.col("cluster_time"))
        .withColumn("document", image)
        .drop("before", "after")
    )


def form_of(changelog: DataFrame) -> str:
    """The form of a changelog."""
    return CDF if "_change_type" in changelog.columns else EVENT


def place(image: str, form: str) -> tuple[str, tuple[str, ...]]:
    """Where a changelog of that form stores the image `before` or `after`.

    Returns the column, and the `_change_type`s of the rows that have the image there (empty: all).
    """
    if form == EVENT:
        return image, ()
    return "document", (_DELETE, _BEFORE) if image == "before" else (_INSERT, _AFTER)


def is_of(namespace: Namespace, within: Column | None = None) -> Column:
    """Whether a row, or the struct `within` of it, names the namespace in `db` and `coll`."""
    names = [F.col(name) if within is None else within[name] for name in ("db", "coll")]
    same = (names[0] == F.lit(namespace.db)) & (names[1] == F.lit(namespace.coll))
    return F.coalesce(same, F.lit(False))


def with_after(changelog: DataFrame) -> DataFrame:
    """A changelog of either form, with the image after each change in `after`.

    Null in a row without the image, also if the other row of the same change has it.
    """
    if form_of(changelog) == EVENT:
        return changelog
    return changelog.withColumn("after", F.expr(after_text(changelog.columns)))


def after_text(columns: Collection[str]) -> str:
    """SQL for the image after each change in a changelog of these columns, as `with_after`."""
    if "_change_type" not in columns:
        return "after"
    types = ", ".join(map(literal, (_INSERT, _AFTER)))
    return f"CASE WHEN _change_type IN ({types}) THEN document END"
