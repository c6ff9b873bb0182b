"""Preparation of a machine: jars, compiled encoders and Java's classes for later starts."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from typing import Any

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader

from cdc.kernel import loading
from cdc.pipeline.spark import start_cache
from cdc.pipeline.spark.spark_session import LOCAL, delta_packages, end, session

_COLUMNS = "id bigint, document string"
_BATCHES = 3
_NAME = "mongodb-cdc prepare"


def prepare(report: Callable[[str], object]) -> None:
    """Prepare this machine for later starts of local programs. May be repeated.

    `report` gets a line before each step. No session may be active. Raises CdcError if Spark does
    not start, and OSError if no cache folder is writable.
    """
    report("compiling the encoders")
    loading.columns()
    loading.typed()
    loading.oplog()
    report("downloading Delta's jars, unless they are there")
    end(session(_NAME))
    report("storing the classes that Spark loads")
    with start_cache.archiving(delta_packages()) as archiving:
        if archiving is None:
            report("they are not stored: the list of Delta's jars could not be kept")
            return
        options = LOCAL[start_cache.JAVA_OPTIONS]
        spark = session(_NAME, extra={start_cache.JAVA_OPTIONS: f"{options} {archiving}"})
        _replicate(spark)
        end(spark)


class _Rows(SimpleDataSourceStreamReader):
    """A few rows in each of some batches."""

    def initialOffset(self) -> dict[str, Any]:
        return {"batch": 0}

    def read(self, start: dict[str, Any]) -> tuple[Iterator[tuple[Any, ...]], dict[str, Any]]:
        batch = start["batch"]
        if batch == _BATCHES:
            return iter([]), start
        return self.readBetweenOffsets(start, {}), {"batch": batch + 1}

    def readBetweenOffsets(
        self, start: dict[str, Any], end: dict[str, Any]
    ) -> Iterator[tuple[Any, ...]]:
        return iter([(number, f'{{"batch": {start["batch"]}}}') for number in range(100)])


class _Source(DataSource):
    """The stream of `_Rows`."""

    @classmethod
    def name(cls) -> str:
        return "mongodb-cdc-prepare"

    def schema(self) -> str:
        return _COLUMNS

    def simpleStreamReader(self, schema: object) -> SimpleDataSourceStreamReader:
        return _Rows()


def _replicate(spark: SparkSession) -> None:
    """Load the classes that a replication loads: a stream, an append, a MERGE and a read."""
    spark.dataSource.register(_Source)
    with tempfile.TemporaryDirectory(prefix="mongodb-cdc-prepare-") as folder:
        path = f"{folder}/table"
        rows = spark.readStream.format(_Source.name()).load()
        writer = rows.writeStream.foreachBatch(lambda batch, number: _write(batch, path, number))
        writer = writer.option("checkpointLocation", f"{folder}/checkpoint")
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        spark.read.format("delta").load(path).orderBy("id").limit(5).collect()


def _write(batch: DataFrame, path: str, number: int) -> None:
    spark = batch.sparkSession
    # Without a limit, which would end the task early: its worker would print a broken pipe.
    rows = spark.createDataFrame(batch.collect(), _COLUMNS)
    rows = rows.selectExpr("id", "parse_json(document) AS document", f"{number} AS position")
    if not DeltaTable.isDeltaTable(spark, path):
        builder = DeltaTable.create(spark).location(path).addColumns(rows.schema)
        builder = builder.property("delta.enableDeletionVectors", "true")
        builder.clusterBy("id").execute()
        rows.write.format("delta").mode("append").option("userMetadata", "{}").save(path)
        return
    last = rows.groupBy("id").agg({"position": "max"}).join(rows, "id").drop("max(position)")
    merge = (
        DeltaTable.forPath(spark, path)
        .alias("mirror")
        .merge(last.alias("change"), "mirror.id = change.id")
    )
    merge = merge.whenMatchedDelete("change.id = 1").whenMatchedUpdateAll("change.id > 10")
    merge.whenNotMatchedInsertAll().execute()
