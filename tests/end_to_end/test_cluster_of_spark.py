"""The documented commands on a cluster of Spark's own, of which a machine is switched off in the
midst of a copy: what is submitted brings the project and its compiled encoders, and what was lost
is read again."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.database import Database
from pyspark.sql import SparkSession

from cdc.demo import ReplicaSet, Writers, load_orders
from cdc.kernel import loading
from cdc.model import Namespace
from cdc.pipeline import Config, mirrored_until
from cdc.pipeline import config as configuration
from tests.documents import code
from tests.end_to_end.in_process import WRITERS_PAUSE
from tests.end_to_end.job import ROOT, Job
from tests.end_to_end.oracle import Checkpoint, Frontier, OfReplicaSet, violations
from tests.end_to_end.standalone import (
    Standalone,
    Task,
    environment_without_the_project,
    outside,
    tasks,
)
from tests.end_to_end.test_stop import hanging, running
from tests.jvm import INTERPRETED
from tests.mongo.capture import until

_DOCUMENTS = 15_000  # in seven splits, two to a batch
_READ_SECONDS = 120
_PROGRAM_SECONDS = 300
_PIPELINE = """
[source]
uri = "env:MONGODB_URI"
collections = ["{collection}"]
document.format = "bson"
split.size.mb = 1
snapshot.splits.per.batch = 2
# So that `find` is a command of the copy only.
read.by = "change_stream"
[sink]
path = "{folder}/lakehouse"
"""


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_job_on_a_cluster_goes_on_when_a_worker_dies_and_what_it_wrote_is_right(
    mongod: ReplicaSet,
    mongo: MongoClient[dict[str, Any]],
    database: Database[dict[str, Any]],
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    orders = Namespace(database.name, "orders")
    load_orders(mongod.uri, orders, _DOCUMENTS, must_be_new=True)
    file = tmp_path / "pipeline.toml"
    file.write_text(_PIPELINE.format(collection=orders, folder=tmp_path))
    config = configuration.load(str(file))
    checkpoint = Checkpoint(config)
    loading.columns()  # which the driver then has, and its executors have not
    cache = tmp_path / "cache of the executors"
    environment = {"MONGODB_URI": mongod.uri, "NUMBA_CACHE_DIR": str(cache)}
    with Standalone(tmp_path, 2, environment) as cluster:
        submit = Submit(tmp_path, cluster.url, orders, mongod.uri)
        job = submit.replicate(config)
        try:
            with Writers(mongod.uri, orders, threads=1, pause=WRITERS_PAUSE):
                job.wait_for(checkpoint, lambda seen: len(seen) >= 2)
                with hanging(mongo, "find"):
                    until(lambda: _reading(mongo) == 2, _READ_SECONDS)
                    assert checkpoint.planned()[-1].copying
                    cluster.kill_worker(0)
                job.wait_for(checkpoint, _has_streamed)
                until(lambda: mirrored_until(spark, config, orders) is not None, _READ_SECONDS)
            job.process.terminate()
            assert job.ended()[0] == 143, job.said()
        finally:
            job.kill()
        ended = set(tasks(submit.first_event_log()))
        assert violations(spark, OfReplicaSet(mongo), config, checkpoint, orders) == []
        lost = _damage(spark, config, orders)
        repaired = submit.run("backfill")
        verdict = submit.run("verify")
    assert not [*cache.rglob("*.json")], "executors have compiled what the driver has"
    assert {Task("0", "Success"), Task("1", "Success")} <= ended
    assert "ExecutorLostFailure" in {each.end for each in ended}
    assert (repaired["missing"], repaired["left"]) == (lost, 0)
    assert [each["equal"] for each in verdict] == [True]


def _reading(client: MongoClient[dict[str, Any]]) -> int:
    """How many tasks read documents."""
    return sum(1 for each in running(client) if each["command"].get("find") == "orders")


def _has_streamed(seen: list[Frontier]) -> bool:
    return sum(1 for each in seen if each.is_streaming) >= 3


def _damage(spark: SparkSession, config: Config, collection: Namespace) -> int:
    """How many documents the mirror has lost."""
    mirror = config.table("mirror", collection)
    assert mirror is not None
    before = mirror.target.read(spark).count()
    mirror.target.delta(spark).delete("key LIKE '77%'")
    lost = before - mirror.target.read(spark).count()
    assert lost > 0
    return lost


class Submit:
    """The documented commands on a cluster, with what is here in the place of what stands there."""

    def __init__(self, folder: Path, url: str, collection: Namespace, uri: str) -> None:
        self._folder, self._events = folder, folder / "events"
        self._here = {
            "python": sys.executable,
            "spark-submit": str(Path(sys.executable).with_name("spark-submit")),
            "spark://master:7077": url,
            "mongodb-cdc.zip": str(folder / "mongodb-cdc.zip"),
            "pipeline.toml": str(folder / "pipeline.toml"),
            "shop.orders": str(collection),
        }
        settings = {
            **INTERPRETED,
            "spark.ui.enabled": "false",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": str(self._events),
            "spark.eventLog.rolling.enabled": "false",
            "spark.eventLog.compress": "false",
        }
        self._environment = {
            **outside(folder),
            "PYSPARK_PYTHON": str(environment_without_the_project(folder / "environment")),
            "PYTHONPATH": "",
            "MONGODB_URI": uri,
            # So that the commands stay as they are.
            "SPARK_SUBMIT_OPTS": " ".join(f"-D{name}={value}" for name, value in settings.items()),
        }
        self._events.mkdir()
        subprocess.run(self._command("zipfile"), cwd=ROOT, check=True)

    def replicate(self, config: Config) -> Job:
        command = self._command("jobs/replicate.py")
        return Job(config, self._folder, command=command, environment=self._environment)

    def run(self, program: str) -> Any:
        """One that ends by itself: what it reports as JSON."""
        reported = self._folder / f"{program}.json"
        done = subprocess.run(
            [*self._command(f"jobs/{program}.py"), "--json", str(reported)],
            cwd=ROOT,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=_PROGRAM_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return json.loads(reported.read_text())

    def first_event_log(self) -> Path:
        return min(self._events.iterdir())

    def _command(self, word: str) -> list[str]:
        """The one that has this word, of those between the section's fences."""
        lines = "".join(code("On a cluster", "sh")).replace("\\\n", " ").splitlines()
        [words] = [words for line in lines if word in (words := shlex.split(line))]
        return [self._here.get(each, each) for each in words]
