"""The commands as a user calls them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from bson import Decimal128
from click.testing import CliRunner, Result
from delta import DeltaTable
from pymongo.database import Database
from pyspark.sql import SparkSession

from cdc.checkpoint.checkpoint import complete_until
from cdc.cli import (
    backfill,
    configure,
    maintain,
    plan,
    repairs,
    replicate,
    restore,
    status,
    verify,
)
from cdc.cli.commands import PROGRAMS, main
from cdc.delta.tables.routing import folder, former_folder
from cdc.demo import ReplicaSet
from cdc.model import Namespace, timestamp
from cdc.pipeline import config as configuration
from tests.pipeline_file import write_pipeline

Run = Callable[..., Result]


@pytest.fixture
def run(mongod: ReplicaSet, database: Database[dict[str, Any]], tmp_path: Path) -> Run:
    """Calls a program in this process, on a configuration of the test's own."""
    file = write_pipeline(tmp_path, mongod, database)

    def call(program: Any, *arguments: str) -> Result:
        command = program if isinstance(program, click.Command) else program.main
        return CliRunner().invoke(command, ["--config", str(file), *arguments])

    return call


def _mirror(tmp_path: Path, namespace: Namespace) -> str:
    required = ["uri=mongodb://h", "collections=a.b", f"sink.path={tmp_path / 'lakehouse'}"]
    config = configuration.load(None, required)
    table = config.table("mirror", namespace)
    assert table is not None
    return table.target.address


