"""Backfill: what is read again agrees with what the job writes, whichever comes first."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from delta.tables import DeltaTable
from pymongo.database import Database
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from cdc.cli import backfill, replicate, verify
from cdc.delta.maintenance import mirror_repair
from cdc.demo import ReplicaSet
from tests.pipeline_file import write_pipeline
from tests.slow import slow_but

Run = Callable[..., Result]


@pytest.fixture
def run(mongod: ReplicaSet, database: Database[dict[str, Any]], tmp_path: Path) -> Run:
    """Calls a program in this process, on a configuration of the test's own."""
    file = write_pipeline(tmp_path, mongod, database)

    def call(program: Any, *arguments: str, code: int = 0) -> Result:
        done = CliRunner().invoke(program.main, ["--config", str(file), *arguments])
        assert done.exit_code == code, (done.output, done.exception)
        return done

    return call


class Lake:
    """The tables of one collection, and the documents that its source holds."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark, self._folder = spark, folder

    def table(self, kind: str) -> DeltaTable:
        return DeltaTable.forPath(self._spark, str(self._folder / kind))

    def mirror(self) -> dict[str, int | None]:
        rows = (
            self.table("mirror").toDF().selectExpr("key", "variant_get(document, '$.n', 'int') n")
        )
        found = rows.collect()
        assert len({row.key for row in found}) == len(found)
        return {row.key: row.n for row in found}

    def changelog(self) -> list[tuple[Any, ...]]:
        rows = self.table("changelog").toDF().select("position", "op", "key", F.to_json("after"))
        return sorted(map(tuple, rows.collect()), key=str)


@pytest.fixture
def lake(spark: SparkSession, database: Database[dict[str, Any]], tmp_path: Path) -> Lake:
    return Lake(spark, tmp_path / "lakehouse" / database.name / "orders")


def arguments(database: Database[dict[str, Any]], *more: str) -> list[str]:
    return ["--collection", f"{database.name}.orders", *more]


@pytest.mark.slow
def test_what_a_table_lost_or_holds_otherwise_is_read_again_and_twice_is_once(
    database: Database[dict[str, Any]], run: Run, lake: Lake, tmp_path: Path
) -> None:
    images = {"enabled": True}
    database.create_collection("orders", changeStreamPreAndPostImages=images)
    database.orders.insert_many({"_id": i, "n": i} for i in range(8))
    run(replicate, "--mode", "initial", "--available-now")
    database.orders.update_one({"_id": 0}, {"$inc": {"n": 100}})
    database.orders.delete_one({"_id": 7})
    run(replicate, "--available-now")
    right, reported = lake.mirror(), lake.changelog()
    mirror, log = lake.table("mirror"), lake.table("changelog")

    mirror.delete("key IN ('1', '2')")
    mirror.update("key = '3'", {"document": "parse_json('{}')"})
    mirror.update("key = '4'", {"key": "'x'"})
    report = tmp_path / "report.json"
    part = ["--into", "mirror", "--min", "1", "--max", "2"]
    run(backfill, *arguments(database, *part))
    assert lake.mirror().get("1") == 1
    assert "2" not in lake.mirror()
    run(backfill, *arguments(database, "--into", "mirror", "--filter", '{"n": 2}'))
    assert lake.mirror().get("2") == 2
    run(backfill, *arguments(database, "--into", "mirror", "--json", str(report)), code=6)
    assert json.loads(report.read_text()).items() >= {
        "missing": 1, "differing": 1, "extra": 1, "left": 1, "undecided": 0,
    }.items()  # fmt: skip
    assert lake.mirror() == {**right, "x": 4}
    mirror.delete("key = '1'")
    dry, foreseen = tmp_path / "dry.json", ["--dry-run", "--json", str(tmp_path / "dry.json")]
    run(backfill, *arguments(database, "--repair", *foreseen), code=6)
    found = json.loads(dry.read_text())
    assert (found["missing"], found["extra"], found["left"]) == (1, 1, 2)
    assert found["changelog_rows"] == 0
    both = ["--into", "mirror", "--into", "changelog"]
    run(backfill, *arguments(database, *both, *foreseen), code=6)
    assert json.loads(dry.read_text())["changelog_rows"] == 7
    assert lake.mirror() == {**{k: n for k, n in right.items() if k != "1"}, "x": 4}
    assert lake.changelog() == reported
    for _ in range(2):
        run(backfill, *arguments(database, "--repair"))
        assert lake.mirror() == right
        assert lake.changelog() == reported
    run(verify)

    columns = ("cluster_time", "cluster_inc")
    (first,) = log.toDF().where("op = 'update'").select(*columns).collect()
    log.delete("op IN ('update', 'delete')")
    since = f"{int(first.cluster_time.timestamp())}:{first.cluster_inc}"
    run(backfill, *arguments(database, "--from", since, *foreseen))
    assert json.loads(dry.read_text())["changelog_rows"] == 2
    assert len(lake.changelog()) == len(reported) - 2
    for _ in range(2):
        run(backfill, *arguments(database, "--from", since))
    found = lake.changelog()
    assert set(reported) <= set(found)
    assert len(set(found)) == len(found)
    at = json.loads(report.read_text())["at"]
    for _ in range(2):
        run(backfill, *arguments(database, "--into", "changelog", "--at", at))
        read = [row for row in lake.changelog() if row not in found]
        assert sorted((row[1], row[2]) for row in read) == [("read", str(i)) for i in range(7)]

    # What the job has still to write is left to it.
    found = lake.changelog()
    database.orders.update_one({"_id": 1}, {"$inc": {"n": 1}})
    run(backfill, *arguments(database, "--from", since, "--json", str(report)))
    assert json.loads(report.read_text())["changelog_rows"] == 0
    run(replicate, "--available-now")
    assert len(lake.changelog()) == len(set(lake.changelog())) == len(found) + 1


@pytest.mark.slow
def test_tries_under_one_run_id_add_the_documents_once_though_the_job_goes_on_between_them(
    database: Database[dict[str, Any]], run: Run, lake: Lake, tmp_path: Path
) -> None:
    images = {"enabled": True}
    database.create_collection("orders", changeStreamPreAndPostImages=images)
    database.orders.insert_many({"_id": i, "n": i} for i in range(5))
    run(replicate, "--mode", "latest", "--available-now")
    found = list[dict[str, Any]]()
    names = ["of ${env:HOME}", "of ${env:HOME}", "another", "of the same time", "of the same time"]
    for i, name in enumerate(names):
        if i < 3:
            database.orders.insert_one({"_id": i - 9})
            run(replicate, "--available-now")
        report = tmp_path / "report.json"
        into = ["--into", "changelog", "--json", str(report), "--run-id", name]
        run(backfill, *arguments(database, *into))
        found.append(json.loads(report.read_text()))
    assert found[0]["changelog_rows"] == 6
    assert found[1] == found[0]
    assert found[2]["changelog_rows"] == 8
    assert found[2]["at"] != found[0]["at"]
    assert found[3] == found[4] == {**found[2], "changelog_rows": 0}
    read = [row for row in lake.changelog() if row[1] == "read"]
    assert len(read) == len(set(read)) == 6 + 8

    # Parts under one name are added each.
    database.orders.insert_one({"_id": 50})
    run(replicate, "--available-now")
    parts = [["--max", "0"], ["--min", "0"], ["--min", "0"]]
    for part in parts:
        into = ["--into", "changelog", "--json", str(report), "--run-id", "of parts", *part]
        run(backfill, *arguments(database, *into))
        found.append(json.loads(report.read_text()))
    assert [each["changelog_rows"] for each in found[-3:]] == [3, 6, 6]
    assert len([row for row in lake.changelog() if row[1] == "read"]) == len(read) + 9


@pytest.mark.parametrize("is_killed", slow_but([], [False, True], soak=[False]))
def test_what_the_job_knows_to_be_newer_or_gone_wins_though_a_backfill_comes_later(
    database: Database[dict[str, Any]],
    run: Run,
    lake: Lake,
    monkeypatch: pytest.MonkeyPatch,
    is_killed: bool,
) -> None:
    """Guards: a delete of a document that the mirror lacks leaves no trace in it; the backfill must
    not bring the document back, nor leave it if it is killed before it looks."""
    images = {"enabled": True}
    database.create_collection("orders", changeStreamPreAndPostImages=images)
    database.orders.insert_many({"_id": i, "n": i} for i in range(5))
    run(replicate, "--mode", "initial", "--available-now")
    lake.table("mirror").delete("key IN ('1', '2', '3')")
    merge = mirror_repair._merge

    def merge_after_the_job(*given: Any) -> None:
        """The job writes between what the backfill read and what it merges."""
        database.orders.delete_one({"_id": 1})
        database.orders.update_one({"_id": 2}, {"$set": {"n": 20}})
        database.orders.delete_one({"_id": 4})
        run(replicate, "--available-now")
        merge(*given)
        if is_killed:
            raise KeyboardInterrupt

    monkeypatch.setattr(mirror_repair, "_merge", merge_after_the_job)
    run(backfill, *arguments(database, "--into", "mirror"), code=130 if is_killed else 0)
    monkeypatch.setattr(mirror_repair, "_merge", merge)
    if is_killed:
        assert lake.mirror().get("1") == 1, "it was to be killed before it looked"
        run(backfill, *arguments(database, "--into", "mirror"))
    assert lake.mirror() == {"0": 0, "2": 20, "3": 3}
    run(verify)


@pytest.mark.parametrize(
    "mistaken",
    [
        ["--repair", "--filter", "{}"],
        ["--min", "{"],
        ["--from", "1:1", "--repair"],
        ["--from", "1:1", "--into", "mirror"],
        ["--at", "yesterday", "--into", "changelog"],
        ["--at", "1:1"],
    ],
)
def test_what_contradicts_itself_is_refused(
    database: Database[dict[str, Any]], run: Run, mistaken: list[str]
) -> None:
    run(backfill, *arguments(database, *mistaken), code=2)
