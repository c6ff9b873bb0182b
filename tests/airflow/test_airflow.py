"""Airflow runs the documented DAGs, with a real server, Spark and Delta."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner
from delta.tables import DeltaTable
from pymongo import uri_parser
from pymongo.database import Database
from pyspark.sql import SparkSession

from cdc.cli import replicate, verify
from tests.airflow.airflow import PROGRAM, ROOT, Airflow
from tests.mongo.access import Guarded
from tests.security.leaks import Canary, Watched, reported

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(900)]
DAG, HOURS = "shop_backfill", "shop_hours"
TABLES, REPORT, FRESH = "shop_tables", "shop_report", "shop_fresh"


@dataclass(frozen=True)
class Shop:
    """A pipeline that has run, and an Airflow beside it, which alone knows the password."""

    airflow: Airflow
    folder: Path
    orders: Any
    collection: str
    canary: Canary
    config: list[str]

    def table(self, spark: SparkSession, kind: str) -> DeltaTable:
        path = self.folder / "lakehouse" / self.collection.replace(".", "/") / kind
        return DeltaTable.forPath(spark, str(path))

    def replicates(self) -> None:
        self.runs(replicate, "--available-now")

    def runs(self, program: Any, *arguments: str) -> None:
        done = CliRunner().invoke(program.main, [*self.config, *arguments])
        assert done.exit_code == 0, (done.output, done.exception)


@pytest.fixture(scope="module")
def shop(
    guarded: Guarded, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Shop]:
    folder = tmp_path_factory.mktemp("shop")
    canary = Canary("airflow")
    guarded.client.admin.command("createUser", "airflow", pwd=canary.password, roles=["root"])
    address = uri_parser.parse_uri(guarded.replica_set.uri)
    ((host, port),) = address["nodelist"]
    connection = {
        "conn_type": "mongo",
        "login": "airflow",
        "password": canary.password,
        "host": host,
        "port": port,
        "schema": "admin",
        "extra": {"replicaSet": address["options"]["replicaSet"], "retryWrites": True},
    }
    shutil.copy(ROOT / "conf" / "spark-defaults.conf", folder)
    (folder / "pipeline.toml").write_text(
        f'[source]\nuri = "env:MONGODB_URI"\ncollections = ["shop.orders"]\n'
        f'[sink]\npath = "{folder / "lakehouse"}"\n'
    )
    database: Database[Any] = guarded.client["shop"]
    database.create_collection("orders", changeStreamPreAndPostImages={"enabled": True})
    database.orders.insert_many({"_id": i, "n": i} for i in range(20))
    config = ["--config", str(folder / "pipeline.toml"), "-o", f"uri={guarded.uri('root')}"]
    airflow = Airflow(folder / "airflow", folder / "pipeline.toml", "shop.orders", connection)
    shop = Shop(airflow, folder, database.orders, "shop.orders", canary, config)
    shop.runs(replicate, "--mode", "initial", "--available-now")
    yield shop
    guarded.client.drop_database("shop")


def test_a_run_on_demand_mends_the_mirror_returns_what_it_did_and_reports_no_password(
    shop: Shop, spark: SparkSession
) -> None:
    shop.table(spark, "mirror").delete("key IN ('1', '2')")
    wanted = {"collection": shop.collection, "into": "mirror", "repair": True}
    empty = shop.folder / "empty"
    empty.mkdir()
    with Watched([shop.canary], psutil.Process().pid, empty) as watched:
        for conf in ({**wanted, "dry-run": True}, wanted, wanted):
            shop.airflow("dags", "test", DAG, "--conf", json.dumps(conf))
    found = shop.airflow.results(DAG)
    assert [(each["missing"], each["left"]) for each in found] == [(2, 2), (2, 0), (0, 0)]
    shop.runs(verify)
    rendered = shop.airflow.asked("SELECT rendered_fields FROM rendered_task_instance_fields")
    assert any(shop.collection in text for (text,) in rendered)
    assert reported([shop.canary], shop.folder) == []
    assert watched.found == set()
    assert "java" in watched.seen.values()


def test_what_another_try_cannot_cure_is_not_tried_again_and_says_why(shop: Shop) -> None:
    before = len(shop.airflow.tries(DAG))
    conf = {"collection": shop.collection, "into": "mirror", "filter": "{"}
    said = shop.airflow("dags", "test", DAG, "--conf", json.dumps(conf), code=1)
    assert shop.airflow.tries(DAG)[before:] == [("failed", 1)]
    assert "Remedy" in said


def test_a_try_that_is_killed_is_made_again_and_what_it_added_is_there_once(
    shop: Shop, spark: SparkSession
) -> None:
    shop.orders.update_one({"_id": 0}, {"$inc": {"n": 1}})
    shop.replicates()  # else the documents are in the changelog already, as of the same time
    before = len(shop.airflow.tries(DAG))
    conf = json.dumps({"collection": shop.collection, "into": "changelog"})
    command = [str(PROGRAM), "dags", "test", DAG, "--conf", conf]
    with (shop.folder / "killed.log").open("wb") as log:
        run = subprocess.Popen(
            command,
            env=shop.airflow.environment,
            cwd=shop.airflow.home,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        killed, left = _kill_java(psutil.Process(run.pid))
        assert run.wait(300) == 0
    assert shop.airflow.tries(DAG)[before:] == [("success", 2)]
    assert shop.airflow.results(DAG)[-1]["changelog_rows"] == 20
    _, alive = psutil.wait_procs([killed, *left], timeout=20)
    assert alive == []
    read = _rows(shop.table(spark, "changelog"), "op = 'read'")
    assert len(read) == len(set(read)) == 20 + 20


def _kill_java(run: psutil.Process) -> tuple[psutil.Process, list[psutil.Process]]:
    """The JVM of the first try, once it has a Python worker; and what else it had started."""
    ends = time.monotonic() + 200
    while time.monotonic() < ends:
        with suppress(psutil.NoSuchProcess):  # one has ended since it was listed
            for java in [each for each in run.children(recursive=True) if each.name() == "java"]:
                below = java.children(recursive=True)
                if any("pyspark.daemon" in " ".join(each.cmdline()) for each in below):
                    java.kill()
                    return java, below
        time.sleep(0.05)
    raise AssertionError("there was no Java with a worker")


def test_a_backfill_of_intervals_brings_back_what_a_changelog_lacks_of_them(
    shop: Shop, spark: SparkSession
) -> None:
    begin = _next_minute()  # in which no other test has written
    for i in range(5):
        shop.orders.update_one({"_id": i}, {"$inc": {"n": 100}})
    shop.replicates()
    changelog = shop.table(spark, "changelog")
    updates = f"op = 'update' AND cluster_time >= timestamp_seconds({begin.timestamp():.0f})"
    right = _rows(changelog, updates)
    assert len(right) == 5
    changelog.delete(updates)
    end = _next_minute()
    first, last = begin.isoformat(), (end - timedelta(minutes=1)).isoformat()
    dates = ["--from-date", first, "--to-date", last, "--max-active-runs", "1"]
    with shop.airflow.running():
        shop.airflow("backfill", "create", "--dag-id", HOURS, *dates)
        shop.airflow("dags", "unpause", HOURS)  # from here on it makes runs by itself, too
        runs = round((end - begin) / timedelta(minutes=1))
        shop.airflow.wait_for(lambda: shop.airflow.backfilled(HOURS) == ["success"] * runs)
    assert sum(each["changelog_rows"] for each in shop.airflow.results(HOURS)) == 5
    assert _rows(changelog, updates) == right
    shop.runs(verify)
    assert reported([shop.canary], shop.folder) == []


def test_a_task_that_replicates_writes_the_tables_which_are_verified_and_maintained(
    shop: Shop, spark: SparkSession
) -> None:
    shop.orders.insert_one({"_id": "by Airflow"})
    shop.airflow("dags", "test", TABLES)
    [verified, maintained] = shop.airflow.results(TABLES)
    assert [each["equal"] for each in verified] == [True]
    assert verified[0]["documents"] == shop.orders.count_documents({})
    assert {each["table"].rpartition("/")[2] for each in maintained} >= {"changelog", "mirror"}
    assert [state for state, _ in shop.airflow.tries(TABLES)] == ["success"] * 3
    assert reported([shop.canary], shop.folder) == []


def test_differences_fail_the_task_at_once_and_are_its_result(
    shop: Shop, spark: SparkSession
) -> None:
    shop.table(spark, "mirror").delete("key = '3'")
    before = len(shop.airflow.tries(REPORT))
    shop.airflow("dags", "test", REPORT, code=1)
    assert shop.airflow.tries(REPORT)[before:] == [("failed", 1)]
    assert [each["missing"] for each in shop.airflow.results(REPORT)[-1]] == [1]
    shop.airflow(
        *("dags", "test", DAG, "--conf"),
        json.dumps({"collection": shop.collection, "into": "mirror", "repair": True}),
    )
    shop.runs(verify)


def test_a_wait_is_deferred_until_the_tables_contain_what_came_before(shop: Shop) -> None:
    """Guards: a wait that ends while the tables lack changes, or never."""
    log = shop.folder / "waits.log"
    with log.open("wb") as output:
        run = subprocess.Popen(
            [str(PROGRAM), "dags", "test", FRESH],
            env=shop.airflow.environment,
            cwd=shop.airflow.home,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    shop.airflow.wait_for(lambda: b"[DAG TEST] running trigger in line" in log.read_bytes())
    time.sleep(10)  # it has looked
    assert run.poll() is None, log.read_text()[-3000:]
    shop.orders.insert_one({})  # at a cluster time after the end of the interval
    shop.replicates()
    assert run.wait(120) == 0
    assert shop.airflow.tries(FRESH)[-1][0] == "success"


def test_the_assets_of_the_tables_start_the_dag_that_waits_for_them(shop: Shop) -> None:
    started = "SELECT state FROM dag_run WHERE dag_id = ? AND run_type = 'asset_triggered'"
    busy = "SELECT * FROM task_instance WHERE state IN ('queued', 'running')"
    shop.airflow("dags", "pause", HOURS)  # another test lets it run each minute
    with shop.airflow.running():
        shop.airflow("dags", "unpause", REPORT)
        shop.airflow("dags", "unpause", TABLES)
        shop.airflow.wait_for(lambda: shop.airflow.asked(started, REPORT) != [])
        shop.airflow("dags", "pause", TABLES)
        shop.airflow.wait_for(lambda: set(shop.airflow.asked(started, REPORT)) == {("success",)})
        # The servers end only after the tasks that run; those of a paused DAG are not begun.
        shop.airflow.wait_for(lambda: shop.airflow.asked(busy) == [])
    events = "SELECT DISTINCT uri FROM asset_event JOIN asset ON asset.id = asset_id ORDER BY uri"
    tables = f"mongodb-cdc://shop/{shop.collection}/"
    assert shop.airflow.asked(events) == [(f"{tables}changelog",), (f"{tables}mirror",)]


def _next_minute() -> datetime:
    """Its beginning, once that is there."""
    begin = datetime.now(UTC).replace(second=0, microsecond=0) + timedelta(minutes=1)
    while (left := (begin - datetime.now(UTC)).total_seconds()) > 0:
        time.sleep(left)
    return begin


def _rows(changelog: DeltaTable, which: str) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, changelog.toDF().where(which).select("position", "key").collect()))
