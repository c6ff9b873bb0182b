"""A real cluster of Spark's own kind on this machine: a master and workers, each a process of its
own. What they have of this project is what comes with a job."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sysconfig
import venv
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Self

import psutil
import pyspark

from tests.end_to_end.test_stop import is_there
from tests.jvm import SHORT_LIVED
from tests.mongo.capture import until

_START_SECONDS = 120
_END_SECONDS = 60
_OWN = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
_URL = re.compile(r"spark://127\.0\.0\.1:\d+")


class Standalone:
    """A master and workers of one core and 1 GiB each, on 127.0.0.1, until the block ends; then
    nothing of it is left. Executors inherit `environment`, and nothing else of the test's own.
    `url` is what spark-submit is to be given."""

    def __init__(self, folder: Path, workers: int, environment: Mapping[str, str]) -> None:
        self._folder, self._count = folder, workers
        self._environment = {**outside(folder), **environment}
        self._daemons: list[subprocess.Popen[bytes]] = []
        self._gone: list[psutil.Process] = []
        self.url = ""

    def __enter__(self) -> Self:
        try:
            self._start("master", "master.Master")
            until(lambda: _URL.search(self._said_by_master()), _START_SECONDS)
            [self.url] = set(_URL.findall(self._said_by_master()))
            for number in range(self._count):
                work = str(self._folder / f"worker-{number}")
                each = ["--cores", "1", "--memory", "1g", "--work-dir", work, self.url]
                self._start(f"worker-{number}", "worker.Worker", *each)
            until(self._is_whole, _START_SECONDS)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for daemon in reversed(self._daemons):
            self._kill(daemon)
        until(lambda: not any(map(is_there, self._gone)), _END_SECONDS)

    def kill_worker(self, number: int) -> None:
        """`kill -9` of a worker, its executors and their Python: a machine that is switched off."""
        self._kill(self._daemons[1 + number])

    def _kill(self, daemon: subprocess.Popen[bytes]) -> None:
        if daemon.poll() is None:
            process = psutil.Process(daemon.pid)
            its = [process, *process.children(recursive=True)]
            for each in its:
                with suppress(psutil.NoSuchProcess):  # its work may have ended since
                    each.kill()
            daemon.wait()
            self._gone += its

    def _start(self, name: str, daemon: str, *arguments: str) -> None:
        program = Path(pyspark.__file__).parent / "bin" / "spark-class"
        with (self._folder / f"{name}.log").open("wb") as log:
            started = subprocess.Popen(
                [str(program), f"org.apache.spark.deploy.{daemon}", *_OWN, *arguments],
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._daemons.append(started)

    def _is_whole(self) -> bool:
        assert all(each.poll() is None for each in self._daemons), self._said_by_master()[-3000:]
        return self._said_by_master().count("Registering worker") == self._count

    def _said_by_master(self) -> str:
        return (self._folder / "master.log").read_text(errors="replace")


def outside(folder: Path) -> dict[str, str]:
    """The environment of a process that knows nothing of this checkout, not even by being started
    in it, and leaves in that folder what Spark leaves."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "PYSPARK_", "SPARK_"))
    }
    own = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_DIRS": str(folder), "PYTHONSAFEPATH": "1"}
    return {**inherited, **SHORT_LIVED, **own}


def environment_without_the_project(folder: Path) -> Path:
    """The Python of an environment that has the packages of this one, but not this project, which
    is installed here by a file that only an environment's own folder is searched for."""
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    ours = sysconfig.get_path("purelib")
    its = sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)})
    Path(its, "packages.pth").write_text(ours)
    command = [str(python), "-P", "-c", "import pyspark, pymongo, numba, cdc"]
    done = subprocess.run(
        command, env=outside(folder), cwd=folder, capture_output=True, text=True, check=False
    )
    assert "No module named 'cdc'" in done.stderr, done.stderr
    return python


class Task(NamedTuple):
    """One that has ended: on which executor, and `Success` or what else became of it."""

    executor: str
    end: str


def tasks(event_log: Path) -> Iterator[Task]:
    """Of an application that has ended, or has been killed, as Spark's event log reports."""
    for line in event_log.read_text().splitlines():
        event = json.loads(line)
        if event["Event"] == "SparkListenerTaskEnd":
            yield Task(event["Task Info"]["Executor ID"], event["Task End Reason"]["Reason"])