@pytest.mark.slow
def test_verify_finds_what_is_missing_extra_and_differing_and_nothing_else(
    spark: SparkSession,
    database: Database[dict[str, Any]],
    run: Run,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Guards besides: a run that has ended by itself and says that it was stopped."""
    database.orders.insert_many({"_id": i, "n": i} for i in range(50))
    done = run(replicate, "--mode", "snapshot")
    assert done.exit_code == 0, done.output
    begin = f"captures {database.name}.orders (50 documents, copying)"
    said = [line for line in caplog.messages if line.startswith(("captures", "complete"))]
    assert [line.rpartition(",")[0] for line in said[1:]] == ["complete: 50 rows in 1 batches"]
    assert said[:1] == [begin]
    report = tmp_path / "verdict.json"
    assert run(verify, "--json", str(report)).exit_code == 0
    assert json.loads(report.read_text())[0]["equal"] is True

    path = _mirror(tmp_path, Namespace(database.name, "orders"))
    table = DeltaTable.forPath(spark, path)
    table.delete("key = '7'")
    other = """if(key = '8', parse_json('{"_id": 8, "n": 8.0}'), document)"""
    table.update("key IN ('8', '9')", {"document": other, "key": "if(key = '9', 'x', key)"})
    found = run(verify, "--json", str(report))
    assert found.exit_code == 6
    verdict = json.loads(report.read_text())[0]
    assert {kind: sorted(keys) for kind, keys in verdict["keys"].items()} == {
        "missing": ["7", "9"],
        "differing": ["8"],
        "extra": ["x"],
    }


@pytest.mark.slow
def test_verify_finds_what_no_change_reported_and_a_backfill_brings_it(
    spark: SparkSession, database: Database[dict[str, Any]], run: Run, tmp_path: Path
) -> None:
    """What there was before a run that copies nothing, and an administrator's atomic `applyOps`.

    The next run applies the last commit of a mirror again, if a power loss took it.
    """
    orders = Namespace(database.name, "orders")
    database.orders.insert_one({"_id": "before"})
    assert run(replicate, "--mode", "latest", "--available-now").exit_code == 0
    unseen = {"op": "i", "ns": str(orders), "o": {"_id": "applied"}}
    database.client.admin.command({"applyOps": [unseen]})
    for name in ("kept", "lost"):
        database.orders.insert_one({"_id": name})
        assert run(replicate, "--mode", "latest", "--available-now").exit_code == 0
    commits = sorted(Path(_mirror(tmp_path, orders)).glob("_delta_log/*.json"))
    commits[-1].unlink()
    commits[-1].with_name(f".{commits[-1].name}.crc").unlink(missing_ok=True)
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]
    database.orders.insert_one({"_id": "after"})
    assert run(replicate, "--mode", "latest", "--available-now").exit_code == 0
    report = tmp_path / "verdict.json"
    assert run(verify, "--json", str(report)).exit_code == 6
    [found] = json.loads(report.read_text())
    assert {what: sorted(keys) for what, keys in found["keys"].items()} == {
        "missing": ['"applied"', '"before"']
    }
    mended = run(backfill, "--collection", str(orders), "--into", "mirror", "--repair")
    assert mended.exit_code == 0, mended.output
    assert run(verify).exit_code == 0


@pytest.mark.slow
def test_a_mirror_of_a_part_of_the_documents_follows_what_leads_into_it_and_out_of_it(
    spark: SparkSession, database: Database[dict[str, Any]], run: Run, tmp_path: Path
) -> None:
    images = {"enabled": True}
    orders = database.create_collection("orders", changeStreamPreAndPostImages=images)
    orders.insert_many({"_id": i, "n": i, "card": "secret"} for i in range(20))
    part = ["-o", 'filter={"n": {"$gte": 10}}', "-o", "fields=-card"]
    assert run(replicate, "--mode", "initial", "--available-now", *part).exit_code == 0
    orders.update_one({"_id": 1}, {"$set": {"n": 10, "card": "other secret"}})
    orders.update_one({"_id": 19}, {"$set": {"n": 9}})
    orders.delete_one({"_id": 2})
    done = run(replicate, "--available-now", *part)
    assert done.exit_code == 0, done.output
    verified = run(verify, *part)
    assert verified.exit_code == 0, verified.output
    table = spark.read.format("delta").load(_mirror(tmp_path, Namespace(database.name, "orders")))
    rows = table.selectExpr("key", "to_json(document) AS reported").collect()
    found = {row.key: json.loads(row.reported) for row in rows}
    assert found == {str(i): {"_id": i, "n": max(i, 10)} for i in [1, *range(10, 19)]}


@pytest.mark.slow
def test_each_result_is_one_document_of_json_on_stdout_or_shown_and_in_a_file(
    spark: SparkSession,
    mongod: ReplicaSet,
    database: Database[dict[str, Any]],
    run: Run,
    tmp_path: Path,
) -> None:
    """Of a collection with an odd name, whose folder an earlier version has made.

    Guards: a program that looks for the tables elsewhere."""
    # What a restore gives back all the same: more digits than Python's, what is no Extended JSON.
    odd = {"total": Decimal128("12345678901234567890123456789"), "price": {"$numberDecimal": "abc"}}
    name = "a/b é"
    database[name].insert_many({"_id": i, **odd} for i in range(50))
    which = ["-o", f"collections={json.dumps([f'{database.name}.{name}'])}"]
    assert run(replicate, *which, "--mode", "snapshot").exit_code == 0
    folders = tmp_path / "lakehouse" / database.name
    (folders / folder(name)).rename(folders / former_folder(name))
    orders, report = f"{database.name}.{name}", tmp_path / "report.json"
    at = complete_until(str(tmp_path / "lakehouse" / "_checkpoint"), Namespace.parse(orders))
    assert at is not None
    back = ["--as-of", timestamp.text(at), "--to-uri", mongod.uri, "--collection", orders]
    for program, arguments, result in [
        (plan, [], {"source": "rs0"}),
        (status, [], {"checkpoint": str(tmp_path / "lakehouse" / "_checkpoint")}),
        (verify, [], [{"namespace": orders, "documents": 50, "equal": True}]),
        (backfill, ["--collection", orders], {"collection": orders, "changelog_rows": 0}),
        (configure.infer_columns, ["--dry-run"], [{"namespace": orders, "documents": 50}]),
        (maintain, ["--dry-run"], [{"purged": 0}, {"purged": 0}]),
        (repairs.repair_checkpoint, [], {"steps": [], "dry_run": False}),
        (repairs.replay_dead_letters, [], {"delivered": 0, "left": 0}),
        (restore, [*back, "--namespace", f"{database.name}.back"], {"documents": 50}),
    ]:
        printed = run(program, *which, *arguments, "--json")
        assert printed.exit_code == 0, printed.output
        _holds(json.loads(printed.stdout), result)
        again = [*arguments, "--force"] if program is restore else arguments
        shown = run(program, *which, *again, "--json", str(report))
        assert shown.exit_code == 0, shown.output
        assert not shown.stdout.startswith(("{", "[")), shown.stdout
        _holds(json.loads(report.read_text()), result)
    assert "5E+3 is 5000" in json.loads(report.read_text())["losses"]
    found = list(database["back"].find().sort("_id"))
    assert found == [{"_id": i, "price": odd["price"], "total": odd["total"]} for i in range(50)]
    assert [path.name for path in folders.iterdir()] == [former_folder(name)]


def _holds(found: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        found, expected = [found], [expected]
    assert len(found) == len(expected)
    for each, some in zip(found, expected, strict=True):
        assert {name: each[name] for name in some} == some


@pytest.mark.parametrize(
    ("arguments", "code", "reported"),
    [
        (["-o", "imags=auto"], 2, "images"),
        (["-o", "uri=nonsense"], 2, "uri"),
        (["-o", "uri=env:NO_SUCH_VARIABLE"], 2, "NO_SUCH_VARIABLE"),
        (["-o", "uri=mongodb://u:c4nary@127.0.0.1:1", "-o", "server.timeout.ms=300"], 3, "port"),
        (["-o", "collections=nowhere.nothing"], 1, "nowhere.nothing"),
        (["--mode", "timestamp"], 2, "start"),
        (["--mode", "timestamp", "--start", "yesterday"], 2, "yesterday"),
        (["--mode", "token", "--start", "yesterday"], 2, "resume token"),
        (["-o", "images=required"], 1, "collMod"),
    ],
)
def test_a_mistake_is_one_sentence_with_a_remedy_and_writes_nothing(
    spark: SparkSession,
    database: Database[dict[str, Any]],
    run: Run,
    tmp_path: Path,
    arguments: list[str],
    code: int,
    reported: str,
) -> None:
    database.orders.insert_one({"_id": 1})
    result = run(replicate, *arguments)
    assert result.exit_code == code, result.output
    assert reported in result.stderr
    _is_one_sentence(result.stderr)
    assert not (tmp_path / "lakehouse").exists()


def _is_one_sentence(text: str) -> None:
    lines = [line for line in text.splitlines() if line.startswith("error:")]
    assert len(lines) == 1, text
    assert "Remedy:" in lines[0]
    assert "Traceback" not in text
    assert "Py4J" not in text
    assert "c4nary" not in text


def test_help_of_each_program_has_an_example() -> None:
    overview = CliRunner().invoke(main, ["--help"])
    assert overview.exit_code == 0
    for name in PROGRAMS:
        assert name in overview.output
        text = CliRunner().invoke(main, [name, "--help"]).output
        assert f"Example: mongodb-cdc {name}" in text
