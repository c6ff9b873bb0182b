"""The changelog: every row of every batch, appended once, in one Delta table per namespace."""

from __future__ import annotations

import math

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from cdc.delta.commit import Commit
from cdc.delta.facts import Facts
from cdc.delta.tables import Tables
from cdc.model.change import WATERMARK
from cdc.model.selection import Namespace

# Small enough to write in parallel, large enough that a quiet collection does not get one file per
# core and batch.
_ROWS_PER_FILE = 50_000


def targets(facts: Facts, tables: Tables) -> list[Namespace]:
    """The namespaces whose changelog gets rows of this batch."""
    shared = {name for name in tables.known() if facts.shares_with(name)}
    return sorted(shared | set(facts.counts))


def write(
    batch: DataFrame, namespace: Namespace, facts: Facts, batch_id: int, tables: Tables
) -> None:
    """Append the namespace's rows, creating its table if need be. Idempotent per batch.

    Besides its own rows a changelog gets what concerns it: a rename onto its name, and rows without
    a collection (dropDatabase) or without a database (a gap), so that each changelog alone tells
    how its collection came to be as it is.
    """
    tables.create(
        batch.sparkSession,
        namespace,
        # Nullable: what a later version of the source leaves out must not break the table.
        StructType([StructField(f.name, f.dataType) for f in batch.schema]),
        batch.schema["after"].dataType.simpleString(),
        {},
    )
    commit = Commit(batch_id, facts.watermark)
    files = math.ceil(sum(facts.counts.get(namespace, {}).values()) / _ROWS_PER_FILE)
    (
        batch.where(_concerns(namespace, facts))
        .coalesce(max(1, files))
        .write.format("delta")
        .mode("append")
        .option("txnAppId", tables.transaction_id)
        .option("txnVersion", batch_id)
        .option("userMetadata", commit.text())
        .save(tables.path(namespace))
    )
    tables.committed(namespace, commit)


def _concerns(namespace: Namespace, facts: Facts) -> Column:
    db, coll = F.lit(namespace.db), F.lit(namespace.coll)
    concerns = (F.col("db") == db) & (F.col("coll") == coll)
    if facts.shares_with(namespace):
        to = F.from_json("description", "to struct<db string, coll string>")["to"]
        # Written so that no term is null where another one is true.
        concerns = (
            F.coalesce(concerns, F.lit(False))
            | (F.col("coll").isNull() & F.coalesce(F.col("db") == db, F.lit(True)))
            | F.coalesce(
                (F.col("op") == "rename") & (to["db"] == db) & (to["coll"] == coll), F.lit(False)
            )
        )
    return concerns & (F.col("op") != WATERMARK)
