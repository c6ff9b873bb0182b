"""One mutation against the campaign: a short form of a round, with the faults that it needs."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.dataset
from pymongo.errors import PyMongoError
from pyspark.sql import SparkSession

from cdc.model import Namespace
from cdc.pipeline import Config
from tests.end_to_end.campaign import scene as campaign
from tests.end_to_end.campaign import upon_the_job
from tests.end_to_end.campaign.supervised import Supervised
from tests.end_to_end.job import ROOT, arguments, program_environment
from tests.end_to_end.mutations.mutation import MUTATIONS, Scene, environment
from tests.end_to_end.oracle import (
    Checkpoint,
    Frontier,
    earlier_violations,
    lag,
    live_violations,
    violations,
)

NOT_REACHED, SURVIVED, BY_ITSELF = "not reached", "survived", "the job"
_KILLED = (-9, 137)
_STALL_SECONDS, _END_SECONDS, _READ_SECONDS = 60.0, 120.0, 240.0
_LONGEST = 300
_STREAMED, _A_WHILE_SECONDS = 3, 4.0


@dataclass(frozen=True)
class Outcome:
    """What came of a mutation.

    Attributes:
        name: that of the mutation.
        found_by: the oracles that found it; `the job` if it ended or stalled instead of writing
            what is wrong; empty if none did.
        seconds: until the oracles were done.
        is_reached: whether the defect was executed with an effect.
        example: the first violation.
    """

    name: str
    found_by: tuple[str, ...]
    seconds: float
    is_reached: bool
    example: str = ""

    @property
    def verdict(self) -> str:
        if self.found_by:
            return f"found by {', '.join(self.found_by)}"
        return SURVIVED if self.is_reached else NOT_REACHED


class ShortForm:
    """Runs mutations, one at a time.

    Args:
        sources: opens the servers of a name.
        spark: the session by which the oracles read the tables.
        pipeline: makes the configuration of a pipeline with small splits, from its collections and
            more options.
        seed: decides what is written.
        pause: the seconds for which each writer waits after each write.
    """

    def __init__(
        self,
        sources: Callable[[str], campaign.Source],
        spark: SparkSession,
        pipeline: Callable[..., Config],
        seed: int,
        pause: float = 0.3,
    ) -> None:
        self.spark, self.pipeline, self.pause = spark, pipeline, pause
        self._sources, self._seed, self._rounds = sources, seed, 0

    def run(self, name: str, folder: Path) -> Outcome:
        """Run a mutation, in a new folder; if the name is empty, the product as it is."""
        began, mark = time.monotonic(), folder / "reached"
        folder.mkdir(parents=True)
        needs = MUTATIONS[name].scene if name else Scene()
        given = environment(name, mark, ROOT) if name else {}
        chance = random.Random(f"{self._seed} {self._rounds}")
        run = _Run(self, needs, folder, given, chance)
        try:
            found = run.violations(self._sources(needs.source), self._rounds)
        except _Ended as error:
            found = [f"{BY_ITSELF}: {error}"]
        self._rounds += 1
        by = dict.fromkeys(each.partition(":")[0] for each in found)
        seconds = round(time.monotonic() - began)
        example = " ".join(found[0].split())[:_LONGEST] if found else ""
        return Outcome(name, tuple(by), seconds, mark.exists(), example)


class _Ended(Exception):
    """The job has ended by itself, or writes nothing any more.

    The text is what it has said last: its error, if there is one.
    """

    def __init__(self, what: str, said: str) -> None:
        _, error, rest = said.rpartition("error: ")
        super().__init__(f"{what}: {error}{rest if error else said[-_LONGEST:]}")


class _Run:
    """One run of a pipeline with the `needs` of a mutation, which `given` variables give it."""

    def __init__(
        self,
        form: ShortForm,
        needs: Scene,
        folder: Path,
        given: Mapping[str, str],
        chance: random.Random,
    ) -> None:
        self._form, self._needs, self._folder = form, needs, folder
        self._environment, self._chance = given, chance

    def violations(self, source: campaign.Source, number: int) -> list[str]:
        """All that the oracles find after the run. Raises _Ended."""
        keeping = getattr(source, "keeping_orphans", nullcontext)
        with keeping() if self._needs.keeps_orphans else nullcontext():
            return self._violations(source, number)

    def _violations(self, source: campaign.Source, number: int) -> list[str]:
        namespaces = source.begin(number, self._chance)
        config = self._configure(source, namespaces)
        checkpoint = Checkpoint(config)
        try:
            self._go(source, config, checkpoint, namespaces)
            return list(self._judge(source, config, checkpoint, namespaces))
        finally:
            with suppress(PyMongoError):
                source.end()

    def _configure(self, source: campaign.Source, namespaces: Sequence[Namespace]) -> Config:
        interval = 3_600 if self._needs.reads_live else 1
        return self._form.pipeline(
            ",".join(map(str, namespaces)),
            f"uri={source.uri}",
            f"sink.path={self._folder / 'lakehouse'}",
            f"sink.mirror.interval={interval}",
            *("heartbeat.interval=1", f"read.by={self._needs.read_by}"),
            *source.options,
            *self._needs.options,
        )

    def _go(
        self,
        source: campaign.Source,
        config: Config,
        checkpoint: Checkpoint,
        namespaces: Sequence[Namespace],
    ) -> None:
        chance = self._chance
        with Supervised(
            config, self._folder, environment=self._environment, may_end_with=_KILLED
        ) as job:
            scene = campaign.Scene(job, config, namespaces, self._form.spark, chance)
            faults = {
                **upon_the_job.disturbances(scene, source.refuse),
                "killed after a changelog's commit": (
                    1.0,
                    lambda: upon_the_job.killed_at(scene, "*/*/changelog/_delta_log/[0-9]*.json"),
                ),
                "a while": (1.0, lambda: time.sleep(_A_WHILE_SECONDS)),
            }
            with ExitStack() as stack:
                load = stack.enter_context(source.load(chance))
                load.pause = self._form.pause
                with self._failing(source, namespaces):
                    self._wait(checkpoint, job, _has_streamed(0))
                    for fault in self._needs.faults:
                        planned = len(checkpoint.planned())
                        faults[fault][1]()
                        self._wait(checkpoint, job, _has_streamed(planned))
            last = source.last_write()
            self._wait(
                checkpoint, job, lambda seen: seen[-1].is_streaming and seen[-1].time >= last
            )
            if not self._needs.reads_live:
                deadline = time.monotonic() + _STALL_SECONDS
                while any(_lagging(config, namespaces)) and time.monotonic() < deadline:
                    time.sleep(0.1)
                if code := job.end(_END_SECONDS):
                    raise _Ended(f"it ended with {code}", job.said())
        if load.broken:
            raise AssertionError(f"the load broke: {load.broken}")

    @contextmanager
    def _failing(self, source: campaign.Source, namespaces: Sequence[Namespace]) -> Iterator[None]:
        if not self._needs.failing:
            yield
            return
        data = {"appName": "mongodb-cdc", **self._needs.failing}
        mode = data.pop("mode")
        if "namespace" in data:
            data["namespace"] = data["namespace"].format(namespace=namespaces[0])
        try:
            _configure_failures(source, mode, data)
            yield
        finally:
            _configure_failures(source, "off", {})

    def _wait(
        self, checkpoint: Checkpoint, job: Supervised, enough: Callable[[list[Frontier]], bool]
    ) -> None:
        """For that among the batches that are written; as long as one comes after the other."""
        batches, deadline = -1, time.monotonic() + 2 * _STALL_SECONDS
        while True:
            written = checkpoint.planned()[: checkpoint.committed() + 1]
            if written and enough(written):
                return
            if job.unexpected:
                raise _Ended("it ended", job.unexpected[0])
            if len(written) > batches:
                batches, deadline = len(written), time.monotonic() + _STALL_SECONDS
            if time.monotonic() > deadline:
                raise _Ended(f"it writes no batch after {batches}", job.said())
            time.sleep(0.1)

    def _judge(
        self,
        source: campaign.Source,
        config: Config,
        checkpoint: Checkpoint,
        namespaces: Sequence[Namespace],
    ) -> Iterator[str]:
        truth = source.truth()
        if not self._needs.reads_live:
            yield from _lagging(config, namespaces)
        for namespace in namespaces:
            found = violations(self._form.spark, truth, config, checkpoint, namespace)
            yield from found
            if not found:
                yield from earlier_violations(truth, config, checkpoint, namespace)
            if self._needs.reads_live:
                rows = self._read_live(config, namespace)
                yield from live_violations(rows, truth, config, checkpoint, namespace)

    def _read_live(self, config: Config, namespace: Namespace) -> list[dict[str, Any]]:
        """The rows of the live view, read by a program that has the mutation."""
        out = self._folder / "live"
        program = "tests.end_to_end.mutations.read_live"
        given = [str(namespace), str(out), *arguments(config)[1::2]]
        done = subprocess.run(
            [sys.executable, "-m", program, *given],
            cwd=ROOT,
            env={**program_environment(), **self._environment},
            capture_output=True,
            text=True,
            timeout=_READ_SECONDS,
            check=False,
        )
        if done.returncode:
            raise _Ended("the live view cannot be read", done.stderr)
        rows: list[dict[str, Any]] = pyarrow.dataset.dataset(out).to_table().to_pylist()
        return rows


def _lagging(config: Config, namespaces: Sequence[Namespace]) -> Iterator[str]:
    """The tables that lack batches of their changelog."""
    for namespace in namespaces:
        for kind in ("mirror", "history"):
            is_configured = config.table(kind, namespace) is not None
            if is_configured and (batches := lag(config, namespace, kind)):
                yield f"{kind}: it lacks {batches} batches though nobody writes any more"


def _configure_failures(source: campaign.Source, mode: Any, data: Mapping[str, Any]) -> None:
    point = {"configureFailPoint": "failCommand", "mode": mode, "data": data}
    for member in source.members():
        with member.client() as client:
            client.admin.command(point if data else {key: point[key] for key in list(point)[:2]})


def _has_streamed(since: int) -> Callable[[list[Frontier]], bool]:
    """Whether some batches of changes alone have been written since there were so many."""
    return lambda seen: len(seen) >= since + _STREAMED and seen[-_STREAMED].is_streaming
