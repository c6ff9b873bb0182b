"""Ctrl-C, as a terminal sends it to all processes of a program: it ends with its code, without a
stack trace, and leaves no process. `replicate`: `tests/end_to_end/test_stop.py`."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from cdc.checkpoint.checkpoint import complete_until
from cdc.cli import replicate
from cdc.demo import ReplicaSet
from cdc.model import Namespace, timestamp
from tests.jvm import SHORT_LIVED
from tests.mongo.capture import Client, failing, until
from tests.slow import slow_but

ROOT = Path(__file__).parents[2]
# What hangs does so for longer than a program may take to end, on any machine.
_HANGS_MS = 400_000
_SECONDS = 120

pytestmark = pytest.mark.timeout(600)


class Program:
    """One of the command's programs in a process group of its own, as a shell starts it."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self._output = folder / "output"
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-c", "from cdc.cli.commands import main; main()", *arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=folder,
                env={**os.environ, **SHORT_LIVED, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)},
            )

    def said(self) -> str:
        return self._output.read_text()

    def processes(self) -> list[psutil.Process]:
        program = psutil.Process(self.process.pid)
        return [program, *program.children(recursive=True)]

    def has_a_jvm(self) -> bool:
        """Spark's own, not the one that finds out how to start it."""
        with suppress(psutil.Error):
            lines = [" ".join(each.cmdline()) for each in self.processes()]
            return any("SparkSubmit" in line and "launcher.Main" not in line for line in lines)
        return False

    def interrupted(self) -> int:
        """How it ends, and all that it started with it."""
        there = self.processes()
        os.killpg(self.process.pid, signal.SIGINT)
        code = self.process.wait(_SECONDS)
        until(lambda: not [each for each in there if is_there(each)], _SECONDS)
        return code

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def is_there(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def ends_cleanly(program: Program, reached: Callable[[], object]) -> None:
    try:
        until(reached, _SECONDS)
        code = program.interrupted()
    finally:
        program.kill()
    assert code == 130, program.said()
    assert not re.search("Traceback|Exception|ERROR", program.said()), program.said()


class Pipeline(NamedTuple):
    """One that has copied a collection, up to a time."""

    orders: Namespace
    at: str
    options: list[str]


@pytest.fixture(scope="module")
def pipeline(
    spark: SparkSession,
    mongod: ReplicaSet,
    mongo: Client,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Pipeline]:
    orders, folder = Namespace("interrupted", "orders"), tmp_path_factory.mktemp("lakehouse")
    mongo[orders.db][orders.coll].insert_many({"_id": number} for number in range(300))
    given = (f"uri={mongod.uri}", f"collections={orders}", f"sink.path={folder}")
    options = [part for each in given for part in ("-o", each)]
    done = CliRunner().invoke(replicate.main, [*options, "--mode", "snapshot"])
    assert done.exit_code == 0, done.output
    at = complete_until(f"{folder}/_checkpoint", orders)
    assert at is not None
    yield Pipeline(orders, timestamp.text(at), options)
    mongo.drop_database(orders.db)


def started(pipeline: Pipeline, mongod: ReplicaSet, folder: Path, name: str, *more: str) -> Program:
    """With what the program has to be given."""
    (folder / "pipeline.toml").touch()
    restored = ["--namespace", "interrupted.restored", "--to-uri", mongod.uri]
    own = {
        "backfill": ["--collection", str(pipeline.orders)],
        "infer": ["--config", str(folder / "pipeline.toml")],
        "restore": [*restored, "--collection", str(pipeline.orders), "--as-of", pipeline.at],
    }
    return Program(folder, name, *pipeline.options, *own.get(name, []), *more)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plan", "status"])
def test_a_program_that_waits_for_its_source_is_ended_by_ctrl_c(
    pipeline: Pipeline, mongod: ReplicaSet, tmp_path: Path, name: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(_SECONDS)
        uri = f"uri=mongodb://127.0.0.1:{silent.getsockname()[1]}"
        ends_cleanly(started(pipeline, mongod, tmp_path, name, "-o", uri), silent.accept)


@pytest.mark.parametrize(
    "name",
    slow_but(
        [],
        ["backfill", "maintain", "replay-dead-letters", "restore", "verify"],
        soak=["backfill", "replay-dead-letters", "restore"],
    ),
)
def test_a_program_whose_jvm_starts_is_ended_by_ctrl_c_and_so_is_that(
    pipeline: Pipeline, mongod: ReplicaSet, tmp_path: Path, name: str
) -> None:
    program = started(pipeline, mongod, tmp_path, name)
    ends_cleanly(program, program.has_a_jvm)


@pytest.mark.parametrize(
    ("name", "command"),
    [
        pytest.param("backfill", "find", marks=pytest.mark.soak),
        pytest.param("infer", "find", marks=pytest.mark.soak),
        pytest.param("verify", "find", marks=pytest.mark.slow),
        pytest.param("restore", "insert", marks=pytest.mark.slow),
    ],
)
def test_a_program_whose_tasks_wait_for_a_server_is_ended_by_ctrl_c_and_so_are_they(
    pipeline: Pipeline, mongod: ReplicaSet, mongo: Client, tmp_path: Path, name: str, command: str
) -> None:
    hanging = {"failCommands": [command], "blockConnection": True, "blockTimeMS": _HANGS_MS}
    with failing(mongo, "alwaysOn", **hanging):
        program = started(pipeline, mongod, tmp_path, name)
        try:
            ends_cleanly(program, lambda: asks(mongo, command))
        finally:
            for operation in running(mongo):  # the server would wait for them
                mongo.admin.command("killOp", op=operation["opid"])


def running(client: Client) -> Iterator[dict[str, Any]]:
    its = {"appName": "mongodb-cdc", "active": True}
    yield from client.admin.aggregate([{"$currentOp": {}}, {"$match": its}])


def asks(client: Client, command: str) -> bool:
    return any(operation["command"].get(command) for operation in running(client))


@pytest.mark.slow
def test_the_demo_is_ended_by_ctrl_c_and_leaves_nothing(tmp_path: Path) -> None:
    program = Program(tmp_path, "demo", "--documents", "3000")
    ends_cleanly(program, lambda: "batch=" in program.said())
    # A process that is killed, which the demo shows, leaves its own folders: Spark's do so too.
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith("mongod-")]
