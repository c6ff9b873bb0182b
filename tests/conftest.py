"""A real MongoDB and a real Spark with Delta, each started once per process of the run.

A missing mongod or Java raises, and so fails every test that asked for it: a suite that skips what
it cannot run proves nothing.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
from pymongo import MongoClient
from pymongo.database import Database
from pyspark.sql import SparkSession
from xdist.remote import Producer

from cdc.demo import ReplicaSet
from cdc.pipeline import end, session
from cdc.pipeline.spark.spark_session import LOCAL
from tests.jvm import INTERPRETED, SERIAL
from tests.mongo.access import Guarded, GuardedCluster, guarded_cluster, guarded_server
from tests.scheduling import ByScope, sort_tests
from tests.slow import keep_part

_numbers = itertools.count(1)

# Hypothesis fails an example that takes 200 ms, which any does on a busy machine now and then.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")


@pytest.hookimpl(trylast=True)  # of the tests that `-m` leaves
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    keep_part(config, items)
    sort_tests(config, items)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByScope:
    return ByScope(config, log)


@pytest.fixture(scope="session")
def mongod() -> Iterator[ReplicaSet]:
    """A replica set of one member, shared by the run: no test stops it or changes its settings.

    A test that needs faults of the server as a whole starts a `ReplicaSet` of its own.
    """
    # A machine that stalls must not end a test's transaction before the time limit of the test.
    parameters = {"enableTestCommands": True, "transactionLifetimeLimitSeconds": 300}
    # With less than half a gigabyte, 5.0 repeats an update of 9 MB with recordPreImages for ever
    # (write conflicts), and transactions with large documents wait for eviction.
    with ReplicaSet(set_parameters=parameters, cache_gigabytes=1.0) as replica_set:
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
            "spark.driver.extraJavaOptions": f"{LOCAL['spark.driver.extraJavaOptions']} {SERIAL}",
            # Delta keeps the state of each table for an hour, and here each test makes new tables.
            # With Spark's 1 GB little is left for documents of 16 MiB.
            "spark.driver.memory": "2g",
            # The demo and the killed jobs run with Spark's own settings, but for checksums.
            **INTERPRETED,
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        },
    )
    yield spark
    end(spark)
