"""The forms of a changelog, and the names that other tools have for its columns."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from cdc.delta.columns import cdf, debezium
from cdc.delta.tables import Layout
from cdc.model import Namespace
from tests.delta.batches import batch, change, content, sink
from tests.documents import code, section

ORDERS = Namespace("shop", "orders")
_UPDATE = {
    "updatedFields": {"n": 2},
    "removedFields": ["a", "b.c"],
    "truncatedArrays": [{"field": "list", "newSize": 3}],
}


def changes() -> list[dict[str, Any]]:
    """A row of each kind; the update is in a transaction and has a wall time."""
    update = change("update", "1", {"n": 2}, time=7)
    update |= {
        "before": json.dumps({"n": 1}),
        "wall_time": datetime(1970, 1, 1, 0, 0, 7, 250_000, UTC),
        "update_description": json.dumps(_UPDATE),
        "txn": {"lsid": "ab", "number": 3, "shard": None},
    }
    return [
        change("read", "1", {"n": 1}, time=5),
        change("insert", "2", {"n": 1}, time=6),
        update,
        change("replace", "2", {"n": 5}, time=8),
        change("delete", "2", time=9),
        change("create", None, time=10),
    ]


def test_each_row_has_the_fields_of_an_event_of_debezium(spark: SparkSession) -> None:
    rows = batch(spark, changes(), until=10).where("op <> 'watermark'")
    frame = debezium(rows)
    assert frame.drop("debezium").columns == rows.columns
    images = (F.to_json(name).alias(name) for name in ("before", "after"))
    found = frame.orderBy("position").select(*images, "debezium.*").collect()
    assert [row.op for row in found] == ["r", "c", "u", "u", "d", None]
    assert [row.source.snapshot for row in found] == ["true", *["false"] * 5]
    assert [row.ts_ms for row in found] == [5000, 6000, 7250, 8000, 9000, 10_000]
    update = found[2].asDict(recursive=True)
    assert json.loads(update["updateDescription"].pop("updatedFields")) == {"n": 2}
    assert update == {
        "before": '{"n":1}',
        "after": '{"n":2}',
        "op": "u",
        "ts_ms": 7250,
        "source": {
            "connector": "mongodb",
            "snapshot": "false",
            "ts_ms": 7000,
            "ord": 1,
            "db": "shop",
            "collection": "orders",
            "lsid": "ab",
            "txnNumber": 3,
            "wallTime": 7250,
        },
        "transaction": {"id": "ab:3"},
        "updateDescription": {
            "removedFields": ["a", "b.c"],
            "truncatedArrays": [{"field": "list", "size": 3}],
        },
    }
    assert found[3].transaction is None
    assert found[3].updateDescription is None


def test_a_commit_version_grows_with_the_cluster_time(spark: SparkSession) -> None:
    """Guards: 2^32 times a second of 2040 would be negative."""
    times = [(5, 1), (5, 2), (5, 2**31 - 1), (6, 0), (2_208_988_800, 1), (4_294_967_295, 7)]
    rows = [
        {**change("insert", "1", {}, time=time), "cluster_inc": increment}
        for time, increment in times
    ]
    frame = cdf(batch(spark, rows, until=10)).where("op = 'insert'")
    found = frame.orderBy("cluster_time", "cluster_inc").select("_commit_version").collect()
    assert [row[0] for row in found] == [time * 2**31 + increment for time, increment in times]


@pytest.mark.slow
def test_a_mirror_follows_a_changelog_with_the_fields_of_debezium(
    spark: SparkSession, tmp_path: Path
) -> None:
    sink(tmp_path, form="debezium").write_batch(batch(spark, changes(), until=10), 0)
    changelog = Layout.parse(str(tmp_path), {}).table("changelog", ORDERS)
    assert changelog is not None
    rows = changelog.target.read(spark)
    [query] = code("Names in other tools", "sql")
    rows.createOrReplaceTempView("orders_changelog")
    found = spark.sql(query).orderBy("source.ts_ms")
    assert [row.op for row in found.collect()] == ["r", "c", "u", "u", "d"]
    assert content(tmp_path / "shop/orders/mirror") == {"1": {"n": 2}}


@pytest.mark.slow
def test_a_table_without_commit_versions_gets_them_with_the_next_batch(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Its rows of an earlier release have none."""
    first, *others = changes()
    written = sink(tmp_path, form="cdf")
    written.write_batch(batch(spark, [first], until=5), 0)
    changelog = Layout.parse(str(tmp_path), {}).table("changelog", ORDERS)
    assert changelog is not None
    place = changelog.target.address
    spark.sql(
        f"ALTER TABLE delta.`{place}` SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')"
    )
    spark.sql(f"ALTER TABLE delta.`{place}` DROP COLUMN _commit_version")
    sink(tmp_path, form="cdf").write_batch(batch(spark, others, until=10), 1)
    rows = changelog.target.read(spark).orderBy("position", F.desc("_change_type"))
    assert [row._commit_version for row in rows.collect()] == [
        None,
        *(time * 2**31 + 1 for time in (6, 7, 7, 8, 9, 10)),
    ]


def test_the_documents_name_what_the_forms_have(spark: SparkSession) -> None:
    frame = batch(spark, changes(), until=10).where("op <> 'watermark'")
    text = section("Names in other tools")
    kinds = {row.op: row._change_type for row in cdf(frame).select("op", "_change_type").collect()}
    for row in debezium(frame).select("op", "debezium.op").toDF("op", "theirs").collect():
        lines = [each for each in text.splitlines() if f"`{row.op}`" in each[:24]]
        line = lines[0] if lines else ""
        assert (row.theirs is None) == (line == "")
        assert row.theirs is None or (f"`{row.theirs}`" in line and f"`{kinds[row.op]}`" in line)
    struct: Any = debezium(frame).schema["debezium"].dataType
    for field in struct["source"].dataType.names:
        assert f"`source.{field}`" in text or field in ("connector", "snapshot")
    for column in frame.columns:
        assert f"`{column}`" in text
