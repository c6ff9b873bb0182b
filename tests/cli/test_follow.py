"""Mirrors are brought up to date by a program of their own, beside the one that reads MongoDB."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from delta.tables import DeltaTable
from pymongo.database import Database
from pyspark.sql import SparkSession

from cdc.cli import configure, follow, maintain, replicate, verify
from cdc.delta.tables import writes
from cdc.demo import ReplicaSet, Writers
from cdc.errors import BadOption
from cdc.model import Namespace
from cdc.pipeline import config as configuration
from tests.pipeline_file import write_pipeline
from tests.slow import slow_but

ROOT = Path(__file__).parents[2]


@pytest.fixture
def config(mongod: ReplicaSet, database: Database[dict[str, Any]], tmp_path: Path) -> Path:
    return write_pipeline(tmp_path, mongod, database, 'follow.by = "follow"\n')


@pytest.fixture
def run(config: Path) -> Callable[..., Result]:
    def call(program: Any, *arguments: str) -> Result:
        return CliRunner().invoke(program.main, ["--config", str(config), *arguments])

    return call


@pytest.mark.slow
def test_a_program_of_its_own_brings_mirrors_up_to_date_and_rebuilds_them(
    spark: SparkSession,
    mongod: ReplicaSet,
    database: Database[dict[str, Any]],
    run: Callable[..., Result],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Guards besides: a live view, which is as late as the changelog, under writers."""
    # Without images a change comes with the document as it is later, and the time is not exact.
    database.create_collection("orders", changeStreamPreAndPostImages={"enabled": True})
    database.orders.insert_many({"_id": i, "n": i} for i in range(20))
    early = run(follow, "--available-now")
    assert (early.exit_code, "Run mongodb-cdc replicate first" in early.stderr) == (1, True)
    assert run(replicate, "--available-now").exit_code == 0
    lagging = run(verify)
    assert (lagging.exit_code, "contains no batch yet" in lagging.stderr) == (1, True)
    done = run(follow, "--available-now")
    assert (done.exit_code, run(verify).exit_code) == (0, 0), done.output
    assert any(re.fullmatch(r"batch=\d+ pending=0", line) for line in caplog.messages)

    database.orders.update_many({}, {"$inc": {"n": 1}})
    with Writers(mongod.uri, Namespace(database.name, "orders"), 1):
        assert run(replicate, "--available-now").exit_code == 0
        live = run(verify, "--live")
    lagging = run(verify)
    assert (live.exit_code, lagging.exit_code) == (0, 0), live.output + lagging.output
    assert as_of(live) > as_of(lagging)

    shutil.rmtree(tmp_path / "lakehouse" / database.name / "orders" / "mirror")
    jvm: Any = spark._jvm
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    done = run(follow, "--rebuild", "--collection", f"{database.name}.orders")
    assert (done.exit_code, run(verify).exit_code) == (0, 0), done.output
    alone = run(follow, "--rebuild")
    assert (alone.exit_code, "belong together" in alone.stderr) == (2, True)


@pytest.mark.parametrize(
    "is_name", slow_but([], [False, True], soak=[False]), ids=["at a path", "in a catalog"]
)
def test_a_mirror_gets_typed_columns_and_documents_again_from_its_changelog(
    spark: SparkSession,
    database: Database[dict[str, Any]],
    config: Path,
    run: Callable[..., Result],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_name: bool,
) -> None:
    """Guards: a process that is killed when the table is empty and has its old columns still."""
    database.create_collection("orders", changeStreamPreAndPostImages={"enabled": True})
    database.orders.insert_many({"_id": i, "n": i} for i in range(20))
    names = 'mirror = "of_{db}.{coll}"\nchangelog = "log_{db}.{coll}"\n' if is_name else ""
    untyped = f"{config.read_text()}[table]\n{names}"
    rebuild = (follow, "--rebuild", "--collection", f"{database.name}.orders")
    path = tmp_path / "lakehouse" / database.name / "orders" / "mirror"
    mirror = f"of_{database.name}.orders" if is_name else f"delta.`{path}`"

    def require_columns(*names: str) -> None:
        assert spark.table(mirror).columns[1 : 1 + len(names)] == list(names)
        assert run(verify).exit_code == 0

    config.write_text(untyped)
    assert run(replicate, "--available-now").exit_code == 0
    assert run(follow, "--available-now").exit_code == 0
    database.orders.update_many({}, {"$inc": {"n": 1}})
    assert run(replicate, "--available-now").exit_code == 0
    if not is_name:  # only Spark can read a table in a catalog
        inferred = run_infer(config)
        assert (inferred.exit_code, "No column was added" in inferred.stderr) == (2, True)
        assert config.read_text() == untyped
        assert run_infer(config, "--force").exit_code == 0
        assert 'n = "' in config.read_text()
    config.write_text(f'{untyped}columns = {{ n = "int" }}\n')
    refused = run(follow, "--available-now")
    assert (refused.exit_code, "follow --rebuild" in refused.stderr) == (2, True)
    with monkeypatch.context() as patch:
        patch.setattr(writes, "replace_columns", _be_killed)
        assert run(*rebuild).exit_code == 130
    refused = run(follow, "--available-now")
    assert (refused.exit_code, "follow --rebuild" in refused.stderr) == (2, True)
    done = run(*rebuild)
    assert done.exit_code == 0, done.output
    require_columns("n", "_rescued")
    database.orders.insert_one({"_id": 99, "n": "not a number"})
    assert run(replicate, "--available-now").exit_code == 0
    assert run(follow, "--available-now").exit_code == 0
    require_columns("n", "_rescued")
    config.write_text(untyped)
    done = run(*rebuild)
    assert done.exit_code == 0, done.output
    require_columns("_id", "document")


