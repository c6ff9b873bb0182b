"""`infer`: columns from documents into a configuration, and a typed mirror made of them."""

from __future__ import annotations

import datetime
import json
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest
from bson import Decimal128, ObjectId
from click.testing import CliRunner, Result
from delta import DeltaTable
from pymongo.database import Database
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StringType

from cdc.cli import configure, replicate, verify
from cdc.delta.columns import TypedColumn
from cdc.demo import ReplicaSet
from cdc.model import Namespace
from cdc.pipeline import InferredColumns, add_columns

FILE = """# Mine.
[source]
uri = "mongodb://h"  # not shown
collections = ["shop.orders"]

[sink]
path = "lake"

# All invoices.
[[override]]
match = "shop\\\\..*"
mirror = "all/invoices/mirror"
columns = { a = "int" }
"""


def inferred(name: str, *columns: TypedColumn) -> InferredColumns:
    return InferredColumns(Namespace("shop", name), 1, columns, {}, {})


def test_columns_are_written_where_they_hold_and_all_else_stays() -> None:
    added = TypedColumn("b", LongType(), ("b",)), TypedColumn("class", StringType(), ("_class",))
    others = InferredColumns(Namespace("club", "members"), 1, added[:1], {}, {})
    once = add_columns(FILE, inferred("orders", *added))
    for line in FILE.splitlines():
        assert line in once.splitlines()
    assert tomllib.loads(once)["override"] == [
        {
            "match": "shop.orders",
            "mirror": "all/invoices/mirror",
            "columns": {"a": "int", "b": "bigint", "class": "string from _class"},
        },
        tomllib.loads(FILE)["override"][0],
    ]
    assert add_columns(once, inferred("orders")) == once
    twice = add_columns(once, inferred("odd (name)", *added))
    general = add_columns(FILE.replace("# All", '[table]\ncolumns = {c = "int"}\n# All'), others)
    assert tomllib.loads(general)["override"][-1] == {
        "match": "club.members",
        "columns": {"c": "int", "b": "bigint"},
    }
    matches = [override["match"] for override in tomllib.loads(twice)["override"]]
    assert matches == ["shop.orders", '[["shop", "odd (name)"]]', r"shop\..*"]


@pytest.mark.slow
def test_what_infer_writes_makes_a_typed_mirror_that_verify_finds_equal(
    spark: SparkSession, mongod: ReplicaSet, database: Database[dict[str, Any]], tmp_path: Path
) -> None:
    moment = datetime.datetime(2026, 1, 31, 12)
    database.orders.insert_many(
        {
            "_id": ObjectId(),
            "n": i,
            "total": Decimal128(f"{i}.50"),
            "at": moment,
            "share": i if i % 2 else i / 2,
            "tags": ["a"],
            "_class": "x",
            "gone": None,
            "mixed": "text" if i % 10 else {"is": "an object"},
        }
        for i in range(1, 41)
    )
    file = tmp_path / "pipeline.toml"
    file.write_text(
        f'[source]\nuri = "{mongod.uri}"\ncollections = ["{database.name}.orders"]\n'
        f'[sink]\npath = "{tmp_path / "lakehouse"}"\n[table]\nchangelog = ""\n'
    )

    def run(program: Any, *arguments: str) -> Result:
        command = program if isinstance(program, click.Command) else program.main
        return CliRunner().invoke(command, ["--config", str(file), *arguments])

    before = file.read_text()
    shown = run(configure.infer_columns, "--dry-run")
    assert shown.exit_code == 0, shown.output
    assert "mixed = string: 36 of 40 values fit (90.0%)" in shown.output
    assert file.read_text() == before
    assert run(configure.infer_columns).exit_code == 0
    after = file.read_text()
    assert tomllib.loads(after)["override"] == [
        {
            "match": f"{database.name}.orders",
            "columns": {
                "_id": "string",
                "class": "string from _class",
                "at": "timestamp",
                "mixed": "string",
                "n": "bigint",
                "share": "double",
                "tags": "variant",
                "total": "decimal(38,1)",
            },
        }
    ]
    assert run(configure.infer_columns).exit_code == 0
    assert file.read_text() == after

    assert run(replicate, "--mode", "snapshot").exit_code == 0
    verdict = tmp_path / "verdict.json"
    assert run(verify, "--json", str(verdict)).exit_code == 0, verdict.read_text()
    path = tmp_path / "lakehouse" / database.name / "orders" / "mirror"
    rows = spark.read.format("delta").load(str(path))
    rescued = rows.where("_rescued IS NOT NULL").selectExpr("to_json(_rescued) AS r").collect()
    kept = [json.loads(row.r) for row in rescued]
    assert len(kept) == 40
    assert [each for each in kept if each != {"gone": None}] == [
        {"gone": None, "mixed": {"is": "an object"}}
    ] * 4
    DeltaTable.forPath(spark, str(path)).update("n = 7", {"n": "8"})
    assert run(verify, "--json", str(verdict)).exit_code == 6
    assert json.loads(verdict.read_text())[0]["differing"] == 1
