"""What a newcomer reads first of a mistake that is found after the start of Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from bson.raw_bson import RawBSONDocument
from click.testing import CliRunner, Result
from pymongo.database import Database
from pyspark.sql import SparkSession

from cdc.checkpoint import lock_checkpoint
from cdc.cli.commands import main
from cdc.demo import ReplicaSet
from tests.cli.first_errors import require_short
from tests.delta.test_dead_letters import BROKEN
from tests.jvm import SHORT_LIVED
from tests.mongo.capture import Client, Document, filled

ROOT = Path(__file__).parents[2]
Call = Callable[..., Result]


def called(program: str, *arguments: str, options: Iterable[str]) -> Result:
    reported = [part for each in options for part in ("-o", each)]
    return CliRunner().invoke(main, [program, *reported, *arguments])


@pytest.fixture
def call(mongod: ReplicaSet, database: Database[Document], tmp_path: Path) -> Call:
    """Calls a program on the collection `orders`, which is to lie in a lakehouse of the test's."""
    filled(database, "orders", [1, 2])
    given = [f"uri={mongod.uri}", f"collections={database.name}.orders", f"sink.path={tmp_path}"]

    def run(program: str, *arguments: str, options: tuple[str, ...] = ()) -> Result:
        return called(program, *arguments, options=(*given, *options))

    return run


def require_reported(done: Result, code: int, *says: str) -> None:
    assert done.exit_code == code, (done.output, done.exception)
    require_short(done.stderr, list(says))


@pytest.mark.parametrize("program", ["verify", "backfill"])
def test_a_program_that_is_called_before_any_run_says_so(
    program: str, spark: SparkSession, database: Database[Document], call: Call
) -> None:
    which = ["--collection", f"{database.name}.orders"]
    require_reported(call(program, *which), 1, f"{database.name}.orders", "Run replicate first.")


def test_a_second_run_on_a_checkpoint_is_reported_of_the_first(
    spark: SparkSession, call: Call, tmp_path: Path
) -> None:
    with lock_checkpoint(f"{tmp_path}/_checkpoint"):
        require_reported(call("replicate"), 1, "Another job runs", "_checkpoint", "End it first")


@pytest.mark.parametrize("path", ["/dev/null/lake", "/sys/lake"])
def test_a_folder_that_cannot_be_made_is_named(path: str, spark: SparkSession, call: Call) -> None:
    done = call("replicate", options=(f"sink.path={path}",))
    require_reported(done, 2, f"{path}/_checkpoint", "cannot be written", "[sink]")


@pytest.mark.parametrize("path", ["s3://lake", "s3a://lake", "gs://lake", "abfss://c@a/lake"])
def test_a_store_that_spark_does_not_know_is_reported_with_how_it_gets_to_know_it(
    path: str, spark: SparkSession, call: Call
) -> None:
    done = call("replicate", options=(f"sink.path={path}",))
    require_reported(done, 2, path, "no file system", "--packages")


def test_a_checkpoint_of_another_query_is_named(
    spark: SparkSession, call: Call, tmp_path: Path
) -> None:
    rates = spark.readStream.format("rate").load().writeStream.format("noop")
    query = rates.option("checkpointLocation", f"{tmp_path}/_checkpoint").start()
    query.processAllAvailable()
    query.stop()
    require_reported(
        call("replicate"), 1, "that this source did not write", "checkpoint folder that belongs"
    )


def test_a_table_of_somebody_else_at_the_place_is_named_before_anything_is_written(
    spark: SparkSession, database: Database[Document], call: Call, tmp_path: Path
) -> None:
    place = f"{tmp_path}/{database.name}/orders/mirror"
    spark.range(3).write.format("delta").save(place)
    for waits in ("fail", "wait"):
        done = call("replicate", "--available-now", options=(f"missing.collections={waits}",))
        require_reported(done, 1, place, "was not made by mongodb-cdc", "Choose another path")
        assert not (tmp_path / "_checkpoint").exists()
        database.drop_collection("orders")


def test_files_of_somebody_else_at_the_place_are_named_before_anything_is_written(
    spark: SparkSession, database: Database[Document], call: Call, tmp_path: Path
) -> None:
    place = tmp_path / database.name / "orders" / "mirror"
    place.mkdir(parents=True)
    (place / "part-0.csv").write_text("1,2\n")
    done = call("replicate", "--available-now")
    require_reported(done, 1, str(place), "holds files, and no Delta table", "another path")
    assert [each.name for each in place.parent.iterdir()] == ["mirror"]
    assert not (tmp_path / "_checkpoint").exists()


@pytest.mark.slow
def test_a_mistake_that_the_first_batch_finds_is_reported_without_what_spark_says_of_it(
    mongod: ReplicaSet, database: Database[Document], tmp_path: Path
) -> None:
    """A document that cannot be mapped; by a process, whose Java writes its own messages."""
    filled(database, "orders", [])
    database.get_collection("orders").insert_one(RawBSONDocument(BROKEN))
    given = [f"uri={mongod.uri}", f"collections={database.name}.orders", f"sink.path={tmp_path}"]
    given.append("sink.dead.letters.limit=0")
    options = [part for each in given for part in ("-o", each)]
    done = subprocess.run(
        [sys.executable, "-m", "cdc.cli.replicate", *options, "--log-level", "error"],
        env={**os.environ, "PYTHONPATH": str(ROOT), **SHORT_LIVED},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, ""), done.stderr[-3000:]
    require_short(done.stderr, ["could not be mapped", "dead.letters.limit"])


# --- a table that is there already ----------------------------------------------------------------


class Past(NamedTuple):
    """A pipeline that has run: its options, its file, and the mirror of its only collection."""

    options: list[str]
    file: Path
    mirror: str
    orders: Any


@pytest.fixture(scope="module")
def past(
    spark: SparkSession, mongod: ReplicaSet, mongo: Client, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Past]:
    folder = tmp_path_factory.mktemp("past")
    orders, file = filled(mongo["first_errors"], "orders", [1, 2]), folder / "pipeline.toml"
    file.write_text('[table]\ncolumns = { n = "int" }\nchangelog = ""\n')
    options = [f"uri={mongod.uri}", "collections=first_errors.orders", f"sink.path={folder}"]
    done = called("replicate", "--available-now", "--config", str(file), options=options)
    assert done.exit_code == 0, done.output
    yield Past(options, file, f"{folder}/first_errors/orders/mirror", orders)
    mongo.drop_database("first_errors")


def test_a_new_checkpoint_onto_the_tables_of_another_is_refused(past: Past, tmp_path: Path) -> None:
    options = [*past.options, f"sink.checkpoint={tmp_path}/new"]
    done = called("replicate", "--config", str(past.file), options=options)
    require_reported(done, 1, past.mirror, "of pipeline", "Choose another path")
    assert not (tmp_path / "new").exists()


def test_a_collection_that_is_added_and_is_not_there_is_named_with_the_nearest(past: Past) -> None:
    both = "collections=first_errors.orders,first_errors.oders"
    done = called("replicate", "--config", str(past.file), options=[*past.options, both])
    near = "first_errors.oders (nearest: first_errors.orders)"
    require_reported(done, 1, near, "missing.collections = wait")


def test_a_table_with_other_columns_is_named(past: Past, tmp_path: Path) -> None:
    past.orders.insert_one({"_id": 3})
    file = tmp_path / "pipeline.toml"
    file.write_text(past.file.read_text().replace("int", "string"))
    done = called("replicate", "--config", str(file), options=past.options)
    require_reported(done, 2, past.mirror, "other columns than 'columns' says: n", "only be added")
