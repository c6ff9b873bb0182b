"""The forms of a changelog: a row per event, the same with Debezium's fields, or a change feed."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from cdc.delta.sql import literal
from cdc.model import Namespace

EVENT, CDF, DEBEZIUM = "event", "cdf", "debezium"
FORMS = (EVENT, CDF, DEBEZIUM)
# The column of a changelog with the number of the batch that wrote the row. It is null in rows that
# a backfill added, and in those of releases without the column.
BATCH = "_batch"
_INSERT, _DELETE, _BEFORE, _AFTER = "insert", "delete", "update_preimage", "update_postimage"
# Of a second, in `_commit_version`: its seconds and its increment stay positive until 2106.
_INCREMENT_BITS = 31
_OPERATIONS = {"read": "r", "insert": "c", "update": "u", "replace": "u", "delete": "d"}
_TRUNCATED = "array<struct<field: string, newSize: int>>"
# Each field may be null: Delta checks NOT NULL in a struct, also where the struct itself is null.
_DEBEZIUM_TYPE = """struct<op: string, ts_ms: bigint,
    source: struct<connector: string, snapshot: string, ts_ms: bigint, ord: int, db: string,
        collection: string, lsid: string, txnNumber: bigint, wallTime: bigint>,
    transaction: struct<id: string>,
    updateDescription: struct<removedFields: array<string>, updatedFields: string,
        truncatedArrays: array<struct<field: string, size: int>>>>"""
_IMAGES = {
    "read": (_INSERT,),
    "insert": (_INSERT,),
    "update": (_BEFORE, _AFTER),
    "replace": (_BEFORE, _AFTER),
    "delete": (_DELETE,),
}


def in_form(events: DataFrame, form: str) -> DataFrame:
    """Convert rows of the source to the form of a changelog."""
    if form == EVENT:
        return events
    return cdf(events) if form == CDF else debezium(events)


def cdf(changelog: DataFrame) -> DataFrame:
    """Convert events to the form of a change data feed.

    The columns `_change_type`, `_commit_version`, `_commit_timestamp` and `document` replace
    `before` and `after`; all other columns are unchanged. `_commit_version` is the cluster time as
    a number that grows with it: `seconds * 2^31 + increment`. All changes of a transaction on one
    shard have the same.

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
        .withColumn("_commit_version", _commit_version())
        .withColumn("_commit_timestamp", F.col("cluster_time"))
        .withColumn("document", image)
        .drop("before", "after")
    )


def debezium(changelog: DataFrame) -> DataFrame:
    """Add the fields that an event of Debezium's MongoDB connector has, in the struct `debezium`.

    `select("before", "after", "debezium.*")` gives such events, but for the type of the images:
    with `document.format = json` they are text, as Debezium's. All other columns are unchanged.

    `op` is `r`, `c`, `u` or `d`, and null in rows that concern no document. `ts_ms` is the clock of
    the server; before MongoDB 6.0 it is the second of the cluster time.
    """
    seconds = F.unix_seconds("cluster_time")
    operations = [F.when(F.col("op") == ours, theirs) for ours, theirs in _OPERATIONS.items()]
    source = {
        "connector": F.lit("mongodb"),
        "snapshot": F.when(F.col("op") == "read", "true").otherwise("false"),
        "ts_ms": seconds * 1000,
        "ord": F.col("cluster_inc"),
        "db": F.col("db"),
        "collection": F.col("coll"),
        "lsid": F.col("txn.lsid"),
        "txnNumber": F.col("txn.number"),
        "wallTime": F.unix_millis("wall_time"),
    }
    transaction = F.struct(F.concat_ws(":", "txn.lsid", "txn.number").alias("id"))
    fields = {
        "op": F.coalesce(*operations),
        "ts_ms": F.coalesce(F.unix_millis("wall_time"), seconds * 1000),
        "source": _struct(source),
        "transaction": F.when(F.col("txn").isNotNull(), transaction),
        "updateDescription": F.when(F.col("update_description").isNotNull(), _update()),
    }
    return changelog.withColumn(DEBEZIUM, _struct(fields).cast(_DEBEZIUM_TYPE))


def _update() -> Column:
    update = F.col("update_description")
    removed = F.from_json(F.get_json_object(update, "$.removedFields"), "array<string>")
    truncated = F.from_json(F.get_json_object(update, "$.truncatedArrays"), _TRUNCATED)
    return _struct(
        {
            "removedFields": removed,
            "updatedFields": F.get_json_object(update, "$.updatedFields"),
            "truncatedArrays": truncated,
        }
    )


def _struct(fields: Mapping[str, Column]) -> Column:
    return F.struct(*(value.alias(name) for name, value in fields.items()))


def _commit_version() -> Column:
    seconds = F.unix_seconds("cluster_time")
    return F.shiftleft(seconds, _INCREMENT_BITS) + F.col("cluster_inc").cast("long")


def form_of(changelog: DataFrame) -> str:
    """Whether the images of a changelog are in `document` (CDF), or in `before` and `after`."""
    return CDF if "_change_type" in changelog.columns else EVENT


def place(image: str, form: str) -> tuple[str, tuple[str, ...]]:
    """Where a changelog of that form stores the image `before` or `after`.

    Returns the column, and the `_change_type`s of the rows that have the image there (empty: all).
    """
    if form != CDF:
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
