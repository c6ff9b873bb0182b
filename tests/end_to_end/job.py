"""The whole job as a process of its own, and how it is killed."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import IO

from cdc.pipeline import Config
from cdc.pipeline.spark.object_storage import packages
from cdc.pipeline.spark.spark_session import delta_packages
from tests.end_to_end.oracle import Checkpoint, Frontier
from tests.jvm import SHORT_LIVED

_STALL_SECONDS = 120
_START_SECONDS = 300  # beside other jobs that start
_MOST_BATCHES = 60

ROOT = Path(__file__).parents[2]
# How the job is started: by itself, or with its executor in a JVM of its own.
IN_PYTHON = (sys.executable, "-m", "cdc.cli.replicate")
# Who applies the changelogs, if that is another program.
FOLLOW = (sys.executable, "-m", "cdc.cli.follow")
WITH_AN_EXECUTOR = (
    str(Path(sys.executable).with_name("spark-submit")),
    *("--master", "local-cluster[1,2,1024]"),
    *("--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.ui.enabled=false"),
    *("--conf", "spark.log.level=ERROR"),
    *("--properties-file", "conf/spark-defaults.conf", "jobs/replicate.py"),
)


def with_jars(command: tuple[str, ...], base: str) -> tuple[str, ...]:
    """The command; under spark-submit with the jars of the object store that `base` is in."""
    if command[0] != WITH_AN_EXECUTOR[0] or not packages(base):
        return command
    return (command[0], "--packages", delta_packages(packages(base)), *command[1:])


# A state of the checkpoint: what has been planned, not yet what has been written.
Phase = Callable[[list[Frontier]], bool]


def arguments(config: Config, *more: str) -> list[str]:
    """By which a program gets the source's options, where and by whom a pipeline writes, how often
    it renews mirrors, which tables it has, and more."""
    options = [f"{name}={value}" for name, value in config.source.items()]
    routes = config.layout.default.routes
    options += [f"sink.path={routes['mirror'].base}", f"sink.checkpoint={config.checkpoint}"]
    options.append(f"sink.mirror.interval={config.mirror_interval:.0f}")
    options += [f"sink.write.by={config.write_by}", f"sink.follow.by={config.follow_by}"]
    options += [f"storage.{name}={value}" for name, value in config.storage.options.items()]
    for kind in ("changelog", "history"):
        options.append(f"table.{kind}={routes[kind].template if kind in routes else ''}")
    options += more
    return [item for option in options for item in ("-o", option)]


def program_environment() -> dict[str, str]:
    """The environment of a program of the product that starts a Spark of its own."""
    return {
        **os.environ,
        **SHORT_LIVED,
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


class Job:
    """`mongodb-cdc replicate` as a user starts it, in a process group of its own; with more options
    than those of the configuration's source and where it writes; on a terminal, if so wanted."""

    def __init__(
        self,
        config: Config,
        folder: Path,
        *more: str,
        command: Sequence[str] = IN_PYTHON,
        environment: Mapping[str, str] = MappingProxyType({}),
        on_terminal: bool = False,
    ) -> None:
        self._path = folder / "job.log"
        self._log = self._path.open("ab", buffering=0)
        output = _terminal(self._log) if on_terminal else self._log.fileno()
        self.process = subprocess.Popen(
            [*command, *arguments(config, *more)],
            stdout=output,
            stderr=output,
            start_new_session=True,
            env={**program_environment(), **environment},
            cwd=ROOT,
        )
        if on_terminal:
            os.close(output)

    def kill(self) -> None:
        """And what is left of its processes, if it has ended."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._log.close()

    def ended(self, seconds: float | None = _START_SECONDS) -> tuple[int, str]:
        """How it ended by itself, and what it said last; waited for that long, or for ever."""
        code = self.process.wait(seconds)
        self._log.close()
        return code, self.said()

    def wait_for(self, checkpoint: Checkpoint, reached: Callable[[list[Frontier]], bool]) -> None:
        """Waits as long as the job plans one batch after the other, but not for ever."""
        first, batches, deadline = len(checkpoint.planned()), -1, 0.0
        while not reached(seen := checkpoint.planned()):
            if len(seen) > batches:
                batches, deadline = len(seen), time.monotonic() + _STALL_SECONDS
            assert batches < first + _MOST_BATCHES, "the job went past what was waited for"
            assert self.process.poll() is None, f"the job ended by itself:\n{self.said()}"
            assert time.monotonic() < deadline, f"no batch after {batches}:\n{self.said()}"
            time.sleep(0.02)

    def said(self) -> str:
        """The end of its output."""
        return self._path.read_text(errors="replace")[-3000:]


def _terminal(log: IO[bytes]) -> int:
    """A terminal of 120 columns, which writes to the log what it gets."""
    own, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))

    def copy() -> None:
        # At the end of its last user a terminal is an error to read.
        with suppress(OSError, ValueError):
            while screen := os.read(own, 65536):
                log.write(screen)
        os.close(own)

    threading.Thread(target=copy, daemon=True).start()
    return its


def run_until(
    reached: Phase, checkpoint: Checkpoint, config: Config, folder: Path, longer: float = 0.0
) -> None:
    """Starts the job, and kills it that many seconds after its checkpoint has reached a state."""
    job = Job(config, folder)
    try:
        job.wait_for(checkpoint, reached)
        time.sleep(longer)
    finally:
        job.kill()
