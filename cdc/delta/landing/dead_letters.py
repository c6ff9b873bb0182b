"""Dead letters: images that could not be mapped, with the reason and the raw bytes.

Changelog and mirror contain the row all the same, with a placeholder for the image.
`cdc.delta.maintenance.redelivery` delivers a letter that was repaired.
"""

from __future__ import annotations

from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from cdc.delta.columns import BATCH, is_of
from cdc.delta.landing import placeholder
from cdc.delta.landing.batch_summary import Batch, BatchSummary
from cdc.delta.log import Commit
from cdc.delta.tables import Kind, Table, Tables, writes

IMAGES = ("before", "after")
# `image` is the column of the changelog that lacks the image. The user fills `repaired` with the
# bytes to deliver instead of `raw`; `delivered` is the time of the delivery. A letter is written
# before its batch is, so the number of the batch shows which tables contain its placeholder.
SCHEMA = (
    StructType()
    .add("reason", StringType())
    .add("op", StringType())
    .add("position", StringType())
    .add("cluster_time", TimestampType())
    .add("cluster_inc", IntegerType())
    .add("db", StringType())
    .add("coll", StringType())
    .add("key", StringType())
    .add("document_key", StringType())
    .add("image", StringType())
    .add("raw", BinaryType())
    .add("repaired", BinaryType())
    .add("delivered", TimestampType())
    .add(BATCH, LongType())
)


class DeadLetters(Kind):
    """The kind of tables that contain dead letters."""

    name = "dead_letters"

    def targets(self, summary: BatchSummary, tables: Tables) -> list[Table]:
        """The tables that get a letter of this batch: one, if all collections share it."""
        found = {table for namespace in summary.unmappable if (table := tables.of(namespace))}
        return sorted(found, key=lambda table: table.target)

    def write(self, spark: SparkSession, table: Table, tables: Tables, batch: Batch) -> None:
        """Append the batch's letters, creating the table if need be. Idempotent per batch."""
        kind, summary = batch.document.simpleString(), batch.summary
        new = tables.describe_new(table, SCHEMA, kind, ("cluster_time",))
        tables.require_contained(spark, table)
        writes.create(spark, table, tables, new)
        writes.complete(spark, table, tables, SCHEMA)
        commit = Commit(batch.number, summary.watermark, offset=summary.progress.offset)
        own = [name for name in summary.unmappable if tables.of(name) == table]
        rows = batch.read(spark).where(reduce(or_, map(is_of, own)))
        rows = rows.withColumn(BATCH, F.lit(batch.number))
        letters = reduce(DataFrame.unionByName, (_letters(rows, image, kind) for image in IMAGES))
        table.target.append(letters.coalesce(1), tables.transaction(commit))
        tables.committed(table, commit)


DEAD_LETTERS = DeadLetters()


def _letters(rows: DataFrame, image: str, kind: str) -> DataFrame:
    column = F.col(image)
    own: dict[str, Column] = {
        "reason": placeholder.reason(column, kind),
        "image": F.lit(image),
        "raw": placeholder.raw(column, kind),
    }
    columns = [
        own.get(field.name, F.col(field.name) if field.name in rows.columns else F.lit(None))
        .cast(field.dataType)
        .alias(field.name)
        for field in SCHEMA
    ]
    return rows.where(placeholder.is_placeholder(column, kind)).select(*columns)
