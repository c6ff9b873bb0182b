"""SIGTERM and Ctrl-C end a job in time, whatever it is doing, and leave no process; what was
not written then is written by the next run."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
from pymongo import MongoClient
from pymongo.database import Database
from pyspark.sql import SparkSession

from cdc.checkpoint import Folder, LocalFiles, hold
from cdc.delta.sink import BatchReport
from cdc.demo import ReplicaSet, load_orders
from cdc.model import Namespace
from cdc.pipeline import Config, Replication
from tests.end_to_end.in_process import replicated
from tests.end_to_end.job import Job
from tests.end_to_end.oracle import Checkpoint, OfReplicaSet, lag, violations
from tests.mongo.capture import failing, until
from tests.slow import slow_but

Client = MongoClient[dict[str, Any]]

pytestmark = pytest.mark.timeout(600)
# What hangs does so for longer than a job may take to end, on any machine.
_HANGS_MS = 400_000
_END_SECONDS = 200
_START_SECONDS = 120
_STOP_SECONDS = 3
_DOCUMENTS = 300


@contextmanager
def hanging(client: Client, command: str) -> Iterator[None]:
    how = {"blockConnection": True, "blockTimeMS": _HANGS_MS}
    with failing(client, "alwaysOn", failCommands=[command], **how):
        yield
        for operation in running(client):  # the server would wait for them
            client.admin.command("killOp", op=operation["opid"])


def refusing(client: Client, command: str) -> AbstractContextManager[None]:
    return failing(client, "alwaysOn", failCommands=[command], errorCode=11600)


@pytest.mark.slow
def test_a_stop_ends_the_wait_for_a_program_that_holds_a_mirror_without_a_changelog(
    mongod: ReplicaSet,
    database: Database[dict[str, Any]],
    spark: SparkSession,
    pipeline: Callable[..., Config],
) -> None:
    """Guards: a stop that waits for `maintain`, and gives the batch up."""
    orders = Namespace(database.name, "orders")
    load_orders(mongod.uri, orders, _DOCUMENTS, must_be_new=True)
    config = pipeline(str(orders), "table.changelog=")
    replicated(spark, config)
    database["orders"].update_one({"_id": 1}, {"$set": {"n": 1}})
    reports = list[BatchReport]()
    with hold(Folder(LocalFiles(), config.checkpoint)):
        replication = Replication(spark, config, on_batch=reports.append)
        until(lambda: replication.status().running is not None, _START_SECONDS)
        time.sleep(_STOP_SECONDS)
        assert reports == []
        began = time.monotonic()
        assert replication.stop(_END_SECONDS)
        assert time.monotonic() - began < _END_SECONDS / 2
    assert len(reports) == 1
    truth = OfReplicaSet(database.client)
    assert violations(spark, truth, config, Checkpoint(config), orders) == []


class Case(NamedTuple):
    """What the server does meanwhile, until when a job runs before it is reported, how often it is
    reported, by what, and how it ends."""

    meanwhile: Callable[[Client], AbstractContextManager[None]]
    is_reached: Callable[[Job, Checkpoint, Client], bool]
    signals: tuple[signal.Signals, ...] = (signal.SIGTERM,)
    code: int = 0
    says: str = "stopped"
    on_terminal: bool = False


def reads(job: Job, checkpoint: Checkpoint, client: Client) -> bool:
    """Documents, in a task."""
    return any(operation["command"].get("find") == "orders" for operation in running(client))


def has_written(job: Job, checkpoint: Checkpoint, client: Client) -> bool:
    return checkpoint.committed() >= 0


def waits_for_the_source(job: Job, checkpoint: Checkpoint, client: Client) -> bool:
    return "trying again" in job.said()


def has_a_jvm(job: Job, checkpoint: Checkpoint, client: Client) -> bool:
    with suppress(psutil.Error):
        return any("SparkSubmit" in " ".join(each.cmdline()) for each in processes(job))
    return False


CASES = {
    "while the JVM starts": Case(lambda client: nullcontext(), has_a_jvm, says=""),
    "while the source refuses a start": Case(
        lambda client: refusing(client, "ping"), waits_for_the_source, says=""
    ),
    "between batches": Case(lambda client: nullcontext(), has_written),
    "between batches, by Ctrl-C": Case(
        lambda client: nullcontext(), has_written, (signal.SIGINT,), on_terminal=True
    ),
    "while a batch is read that takes for ever": Case(
        lambda client: hanging(client, "find"), reads, says="the next run repeats"
    ),
    "while tasks wait for the source": Case(
        lambda client: refusing(client, "find"),
        waits_for_the_source,
        says="the next run repeats",
    ),
    "twice, while a batch is read that takes for ever": Case(
        lambda client: hanging(client, "find"),
        reads,
        (signal.SIGTERM, signal.SIGTERM),
        128 + signal.SIGTERM,
        says="",
    ),
    "twice by Ctrl-C": Case(
        lambda client: hanging(client, "find"),
        reads,
        (signal.SIGINT, signal.SIGINT),
        128 + signal.SIGINT,
        says="",
    ),
}


# What the other cases show as well: a second signal, a stop between batches, a refused start.
_RARE = {
    "between batches",
    "twice, while a batch is read that takes for ever",
    "while the source refuses a start",
}


@pytest.mark.parametrize("name", slow_but([], CASES, soak=_RARE))
def test_a_job_that_is_asked_to_stop_ends_in_time_and_leaves_nothing(
    mongod: ReplicaSet,
    mongo: Client,
    database: Database[dict[str, Any]],
    spark: SparkSession,
    pipeline: Callable[..., Config],
    tmp_path: Path,
    name: str,
) -> None:
    case, orders = CASES[name], Namespace(database.name, "orders")
    load_orders(mongod.uri, orders, _DOCUMENTS, must_be_new=True)
    config = pipeline(str(orders), "retry.seconds=400", "heartbeat.interval=1")
    checkpoint = Checkpoint(config)
    is_long = case.says.startswith("the next")
    seconds = f"sink.stop.seconds={_STOP_SECONDS if is_long else 300}"
    job = Job(config, tmp_path, seconds, on_terminal=case.on_terminal)
    try:
        with case.meanwhile(mongo):
            until(lambda: case.is_reached(job, checkpoint, mongo), _START_SECONDS)
            started = processes(job)
            began = time.monotonic()
            for number in case.signals:
                job.process.send_signal(number)
                time.sleep(0.5)
            code, said = job.ended(_END_SECONDS)
            print(f"{name}: ended after {time.monotonic() - began:.1f} s")
            until(lambda: not [each for each in started if is_there(each)], _END_SECONDS)
            print(f"{name}: nothing was left after {time.monotonic() - began:.1f} s")
    finally:
        job.kill()
    assert code == case.code, said
    assert case.says in said
    assert "Traceback" not in said
    assert "\tat " not in said, "a trace of Java"
    assert case.says or "stopp" in said
    if case.on_terminal:
        shown = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", said)
        assert re.search(rf"{orders} +streaming +300 copied, 0 changes", shown)
        acknowledged = shown.index("stopping after the current batch; a second signal ends it")
        assert re.search(r"stopped: 300 rows in 1 batches", shown[acknowledged:])
        assert "INFO" not in shown
    replicated(spark, config)
    assert violations(spark, OfReplicaSet(mongo), config, checkpoint, orders) == []
    assert lag(config, orders) == 0


@pytest.mark.slow
def test_a_job_ends_while_its_source_stands_still(
    pipeline: Callable[..., Config], tmp_path: Path
) -> None:
    """Guards: the planner's process, which waits for an answer, and would for a while."""
    orders = Namespace("still", "orders")
    with ReplicaSet() as replica_set:
        load_orders(replica_set.uri, orders, _DOCUMENTS, must_be_new=True)
        config = pipeline(str(orders), f"uri={replica_set.uri}", "server.timeout.ms=400000")
        checkpoint, job = Checkpoint(config), Job(config, tmp_path)
        try:
            until(lambda: checkpoint.committed() >= 0, _START_SECONDS)
            started = processes(job)
            replica_set.members[0].freeze()
            began = time.monotonic()
            job.process.send_signal(signal.SIGTERM)
            code, said = job.ended(_END_SECONDS)
            print(f"ended after {time.monotonic() - began:.1f} s")
            until(lambda: not [each for each in started if is_there(each)], _END_SECONDS)
            print(f"nothing was left after {time.monotonic() - began:.1f} s")
        finally:
            job.kill()
            replica_set.members[0].thaw()
    assert code == 0, said
    assert "stopped" in said
    assert "Traceback" not in said


def processes(job: Job) -> list[psutil.Process]:
    """The job and all that it has started."""
    try:
        program = psutil.Process(job.process.pid)
        return [program, *program.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def running(client: Client) -> list[dict[str, Any]]:
    """The connector's operations on the server."""
    its = {"appName": "mongodb-cdc", "active": True}
    return list(client.admin.aggregate([{"$currentOp": {}}, {"$match": its}]))


def is_there(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # it ended between the two questions
        return False
