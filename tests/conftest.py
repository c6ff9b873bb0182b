"""A real MongoDB and a real Spark with Delta, each started once per process of the run.

A missing mongod or Java raises, and so fails every test that asked for it: a suite that skips what
it cannot run proves nothing.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.database import Database
from pyspark.sql import SparkSession
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from cdc.demo import ReplicaSet
from cdc.pipeline import session
from cdc.pipeline.spark_session import LOCAL
from tests.jvm import INTERPRETED, LONG_LIVED
from tests.mongo.access import Guarded, GuardedCluster, guarded_cluster, guarded_server

_numbers = itertools.count(1)
FOLDER = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What asks for `spark` comes first, because it takes longest: the sink, on which the JVM warms
    up best, before what runs the whole job. Then come the files that are not divided, so that no
    process is left with one of them at the end."""
    items.sort(key=_rank)


def _rank(item: pytest.Item) -> int:
    path = item.nodeid.partition("::")[0]
    if _asks_for_spark(path):
        return ["sinks", "jobs"].index(_scope(item.nodeid))
    return 2 if _shares_servers(path) else 3


class OnTwoJvms(LoadScopeScheduling):
    """What asks for `spark` goes to one process if it tests the sinks, else to another, so that no
    third JVM has to warm up. A file whose tests share servers of their own goes to one process, so
    that they are started once. All else goes test by test to whichever is free."""

    def _split_scope(self, nodeid: str) -> str:
        return _scope(nodeid)


# Not by marks: with pytest 9, xdist 3.8 heeds no `xdist_group`.
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> OnTwoJvms:
    return OnTwoJvms(config, log)


def _scope(nodeid: str) -> str:
    path = nodeid.partition("::")[0]
    if not _asks_for_spark(path):
        return path if _shares_servers(path) else nodeid
    is_of_sinks = path.startswith("tests/delta/")
    return "sinks" if is_of_sinks else "jobs"


@cache
def _asks_for_spark(path: str) -> bool:
    return "spark: SparkSession" in (FOLDER.parent / path).read_text()


@cache
def _shares_servers(path: str) -> bool:
    """Whether a fixture is made for the whole module, in the file or in `tests/mongo`."""
    text = (FOLDER.parent / path).read_text()
    return 'scope="module"' in text or "cluster: Cluster" in text


@pytest.fixture(scope="session")
def mongod() -> Iterator[ReplicaSet]:
    """A replica set of one member, shared by the run: no test stops it or changes its settings.

    A test that needs faults of the server as a whole starts a `ReplicaSet` of its own.
    """
    parameters = {"enableTestCommands": True}
    # With less, 5.0 repeats an update of 9 MB with recordPreImages for ever (write conflicts).
    with ReplicaSet(set_parameters=parameters, cache_gigabytes=0.5) as replica_set:
        yield replica_set


@pytest.fixture(scope="session")
def mongo(mongod: ReplicaSet) -> Iterator[MongoClient[dict[str, Any]]]:
    """A client on `mongod`, for the test's own reads and writes."""
    with mongod.client() as client:
        yield client


@pytest.fixture
def database(mongo: MongoClient[dict[str, Any]]) -> Iterator[Database[dict[str, Any]]]:
    """An empty database that no other test uses, dropped after the test."""
    fresh = mongo[f"test_{os.getpid()}_{next(_numbers)}"]
    yield fresh
    mongo.drop_database(fresh.name)


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """A server with access control, shared by the run; users and databases are a test's own."""
    with guarded_server(tmp_path_factory.mktemp("guarded")) as server:
        yield server


@pytest.fixture(scope="session")
def guarded_shards(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedCluster]:
    """A sharded cluster with access control, shared by the run; users and databases are a test's
    own."""
    with guarded_cluster(tmp_path_factory.mktemp("guarded")) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with Delta on two local cores, shared by the run.

    Two shuffle partitions: one would hide whatever goes wrong between partitions.
    """
    spark = session(
        "tests",
        master="local[2]",
        extra={
            "spark.driver.extraJavaOptions": (
                f"{LOCAL['spark.driver.extraJavaOptions']} {LONG_LIVED}"
            ),
            # Delta keeps the state of each table for an hour, and here each test makes new tables.
            # With Spark's 1 GB little is left for documents of 16 MiB.
            "spark.driver.memory": "2g",
            # The demo and the killed jobs run with Spark's own settings.
            **INTERPRETED,
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        },
    )
    yield spark
    spark.stop()
