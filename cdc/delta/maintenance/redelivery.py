"""Redelivery of dead letters: images that were repaired, or that can be mapped now.

An image replaces its placeholder, in the row of the changelog and, if no later change concerns the
document, in the mirror. Both keep the position of the row, so a job that replicates meanwhile and a
second delivery change nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial, reduce
from operator import and_

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import VariantVal

from cdc.delta.columns import BATCH, RESCUED, is_of, of_table, place
from cdc.delta.followers import renew_view
from cdc.delta.landing import IMAGES, is_placeholder
from cdc.delta.log import NO_BATCH, Target, conflict, newest_commit
from cdc.delta.sql import quoted
from cdc.delta.tables import Layout, Table
from cdc.model import Encode, Namespace
from cdc.model.encoding import Column as Image
from cdc.model.encoding import encoder

# What distinguishes the rows of a changelog.
_ROW = ("position", "key", "db", "coll")
_ALL_BATCHES = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Delivery:
    """The number of delivered letters.

    `left`: those that still cannot be mapped, or wait until all tables contain their batch.
    """

    delivered: int
    left: int


def deliver(
    spark: SparkSession,
    letters: Target,
    layout: Layout,
    document_format: str,
    json_mode: str,
    complete: int,
) -> Delivery:
    """Deliver all letters of a table that were not delivered yet and can be mapped.

    `repaired` counts instead of `raw` where it is set. May be repeated after any failure.

    A letter is written before its batch. As long as changelog or mirror do not contain the batch,
    the letter stays pending, also if one of them got its image: the other one may be about to get
    the placeholder. `complete` is the last batch that is in all its changelogs.
    """
    kind = "variant" if document_format == "variant" else "string"
    mapped = _mapping(partial(encoder, document_format, json_mode), kind)
    waiting = letters.read(spark).where(F.col("delivered").isNull())
    if BATCH not in waiting.columns:  # an earlier release wrote all letters
        waiting = waiting.withColumn(BATCH, F.lit(None).cast("long"))
    waiting = waiting.withColumn("document", mapped(F.coalesce("repaired", "raw"))).persist()
    try:
        ready = waiting.where(~is_placeholder(F.col("document"), kind))
        for row in ready.select("db", "coll").distinct().collect():
            namespace = Namespace(row.db, row.coll)
            # Before the repair: a follower may have read the changelog then, and commit later.
            is_late = F.coalesce(BATCH, F.lit(0)) > _last_contained(
                spark, layout, namespace, complete
            )
            _put(spark, ready, layout, namespace, kind)
            renew_view(spark, layout, namespace)
            ready = ready.where(~(is_of(namespace) & is_late))
        delivered, count = ready.count(), waiting.count()
        if delivered:
            conflict.repeated(partial(_mark, spark, letters, ready), letters)
        return Delivery(delivered, count - delivered)
    finally:
        waiting.unpersist()


def _mapping(build: Callable[[], Encode], kind: str) -> Callable[..., Column]:
    # A lambda: type hints would make Spark ask whether this is a function of pandas.
    return F.udf(lambda data: _value(build()(bytes(data))), kind)


def _value(image: Image) -> VariantVal | str:
    return VariantVal(*image) if isinstance(image, tuple) else str(image)


def _put(
    spark: SparkSession, ready: DataFrame, layout: Layout, namespace: Namespace, kind: str
) -> None:
    own = ready.where(is_of(namespace))
    own = own.withColumn("_namespace", F.lit(str(namespace)))
    if changelog := layout.table("changelog", namespace):
        for image in IMAGES:
            rows = own.where(F.col("image") == F.lit(image))
            column, types = place(image, changelog.options.changelog_form)
            if types:
                rows = rows.withColumn("_type", F.explode(F.array(*map(F.lit, types))))
            same = {name: name for name in _ROW}
            same |= {"_change_type": "_type"} if types else {}
            write = partial(_replace, spark, changelog.target, rows, same, column, kind)
            conflict.repeated(write, changelog.target)
    if mirror := layout.table("mirror", namespace):
        rows = own.where(F.col("image") == F.lit("after"))
        same = {"_position": "position", "key": "key"}
        same |= {"_namespace": "_namespace"} if mirror.is_shared else {}
        conflict.repeated(partial(_into_mirror, spark, mirror, rows, same, kind), mirror.target)


def _last_contained(
    spark: SparkSession, layout: Layout, namespace: Namespace, complete: int
) -> int:
    """The last batch that changelog and mirror of a collection contain both.

    A changelog contains what it gets of all batches up to `complete`, even if it does not exist.
    """
    found = {"changelog": complete, "mirror": NO_BATCH}
    for kind in list(found):
        table = layout.table(kind, namespace)
        if table is None:
            del found[kind]
        elif table.target.exists(spark) and (newest := newest_commit(spark, table.target)):
            found[kind] = max(found[kind], newest.commit.batch)
    return min(found.values(), default=_ALL_BATCHES)


def _replace(
    spark: SparkSession,
    target: Target,
    letters: DataFrame,
    same: Mapping[str, str],
    column: str,
    kind: str,
) -> None:
    """Replace placeholders where a row of the table and the letter agree in columns of both."""
    if not target.exists(spark):
        return
    agree = [F.col(f"row.{own}") == F.col(f"letter.{theirs}") for own, theirs in same.items()]
    merge = target.delta(spark).alias("row").merge(letters.alias("letter"), reduce(and_, agree))
    still = is_placeholder(F.col(f"row.{column}"), kind)
    merge.whenMatchedUpdate(still, {column: F.col("letter.document")}).execute()


def _into_mirror(
    spark: SparkSession, table: Table, letters: DataFrame, same: Mapping[str, str], kind: str
) -> None:
    if not table.target.exists(spark):
        return
    typed = of_table(table.target.read(spark).schema)
    if typed is None:
        _replace(spark, table.target, letters, same, "document", kind)
        return
    own = [F.col(name).alias(f"_letter_{name}") for name in same.values()]
    images = typed.select(letters.select(*own, "document"), "document").alias("letter")
    agree = [F.col(f"row.{a}") == F.col(f"letter._letter_{b}") for a, b in same.items()]
    merge = table.target.delta(spark).alias("row").merge(images, reduce(and_, agree))
    # No column takes anything of a placeholder: it is in `_rescued` as it was.
    still = is_placeholder(F.col(f"row.{RESCUED}"), kind)
    names = [quoted(field.name) for field in typed.fields()]
    merge.whenMatchedUpdate(still, {name: F.col(f"letter.{name}") for name in names}).execute()


def _mark(spark: SparkSession, letters: Target, ready: DataFrame) -> None:
    names = (*_ROW, "image")
    agree = [F.col(f"row.{name}") == F.col(f"letter.{name}") for name in names]
    merge = letters.delta(spark).alias("row").merge(ready.alias("letter"), reduce(and_, agree))
    merge.whenMatchedUpdate(set={"delivered": F.current_timestamp()}).execute()
