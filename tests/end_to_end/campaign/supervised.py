"""A job that is started again whenever it ends, as a scheduler would."""

from __future__ import annotations

import shutil
import signal
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Self

import libfaketime
import psutil
import pyspark

from cdc.pipeline import Config
from tests.end_to_end.job import IN_PYTHON, Job

# What a run may end with when a server, the network or a disk fails it, or a server says that its
# oplog does not reach back: not 2, bad arguments.
_KILLED = (-9, 137)
MAY_END_WITH = {*_KILLED, 1, 3, 4}
_REST_SECONDS = 0.5
# Processes by what stands in their command lines.
_DRIVER, _EXECUTOR = "replicate", "CoarseGrainedExecutorBackend"


class Supervised:
    """`endings` counts exit codes; -9 is a kill. `unexpected` lists in words those that should
    not have been. The job gets more variables in its `environment`, and ends with those in
    `may_end_with`."""

    def __init__(
        self,
        config: Config,
        folder: Path,
        command: tuple[str, ...] = IN_PYTHON,
        environment: Mapping[str, str] = MappingProxyType({}),
        may_end_with: Collection[int] = MAY_END_WITH,
    ) -> None:
        self._config, self._folder, self._command = config, folder, command
        self.environment, self._may_end_with = environment, may_end_with
        self._clock = folder / "clock"
        self.set_clock(0)
        self._job = self._started()
        self._stop = threading.Event()
        self.endings = Counter[int]()
        self.unexpected = list[str]()
        self._thread = threading.Thread(target=self._supervise, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._job.kill()
        self._thread.join()
        # What executors were sent, which nobody else removes where they are killed.
        shutil.rmtree(Path(pyspark.__file__).parent / "work", ignore_errors=True)

    def _started(self) -> Job:
        environment = {**by_the_clock_of(self._clock), **self.environment}
        return Job(self._config, self._folder, command=self._command, environment=environment)

    def _supervise(self) -> None:
        while not self._stop.is_set():
            code, said = self._job.ended(None)
            if self._stop.is_set():
                return
            self._job.kill()  # what is left of its processes
            self.endings[code] += 1
            if code not in self._may_end_with:
                self.unexpected.append(f"the job ended with {code}: {said[-500:]}")
            self._stop.wait(_REST_SECONDS)
            if not self._stop.is_set():
                self._job = self._started()

    def set_clock(self, seconds: int) -> None:
        """The clock of all its processes is wrong by so much, from within a second on."""
        aside = self._clock.with_suffix(".new")
        aside.write_text(f"{seconds:+d}\n")
        aside.replace(self._clock)

    def kill(self) -> None:
        """Driver, JVM, executors and workers at once."""
        self._job.kill()

    def end(self, seconds: float) -> int:
        """Ends the job in order, as a scheduler does; returns how it ended. It is not started
        again. Raises TimeoutExpired if it goes on for longer."""
        self._stop.set()
        self._job.process.send_signal(signal.SIGTERM)
        return self._job.process.wait(seconds)

    def said(self) -> str:
        """What the job has said last."""
        return self._job.said()

    def says(self, text: str) -> Callable[[], bool]:
        """Whether it has said that from now on."""
        log = self._folder / "job.log"
        begun = log.stat().st_size
        return lambda: text.encode() in log.read_bytes()[begun:]

    def jvm(self) -> psutil.Process | None:
        """The driver's."""
        return next((each for each in self._java() if _EXECUTOR not in _command(each)), None)

    def workers(self) -> list[psutil.Process]:
        """Executors, Python workers of tasks, and the planner's."""
        executors = [each for each in self._java() if _EXECUTOR in _command(each)]
        python = [each for each in self._processes() if "python" in _name(each)]
        return executors + [each for each in python if _DRIVER not in _command(each)]

    def _java(self) -> list[psutil.Process]:
        return [each for each in self._processes() if _name(each) == "java"]

    def _processes(self) -> Iterator[psutil.Process]:
        try:
            job = psutil.Process(self._job.process.pid)
            yield from [job, *job.children(recursive=True)]
        except psutil.NoSuchProcess:
            return


def _name(process: psutil.Process) -> str:
    """Empty if it has ended meanwhile."""
    try:
        return process.name()
    except psutil.NoSuchProcess:
        return ""


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def by_the_clock_of(file: Path) -> dict[str, str]:
    """The environment of a process whose clock differs from ours by what the file says."""
    library = Path(libfaketime.__file__).parent / "vendor/libfaketime/src/libfaketime.so.1"
    return {
        "LD_PRELOAD": str(library),
        "FAKETIME_TIMESTAMP_FILE": str(file),
        "FAKETIME_CACHE_DURATION": "1",
        # What measures how long something takes goes on as it was, as it does when a clock is set.
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        # Else it takes every wait of Java's for one that is over.
        "FAKETIME_FORCE_MONOTONIC_FIX": "0",
        "NO_FAKE_STAT": "1",
    }
