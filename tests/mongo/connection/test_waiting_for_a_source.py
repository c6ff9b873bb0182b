"""A job that starts while its server shuts down or steps down waits, as one that runs does."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from pymongo.database import Database
from pymongo.errors import PyMongoError
from pyspark.sql.streaming.datasource import ReadAllAvailable

from cdc import options as declared
from cdc import source
from cdc.demo import ReplicaSet
from cdc.errors import NotPermitted, TransientError
from cdc.source import inquiry
from tests.mongo.access import Guarded
from tests.mongo.capture import Client, Document, failing, filled
from tests.slow import slow_but

# Of a server that goes, or is a primary no more.
CODES = {
    "InterruptedAtShutdown": 11600,
    "ShutdownInProgress": 91,
    "PrimarySteppedDown": 189,
    "NotWritablePrimary": 10107,
}
# Each of some seconds.
_MOST_ROUNDS = 30
QUICK = "heartbeatFrequencyMS=500&serverMonitoringMode=poll"
# All that a start asks by; some of it the driver asks again by itself, once.
COMMANDS = ["ping", "listDatabases", "listCollections", "find", "count", "aggregate"]


def start(uri: str, collections: str, **given: str) -> int:
    """All that a job and its query ask before the first batch is read; returns the number of
    documents."""
    options = {"uri": uri, "collections": collections, "filter": '{"n": {"$exists": false}}'}
    options |= {name.replace("_", "."): value for name, value in given.items()}
    [captured] = inquiry.preflight(declared.parse(options))
    reader = source.ChangeReader(declared.parse(options), None)  # type: ignore[arg-type]
    try:
        first = reader.initialOffset()
        reader.prepareForTriggerAvailableNow()
        end = reader.latestOffset(first, ReadAllAvailable())
        assert reader.partitions(first, end)
    finally:
        reader.stop()
    return captured.documents


@pytest.fixture
def shop(database: Database[Document]) -> Database[Document]:
    filled(database, "orders", []).insert_many([{"_id": n} for n in range(20)])
    return database


@pytest.mark.parametrize("turn", slow_but([0], range(4), soak=[2, 3]))
def test_a_start_asks_again_whatever_a_server_that_goes_refuses(
    mongod: ReplicaSet,
    mongo: Client,
    shop: Database[Document],
    turn: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    uri, matching = f"{mongod.uri}&{QUICK}", f"{shop.name}.(orders)"
    for number, command in enumerate(COMMANDS):
        name, code = [*CODES.items()][(number + turn) % len(CODES)]
        caplog.clear()
        with failing(mongo, {"times": 3}, failCommands=[command], errorCode=code):
            assert start(uri, matching) == 20, f"{name} of {command}"
        assert "trying again" in caplog.text, f"{command} is not asked at a start"


def test_a_start_asks_again_where_connections_end(
    mongod: ReplicaSet, mongo: Client, shop: Database[Document], caplog: pytest.LogCaptureFixture
) -> None:
    uri = f"{mongod.uri}&{QUICK}"
    for command in ("ping", "listCollections", "hello"):
        with failing(mongo, {"times": 3}, failCommands=[command], closeConnection=True):
            assert start(uri, f"{shop.name}.(orders)") == 20, command
    assert "trying again" in caplog.text


def test_a_start_gives_up_after_so_long_without_an_answer(
    mongod: ReplicaSet, mongo: Client, shop: Database[Document], caplog: pytest.LogCaptureFixture
) -> None:
    with (
        failing(mongo, "alwaysOn", failCommands=["ping"], errorCode=11600),
        pytest.raises(TransientError, match="Connecting to MongoDB") as raised,
    ):
        start(f"{mongod.uri}&{QUICK}", f"{shop.name}.orders", retry_seconds="1")
    assert raised.value.exit_code == 3
    assert "trying again" in caplog.text


def test_a_user_that_is_refused_gets_an_error_at_once(
    guarded: Guarded, caplog: pytest.LogCaptureFixture
) -> None:
    filled(guarded.client["refused"], "a", [1])
    known = guarded.user()
    for uri in (guarded.uri("nobody"), known, known.replace("s3cr3t", "other")):
        with pytest.raises(NotPermitted):
            start(uri, "refused.a")
    assert "trying again" not in caplog.text


@pytest.fixture
def alone() -> Iterator[ReplicaSet]:
    with ReplicaSet() as replica_set:
        yield replica_set


def test_jobs_that_start_while_the_primary_steps_down_and_is_restarted_all_start(
    alone: ReplicaSet, caplog: pytest.LogCaptureFixture
) -> None:
    """Guards: what a primary lists that changes meanwhile is listed anew."""
    with alone.client() as client:
        filled(client["shop"], "orders", []).insert_many([{"_id": n} for n in range(20)])
        started, over = list[int](), threading.Event()
        uri, problems = f"{alone.uri}&{QUICK}", list[BaseException]()

        def start_on_and_on() -> None:
            try:
                while not over.is_set():
                    started.append(start(uri, "shop.orders"))
            except BaseException as error:
                problems.append(error)

        starting = threading.Thread(target=start_on_and_on)
        starting.start()
        try:
            rounds = 0
            while rounds < 2 or "trying again" not in caplog.text:
                _wait_for_another(started, starting)
                with suppress(PyMongoError):
                    client.admin.command("replSetStepDown", 1, force=True)
                alone.wait_writable()
                rounds += 1
                assert rounds < _MOST_ROUNDS, "no start met the primary's end"
            _wait_for_another(started, starting)
            alone.members[0].stop()
            alone.members[0].start()
            alone.wait_writable()
            _wait_for_another(started, starting)
        finally:
            over.set()
            starting.join()
    assert problems == []
    assert set(started) == {20}


def _wait_for_another(started: list[Any], starting: threading.Thread) -> None:
    before = len(started)
    while len(started) == before and starting.is_alive():
        starting.join(0.01)


@pytest.fixture(autouse=True)
def _logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
