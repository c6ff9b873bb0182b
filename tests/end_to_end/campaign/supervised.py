"""A job that is started again whenever it ends, as a scheduler would."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import psutil

from jobs.config import Config
from tests.end_to_end.job import Job

# What a run may end with when a server, the network or a disk fails it: not 2, bad arguments.
_KILLED = (-9, 137)
MAY_END_WITH = {*_KILLED, 1, 3}
_REST_SECONDS = 0.5


class Supervised:
    """`endings` counts exit codes; -9 is a kill."""

    def __init__(self, config: Config, folder: Path) -> None:
        self._config, self._folder = config, folder
        self._job = Job(config, folder)
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

    def _supervise(self) -> None:
        while not self._stop.is_set():
            code, said = self._job.ended(None)
            if self._stop.is_set():
                return
            self._job.kill()  # what is left of its processes
            self.endings[code] += 1
            if code not in MAY_END_WITH:
                self.unexpected.append(f"the job ended with {code}: {said[-500:]}")
            self._stop.wait(_REST_SECONDS)
            if not self._stop.is_set():
                self._job = Job(self._config, self._folder)

    def kill(self) -> None:
        """Driver, JVM and workers at once."""
        self._job.kill()

    def said(self) -> str:
        """What the job has said last."""
        return self._job.said()

    def jvm(self) -> psutil.Process | None:
        return next((each for each in self._processes() if each.name() == "java"), None)

    def workers(self) -> list[psutil.Process]:
        """Python workers of tasks, and the planner's."""
        jvm = self.jvm()
        found = [] if jvm is None else jvm.children(recursive=True)
        return [each for each in found if "python" in each.name()]

    def _processes(self) -> Iterator[psutil.Process]:
        try:
            job = psutil.Process(self._job.process.pid)
            yield from [job, *job.children(recursive=True)]
        except psutil.NoSuchProcess:
            return
