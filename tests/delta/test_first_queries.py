"""The queries of the documents, as they stand there, give what stands below them."""

from __future__ import annotations

import json
from pathlib import Path

import bson
import pytest
from bson import ObjectId
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from cdc.delta.columns import id_text
from cdc.model import merge_key
from tests.documents import code

_RESULT = "-- → "
_FOLDER = "/home/me/lakehouse"


@pytest.fixture(scope="module")
def shop(spark: SparkSession) -> None:
    """The views `orders` and `changes`, with the document that the page shows."""
    [shown] = code("VARIANT cookbook", "json")
    document = json.loads(shown)
    placed = document.pop("placed")["$date"]
    earlier = json.loads(json.dumps(document).replace("Bergen", "Oslo"))
    texts = {"before": json.dumps(earlier), "after": json.dumps(document)}
    rows = spark.createDataFrame([{"op": "update", **texts}]).selectExpr(
        "op", *[f"parse_json({name}) AS {name}" for name in texts]
    )
    rows.createOrReplaceTempView("changes")
    # No text is a date of VARIANT.
    fields = ", ".join(
        f"'{name}', {f'timestamp {placed!r}' if name == 'placed' else part(name, value)}"
        for name, value in {**document, "placed": placed}.items()
    )
    spark.sql(
        f"SELECT to_variant_object(named_struct({fields})) AS document"
    ).createOrReplaceTempView("orders")


def part(name: str, value: object) -> str:
    return f"parse_json('{json.dumps(value)}')"


@pytest.mark.parametrize("query", code("VARIANT cookbook", "sql"))
def test_each_query_of_the_cookbook_gives_what_the_page_says(
    spark: SparkSession, shop: None, query: str
) -> None:
    require_result(spark, query)


def test_each_join_by_reference_gives_what_the_page_says(spark: SparkSession) -> None:
    [shown] = code("Join by reference", "json")
    for name, documents in json.loads(shown).items():
        ids = [ObjectId(each["_id"]) if name == "customers" else each["_id"] for each in documents]
        keys = [merge_key(bson.encode({"_id": each})) for each in ids]
        rows = list(zip(keys, map(json.dumps, documents), strict=True))
        frame = spark.createDataFrame(rows, "key string, json string")
        image = {"_id": F.expr(id_text("key")), "document": F.parse_json("json")}
        frame.withColumns(image).createOrReplaceTempView(name)
    changes = "'read' AS op, key, document AS after"
    spark.sql(f"SELECT {changes} FROM orders").createOrReplaceTempView("changes")
    for query in code("Join by reference", "sql"):
        require_result(spark, query)


def require_result(spark: SparkSession, query: str) -> None:
    """The query gives the lines after its arrows."""
    expected = [line[len(_RESULT) :] for line in query.splitlines() if line.startswith(_RESULT)]
    found = spark.sql(query).collect()
    shown = [["NULL" if value is None else str(value) for value in row] for row in found]
    assert [", ".join(row) for row in shown] == expected


def test_the_first_queries_of_a_changelog_count_its_rows_and_list_those_of_a_document(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder = tmp_path / "shop" / "orders" / "changelog"
    rows = [("read", "7", "1"), ("update", "7", "2"), ("read", "8", "1")]
    frame = spark.createDataFrame(rows, ["op", "key", "position"]).withColumn(
        "cluster_time", F.current_timestamp()
    )
    images = {name: F.parse_json(F.lit('{"n": 1}')) for name in ("before", "after")}
    frame.withColumns(images).write.format("delta").save(str(folder))
    count, changes = code("The changelog", "sql")
    counted = spark.sql(count.replace(_FOLDER, str(tmp_path))).collect()
    assert [tuple(row) for row in counted] == [("read", 2), ("update", 1)]
    listed = spark.sql(changes.replace(_FOLDER, str(tmp_path))).collect()
    assert [row.op for row in listed] == ["read", "update"]
