"""A mirror of typed columns: conflicting types over batches, columns that are added."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from cdc.delta.columns import of_table
from cdc.errors import BadOption
from tests.delta.batches import batch, change, commits, sink

COLUMNS = {"price": "bigint", "op": "string"}
FIXED, GROWING = ("shop", "fixed"), ("shop", "growing")
OVERRIDE = {"match": "shop.growing", "schema.evolution": True}


def write(
    spark: SparkSession,
    base: Path,
    number: int,
    *rows: Any,
    to: tuple[tuple[str, str], ...] = (FIXED, GROWING),
    override: dict[str, Any] = OVERRIDE,
    **options: Any,
) -> None:
    """A batch of a sink that has just been started, of the same changes of each collection."""
    options = {"columns": COLUMNS} | options
    pipeline = sink(base, with_changelog=False, overrides=[override], **options)
    both = [
        change(op, key, after, time=number, event=event, ns=ns)
        for event, (op, key, after) in enumerate(rows, 1)
        for ns in to
    ]
    pipeline.write_batch(batch(spark, both, until=number), number)


def mirror(spark: SparkSession, base: Path, coll: str) -> tuple[dict[str, str], dict[str, Any]]:
    """The typed columns with their types, and the rows by key, without what is null."""
    rows = spark.read.format("delta").load(str(base / "shop" / coll / "mirror"))
    columns = of_table(rows.schema)
    assert columns is not None
    names = [column.name for column in columns.columns]
    struct = F.to_json(F.struct(*names, "_rescued")).alias("row")
    found = rows.select("key", struct, F.to_json(columns.document()).alias("document")).collect()
    types = {column.name: column.type.simpleString() for column in columns.columns}
    return types, {row.key: json.loads(row.row) for row in found}


@pytest.mark.slow
def test_a_conflicting_type_is_rescued_and_new_fields_become_columns_where_they_may(
    spark: SparkSession, tmp_path: Path
) -> None:
    write(
        spark,
        tmp_path,
        1,
        ("insert", "a", {"price": 1}),
        ("insert", "b", {"price": "1"}),
        ("insert", "c", {"price": {"x": 1}}),
        ("insert", "d", {"op": "x", "since": None}),
    )
    expected = {
        "a": {"price": 1},
        "b": {"_rescued": {"price": "1"}},
        "c": {"_rescued": {"price": {"x": 1}}},
        "d": {"op": "x", "_rescued": {"since": None}},
    }
    for coll in ("fixed", "growing"):
        assert mirror(spark, tmp_path, coll) == ({"price": "bigint", "op": "string"}, expected)
    changes = (
        ("update", "a", {"price": "2", "since": 5, "Price": 1, "_x": 1, "a b": 1}),
        ("update", "b", {"price": 2.0, "tags": ["x"], "size": 1.5}),
        ("delete", "c", None),
        ("insert", "e", {"price": 3, "size": 2}),
    )
    # A run that was killed before its MERGE leaves the new column alone.
    grown = f"delta.`{tmp_path}/shop/growing/mirror`"
    spark.sql(f"ALTER TABLE {grown} ADD COLUMNS (size DOUBLE COMMENT 'evolved from size')")
    write(spark, tmp_path, 2, *changes)
    rest = {"price": "2", "Price": 1, "_x": 1, "a b": 1}
    fixed = {
        "a": {"_rescued": {**rest, "since": 5}},
        "b": {"price": 2, "_rescued": {"tags": ["x"], "size": 1.5}},
        "d": {"op": "x", "_rescued": {"since": None}},
        "e": {"price": 3, "_rescued": {"size": 2}},
    }
    growing = {
        "a": {"since": 5, "_rescued": rest},
        "b": {"price": 2, "size": 1.5, "tags": ["x"]},
        "d": {"op": "x", "_rescued": {"since": None}},
        "e": {"price": 3, "size": 2.0},
    }
    types = {"price": "bigint", "op": "string"}
    more = {"size": "double", "since": "bigint", "tags": "variant"}
    assert mirror(spark, tmp_path, "fixed") == (types, fixed)
    assert mirror(spark, tmp_path, "growing") == (types | more, growing)
    # Tasks do not know the columns of the other one.
    assert commits(tmp_path / "shop/fixed/mirror") == ["CREATE TABLE", *["STREAMING UPDATE"] * 2]
    assert commits(tmp_path / "shop/growing/mirror").count("MERGE") == 2

    gone, only = ("delete", "a", None), (FIXED,)
    for columns, named in (({"price": "double", "op": "string"}, "price"), ({}, "price, op")):
        with pytest.raises(BadOption, match=named):
            write(spark, tmp_path, 3, gone, to=only, columns=columns)
    with pytest.raises(BadOption, match="op"):
        write(spark, tmp_path, 3, gone, to=only, columns={"price": "bigint"})
    added = {**COLUMNS, "size": "double"}
    write(spark, tmp_path, 3, ("update", "e", {"size": 3}), to=only, columns=added)
    fixed["e"] = {"size": 3.0}
    assert mirror(spark, tmp_path, "fixed") == (types | {"size": "double"}, fixed)


@pytest.mark.slow
def test_a_shared_mirror_of_typed_columns_keeps_tombstones_and_names_apart(
    spark: SparkSession, tmp_path: Path
) -> None:
    override = {
        "match": r"shop\..+",
        "mirror": "shop/all/mirror",
        "delete": "soft",
        "schema.evolution": True,
    }
    options = {"override": override}
    changes: list[tuple[Any, ...]] = [
        ("insert", "a", {"price": 1}),
        ("insert", "b", {"price": "x"}),
    ]
    write(spark, tmp_path, 1, *changes, **options)
    write(spark, tmp_path, 2, ("update", "a", {"price": 2, "new": "n"}), to=(FIXED,), **options)
    write(
        spark, tmp_path, 3, ("delete", "a", None), ("delete", "b", None), to=(GROWING,), **options
    )
    rows = (
        spark.read.format("delta")
        .load(str(tmp_path / "shop/all/mirror"))
        .orderBy("_namespace", "key")
    )
    rescued = F.to_json("_rescued").alias("_rescued")
    found = rows.select("_namespace", "key", "price", "new", rescued, "_deleted").collect()
    assert [tuple(row) for row in found] == [
        ("shop.fixed", "a", 2, "n", None, False),
        ("shop.fixed", "b", None, None, '{"price":"x"}', False),
        ("shop.growing", "a", 1, None, None, True),
        ("shop.growing", "b", None, None, '{"price":"x"}', True),
    ]
