"""A real MongoDB and a real Spark with Delta, each started once per process of the run.

A missing mongod or Java raises, and so fails every test that asked for it: a suite that skips what
it cannot run proves nothing.
"""

from __future__ import annotations

import ast
import itertools
import os
from collections.abc import Callable, Iterator
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
from cdc.pipeline import end, session
from cdc.pipeline.spark.spark_session import LOCAL
from tests.jvm import INTERPRETED, SERIAL
from tests.mongo.access import Guarded, GuardedCluster, guarded_cluster, guarded_server

_numbers = itertools.count(1)
FOLDER = Path(__file__).parent
_JVMS = ("landing", "followers", "jobs")
# The files of `tests/delta` about what follows a changelog. They take as long as all others there.
_OF_FOLLOWERS = frozenset(
    f"tests/delta/test_{name}.py"
    for name in (
        *("followers", "followers_at_once", "history", "live_view", "mirror", "point_in_time"),
        *("rebuild", "sql_view", "typed_mirror"),
    )
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests that take longest come first, so that no process is left with one of them at the end.

    These are the tests that share a JVM: those of the tables, on which it warms up best, before
    those of the whole job. Among the slow ones these are programs, which start a JVM of their own.
    """
    is_slow = _is_slow(config)

    def rank(item: pytest.Item) -> int:
        scope = _scope(item.nodeid)
        if scope in _JVMS:
            return 4 * (scope == "jobs") if is_slow else _JVMS.index(scope)
        return 3 if scope != item.nodeid else 4

    items.sort(key=rank)


class ByScope(LoadScopeScheduling):
    """Gives all tests of one scope to one process."""

    # Not by marks: with pytest 9, xdist 3.8 heeds no `xdist_group`.
    def _split_scope(self, nodeid: str) -> str:
        return _scopes(self.config)(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByScope:
    return ByScope(config, log)


def _scopes(config: pytest.Config) -> Callable[[str], str]:
    return _scope_of_slow if _is_slow(config) else _scope_of_fast


def _is_slow(config: pytest.Config) -> bool:
    return bool(config.getoption("-m") == "slow")


def _scope(nodeid: str) -> str:
    """The scope of a test.

    Tests that ask for `spark` have one of three scopes. The tests of a file that share servers have
    one, so that these are started once. Each other test has its own.
    """
    path, _, test = nodeid.partition("::")
    if test.partition("[")[0] in _list_spark_tests(path):
        if not path.startswith("tests/delta/"):
            return "jobs"
        return "followers" if path in _OF_FOLLOWERS else "landing"
    return path if _shares_servers(path) else nodeid


def _scope_of_fast(nodeid: str) -> str:
    """The scope of a test that is not slow: that of the whole job goes on in the JVM of the
    followers, which is warm by then. Together they take about as long as the landing does."""
    scope = _scope(nodeid)
    return "followers" if scope == "jobs" else scope


def _scope_of_slow(nodeid: str) -> str:
    """The scope of a slow test: that of the whole job is divided, because it takes so long that a
    third JVM pays."""
    scope = _scope(nodeid)
    return nodeid.partition("::")[0] if scope == "jobs" else scope


@cache
def _list_spark_tests(path: str) -> frozenset[str]:
    """The functions of a file that ask for `spark`, themselves or by a fixture of the file."""
    tree = ast.parse((FOLDER.parent / path).read_text())
    arguments = {
        each.name: [argument.arg for argument in each.args.args]
        for each in tree.body
        if isinstance(each, ast.FunctionDef)
    }

    def asks(name: str) -> bool:
        return name == "spark" or any(map(asks, arguments.get(name, ())))

    return frozenset(filter(asks, arguments))


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
            "spark.driver.extraJavaOptions": f"{LOCAL['spark.driver.extraJavaOptions']} {SERIAL}",
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
    end(spark)