def run_infer(config: Path, *more: str) -> Result:
    return CliRunner().invoke(configure.infer_columns, ["--config", str(config), *more])


def _be_killed(*_: Any) -> None:
    raise KeyboardInterrupt


# For typed columns `tests/delta/test_sql_view.py` shows the same, without writers.
@pytest.mark.parametrize(
    "columns",
    [
        pytest.param("", marks=pytest.mark.slow),
        pytest.param('columns = { n = "int", status = "string" }\n', marks=pytest.mark.soak),
    ],
)
def test_the_sql_view_of_a_mirror_in_a_catalog_equals_the_source_under_writers(
    spark: SparkSession,
    mongod: ReplicaSet,
    database: Database[dict[str, Any]],
    tmp_path: Path,
    columns: str,
) -> None:
    """Guards: a view that lags like its mirror; a drop in what the mirror lacks; a view that
    reads a version which `maintain` is about to make unreadable."""
    names = '[table]\nmirror = "of_{db}.{coll}"\nchangelog = "log_{db}.{coll}"\n' + columns
    config = write_pipeline(tmp_path, mongod, database, f'follow.by = "follow"\n{names}')
    mirror = f"of_{database.name}.orders"

    def run(program: Any, *arguments: str) -> Result:
        done = CliRunner().invoke(program.main, ["--config", str(config), *arguments])
        assert done.exit_code == 0, done.output
        return done

    def text() -> str:
        facts = spark.sql(f"DESCRIBE TABLE EXTENDED {mirror}_live").collect()
        return next(str(row.data_type) for row in facts if row.col_name == "View Text")

    # Without images a change comes with the document as it is later, and the time is not exact.
    database.create_collection("orders", changeStreamPreAndPostImages={"enabled": True})
    database.orders.insert_many({"_id": i, "n": i} for i in range(20))
    run(replicate, "--available-now")
    run(follow, "--available-now")
    run(maintain)
    newest = DeltaTable.forName(spark, mirror).history(1).collect()[0].version
    assert f"VERSION AS OF {newest} " in text()
    database.orders.update_many({}, {"$inc": {"n": 1}})
    with Writers(mongod.uri, Namespace(database.name, "orders"), 1):
        run(replicate, "--available-now")
        run(verify, "--live")
    database.orders.drop()
    database.orders.insert_many({"_id": i} for i in (1, 100))
    run(replicate, "--available-now")
    run(verify, "--live")
    # All this time the mirror got nothing.
    assert f"VERSION AS OF {newest} " in text()


def as_of(done: Result) -> tuple[int, int]:
    """The cluster time at which `verify` has compared."""
    found = re.search(r"T=(\d+):(\d+)", done.output)
    assert found, done.output
    return int(found[1]), int(found[2])


def test_a_mirror_without_a_changelog_cannot_be_left_to_another_program() -> None:
    given = ["uri=mongodb://h", "collections=a.b", "sink.path=/l", "sink.follow.by=follow"]
    assert configuration.load(None, given).follow_by == "follow"
    with pytest.raises(BadOption, match=r"\[table\] configures a mirror without a changelog"):
        configuration.load(None, [*given, "table.changelog="])


def test_the_override_whose_mirror_has_no_changelog_is_named(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.toml"
    file.write_text(
        '[source]\nuri = "mongodb://h"\ncollections = "a.b"\n'
        '[sink]\npath = "/l"\nfollow.by = "follow"\n'
        '[[override]]\nmatch = "a.b"\nchangelog = ""\n'
    )
    with pytest.raises(BadOption, match=r"'a\.b' configures a mirror without a changelog"):
        configuration.load(str(file))


@pytest.mark.slow
def test_a_signal_ends_the_program_with_code_0(
    spark: SparkSession,
    database: Database[dict[str, Any]],
    run: Callable[..., Result],
    config: Path,
) -> None:
    database.orders.insert_one({"_id": 1})
    assert run(replicate, "--available-now").exit_code == 0
    command = [sys.executable, "-m", "cdc.cli.follow", "--config", str(config)]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if "pending=0" in line:  # printed once the thread has looked for batches
                process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, lines
    assert run(verify).exit_code == 0
