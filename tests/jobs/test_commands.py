"""The commands as a user calls them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from delta import DeltaTable
from pymongo.database import Database
from pyspark.sql import SparkSession

from cdc.model.selection import Namespace
from jobs import config as configuration
from jobs import replicate, verify
from jobs.cli import main
from jobs.mongod import ReplicaSet

# A JVM of one run does without the second compiler.
_QUICK_JVM = "-XX:TieredStopAtLevel=1"
ROOT = Path(__file__).parents[2]
Run = Callable[..., Result]


@pytest.fixture
def run(mongod: ReplicaSet, database: Database[dict[str, Any]], tmp_path: Path) -> Run:
    """Calls a program in this process, on a configuration of the test's own."""
    file = tmp_path / "pipeline.toml"
    file.write_text(
        f'[source]\nuri = "{mongod.uri}"\ncollections = ["{database.name}.orders"]\n'
        f'[sink]\npath = "{tmp_path / "lakehouse"}"\n'
    )

    def call(program: Any, *arguments: str) -> Result:
        return CliRunner().invoke(program.main, ["--config", str(file), *arguments])

    return call


def _mirror(tmp_path: Path, namespace: Namespace) -> str:
    required = ["uri=mongodb://h", "collections=a.b", f"sink.path={tmp_path / 'lakehouse'}"]
    config = configuration.load(None, required)
    assert config.mirror is not None
    return config.mirror.path(namespace)


def test_verify_finds_what_is_missing_extra_and_differing_and_nothing_else(
    spark: SparkSession, database: Database[dict[str, Any]], run: Run, tmp_path: Path
) -> None:
    database.orders.insert_many({"_id": i, "n": i} for i in range(50))
    done = run(replicate, "--mode", "snapshot")
    assert done.exit_code == 0, done.output
    report = tmp_path / "verdict.json"
    assert run(verify, "--json", str(report)).exit_code == 0
    assert json.loads(report.read_text())[0]["equal"] is True

    path = _mirror(tmp_path, Namespace(database.name, "orders"))
    table = DeltaTable.forPath(spark, path)
    table.delete("key = '7'")
    table.update("key = '8'", {"document": 'parse_json(\'{"_id": 8, "n": 8.0}\')'})
    table.update("key = '9'", {"key": "'x'"})
    found = run(verify, "--json", str(report))
    assert found.exit_code == 6
    verdict = json.loads(report.read_text())[0]
    assert {kind: sorted(keys) for kind, keys in verdict["keys"].items()} == {
        "missing": ["7", "9"],
        "differing": ["8"],
        "extra": ["x"],
    }


def test_a_new_checkpoint_onto_the_tables_of_another_is_refused(
    spark: SparkSession, database: Database[dict[str, Any]], run: Run, tmp_path: Path
) -> None:
    database.orders.insert_one({"_id": 1})
    assert run(replicate, "--available-now").exit_code == 0
    refused = run(replicate, "--available-now", "-o", f"sink.checkpoint={tmp_path / 'new'}")
    assert refused.exit_code == 1
    _is_one_sentence(refused.stderr)


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
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
    told: str,
) -> None:
    database.orders.insert_one({"_id": 1})
    result = run(replicate, *arguments)
    assert result.exit_code == code, result.output
    assert told in result.stderr
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
    for name in ("demo", "plan", "replicate", "status", "token", "verify"):
        assert name in overview.output
        text = CliRunner().invoke(main, [name, "--help"]).output
        assert f"Example: mongodb-cdc {name}" in text


def test_the_demo_copies_follows_and_verifies_and_leaves_nothing_behind(tmp_path: Path) -> None:
    report = tmp_path / "demo.json"
    done = subprocess.run(
        [sys.executable, "-m", "jobs.demo", "--documents", "3000", "--json", str(report)],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path), "JAVA_TOOL_OPTIONS": _QUICK_JVM},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    measured = json.loads(report.read_text())
    assert measured["equal"] is True
    assert measured["documents"] >= 3000 * 0.8
    assert measured["changes"] > 0
    assert "changelog" in done.stdout
    left = [path.name for path in tmp_path.iterdir() if path.name != "demo.json"]
    assert not [name for name in left if name.startswith(("mongod", "mongodb-cdc-demo"))], left
