"""The data source by its names in SQL, with tables, schemas and errors as a user sees them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from pymongo.database import Database
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from cdc.demo import ReplicaSet
from tests.documents import code

Document = dict[str, Any]


@pytest.fixture
def options(mongod: ReplicaSet, database: Database[Document], tmp_path: Path) -> dict[str, str]:
    """A collection of two documents, by a connection string in a file."""
    database.orders.insert_many([{"_id": 1}, {"_id": 2}])
    (tmp_path / "uri").write_text(mongod.uri)
    return {"uri": f"file:{tmp_path}/uri", "collections": f"{database.name}.orders"}


def load(spark: SparkSession, options: dict[str, str], schema: str | None = None) -> DataFrame:
    reader = spark.read.format("mongodb_cdc").options(**options)
    return (reader.schema(schema) if schema else reader).load()


def refusal(spark: SparkSession, options: dict[str, str], schema: str | None = None) -> str:
    """What Spark reports, from our sentence on; its own words before it are one line."""
    with pytest.raises(PySparkException) as caught:
        load(spark, options, schema).collect()
    first, *others = str(caught.value).splitlines()
    assert not [line for line in others if "File " in line], caught.value
    prefix, _, sentence = first.partition("cdc.errors.BadOption: ")
    assert "Traceback" not in prefix
    return sentence


def test_the_sql_of_the_documents_reads_a_table_and_a_view(
    spark: SparkSession, options: dict[str, str], tmp_path: Path
) -> None:
    session = spark.newSession()
    [text] = code("Use the source in SQL", "sql")
    text = text.replace("env:MONGODB_URI", options["uri"])
    statements = text.replace("shop.orders", options["collections"]).split(";")
    found = [session.sql(each) for each in statements if each.strip()]
    try:
        assert sorted(row["key"] for row in found[-1].collect()) == ["1", "2"]
        assert session.table("orders_now").count() == 2
        query = (
            session.readStream.table("orders_source")
            .writeStream.format("memory")
            .queryName("orders_stream")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(60)
        assert session.table("orders_stream").count() == 2
    finally:
        session.sql("DROP TABLE orders_source")


def test_a_table_whose_connection_string_the_catalog_would_store_is_refused(
    spark: SparkSession, options: dict[str, str]
) -> None:
    for name in ("uri", "URI"):
        with pytest.raises(PySparkException, match="the catalog would store it") as caught:
            spark.sql(
                f"CREATE TABLE secret USING mongodb_cdc OPTIONS ({name} 'mongodb://u:s3cret@h',"
                f" collections '{options['collections']}')"
            )
        assert "s3cret" not in str(caught.value)


def test_the_options_of_a_table_are_checked_when_it_is_created(spark: SparkSession) -> None:
    with pytest.raises(PySparkException, match="Did you mean 'collections'"):
        spark.sql("CREATE TABLE wrong USING mongodb_cdc OPTIONS (uri 'env:X', collection 'a.b')")


def test_a_table_with_a_list_of_columns_says_that_it_has_lost_its_options(
    spark: SparkSession, options: dict[str, str]
) -> None:
    session = spark.newSession()
    session.sql("SET spark.sql.catalog.spark_catalog = builtin")
    listed = ", ".join(f"{name} '{value}'" for name, value in options.items())
    session.sql(f"CREATE TABLE with_columns (key string) USING mongodb_cdc OPTIONS ({listed})")
    try:
        with pytest.raises(PySparkException, match="none of its options: create it without"):
            session.table("with_columns").collect()
    finally:
        session.sql("DROP TABLE with_columns")


def test_a_schema_chooses_columns_and_their_order(
    spark: SparkSession, options: dict[str, str]
) -> None:
    frame = load(spark, options, "key string, txn struct<lsid: string, number: bigint,"
                 " shard: string>, op string not null, exact boolean")  # fmt: skip
    assert frame.columns == ["key", "txn", "op", "exact"]
    assert sorted(map(tuple, frame.collect())) == [
        ("1", None, "read", True),
        ("2", None, "read", True),
    ]


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ("op string, foo int", "Column 'foo' of the schema is not a column of the source."),
        ("op int", "Column 'op' of the schema is int, but the source has string."),
        ("key string not null", "Column 'key' of the schema is NOT NULL, but it may be null."),
        ("after string", "Column 'after' of the schema is string, but the source has variant."),
    ],
)
def test_a_schema_that_the_source_cannot_give_is_refused_in_one_sentence(
    spark: SparkSession, options: dict[str, str], schema: str, says: str
) -> None:
    assert refusal(spark, options, schema).startswith(f"{says} Remedy: ")


def test_a_missing_option_is_the_first_thing_that_is_read(
    spark: SparkSession, options: dict[str, str]
) -> None:
    assert refusal(spark, {}).startswith("Option 'uri' is not set.")
    without = {"uri": options["uri"]}
    assert refusal(spark, without).startswith("Option 'collections' is not set.")
    with pytest.raises(PySparkException) as caught:
        spark.readStream.format("mongodb-cdc").options(**without).load()
    assert re.search(r"instance: \S+: Option 'collections' is not set", str(caught.value))


def test_what_is_never_null_is_declared_so_and_each_column_has_a_comment(
    spark: SparkSession, options: dict[str, str]
) -> None:
    batch = load(spark, options).schema
    stream = spark.readStream.format("mongodb-cdc").options(**options).load().schema
    assert json.loads(batch.json()) == json.loads(stream.json())
    never = [field.name for field in batch if not field.nullable]
    assert never == ["op", "position", "cluster_time", "cluster_inc", "exact"]
    assert all(field.metadata["comment"] for field in batch)


def test_who_writes_to_the_source_gets_one_sentence_that_it_only_reads(
    spark: SparkSession, options: dict[str, str], tmp_path: Path
) -> None:
    rows = load(spark, options)
    stream = spark.readStream.format("rate").load().writeStream.format("mongodb_cdc")

    def start() -> None:
        stream.option("checkpointLocation", str(tmp_path)).start().awaitTermination(60)

    for write in (rows.write.format("mongodb-cdc").mode("append").options(**options).save, start):
        with pytest.raises(PySparkException) as caught:
            write()
        shown = str(caught.value).partition("JVM stacktrace")[0]
        assert "reads MongoDB and does not write to it" in shown
        assert "Traceback" not in shown
