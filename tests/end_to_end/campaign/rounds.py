"""Rounds of a campaign: a source under load, a job, and what befalls both; then the oracle."""

from __future__ import annotations

import itertools
import random
import shutil
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from bson.timestamp import Timestamp
from pymongo import MongoClient
from pyspark.sql import SparkSession

from cdc.delta.reading import live
from cdc.errors import NotCovered
from cdc.model import Namespace
from cdc.pipeline import Config
from cdc.pipeline.config import REPLICATE
from tests.bench.result import machine
from tests.end_to_end.campaign import upon_the_job
from tests.end_to_end.campaign.places import Disk, Place
from tests.end_to_end.campaign.report import Report
from tests.end_to_end.campaign.scene import Load, Scene, Source, at_random
from tests.end_to_end.campaign.supervised import Supervised
from tests.end_to_end.job import (
    FOLLOW,
    IN_PYTHON,
    ROOT,
    WITH_AN_EXECUTOR,
    arguments,
    program_environment,
    with_jars,
)
from tests.end_to_end.oracle import (
    Checkpoint,
    Frontier,
    Truth,
    collected,
    live_violations,
    unnamed_files,
    violations,
)

_STALL_SECONDS = 200.0
# Between one fault and the next, at most, in each of two threads.
_PAUSE_SECONDS = 6.0
_MOST_SHOWN = 20
_STREAMED = 4
_BRISK, _SLOW, _LAG_SECONDS = 0.01, 5.0, 60.0
# Of each round one is taken.
_OPTIONS = {
    "snapshot.splits.per.batch": ("2", "8"),
    "max.events.per.batch": ("20000", "100000"),
    "stream.parallelism": ("1", "4"),
    "table.history": ("", "{db}/{coll}/history"),
    "sink.write.by": ("auto", "auto", "spark"),
    "sink.follow.by": ("replicate", "replicate", "follow"),
}
# A round in so many has mirrors without changelogs.
_MIRRORS_ALONE = 5
_ALONE = ("table.changelog=", "table.history=", "sink.follow.by=replicate")
_COMMANDS = (IN_PYTHON, IN_PYTHON, WITH_AN_EXECUTOR)


class Campaign:
    """Rounds on new collections, with one stream of chance. `methods`: the `read.by` of one round
    after the other, again and again. By default it is all that the source has, and the seed decides
    which one is the first. `places`: where tables are; of each round one is taken."""

    def __init__(
        self,
        source: Source,
        spark: SparkSession,
        pipeline: Callable[..., Config],
        seed: int,
        methods: Sequence[str] = (),
        places: Sequence[Place] = (Disk(),),
    ) -> None:
        self._places = places
        self._source, self._spark, self._pipeline = source, spark, pipeline
        first = seed % len(source.methods)
        self._methods = itertools.cycle(
            methods or (*source.methods[first:], *source.methods[:first])
        )
        self._chance = random.Random(seed)
        with MongoClient[dict[str, Any]](source.uri) as client:
            self.report = Report(source.name, seed, machine(client.server_info()["version"]))

    def round(self, folder: Path, seconds: float) -> None:
        """Writers and faults for so long, and writers until the job has streamed some batches, at
        the latest when all is healed. When it has caught up, its tables are compared with the
        oplog."""
        number, chance = self.report.rounds, self._chance
        namespaces = self._source.begin(number, chance)
        folder = folder / str(number)
        folder.mkdir()
        method = next(self._methods)
        options = [f"{name}={chance.choice(values)}" for name, values in _OPTIONS.items()]
        place, lakehouse = chance.choice(self._places), folder / "lakehouse"
        options += _ALONE if chance.randrange(_MIRRORS_ALONE) == 0 else ()
        options += ["heartbeat.interval=1", f"read.by={method}", *self._source.options]

        def configured(*where: str) -> Config:
            uri = f"uri={self._source.uri}"
            return self._pipeline(",".join(map(str, namespaces)), uri, *options, *where)

        config = configured(*place.options(lakehouse))
        command = with_jars(chance.choice(_COMMANDS), config.base)
        checkpoint = Checkpoint(config)
        with (
            Supervised(config, folder, command, place.environment) as job,
            _following(config, folder / "follower", place.environment) as follower,
        ):
            scenes = [
                Scene(
                    *(job, config, namespaces, self._spark, random.Random(each)),
                    follower=follower,
                    has_tables=place.is_here,
                )
                for each in (chance.random(), chance.random())
            ]
            with self._source.load(chance) as load:
                place.begin()
                self._disturb(scenes, checkpoint, load, seconds)
                self._source.heal()
                place.heal(self.report.faults)
                load.pause = _SLOW
                self._wait(checkpoint, job, _has_streamed)
            self._wait(checkpoint, job, partial(_has_all, self._source.last_write()))
        if follower:
            _apply_all(config, place.environment)
        self.report.say("comparing", checkpoint.committed())
        self.report.writes_refused += Counter(load.refused)
        self.report.endings += job.endings
        self.report.violations += job.unexpected + load.broken
        if follower:
            self.report.endings += follower.endings
            self.report.violations += follower.unexpected
        place.bring(lakehouse)
        self._judge(configured(f"sink.path={lakehouse}"), checkpoint, namespaces)
        self.report.rounds += 1
        self.report.methods[method] += 1
        if not self.report.violations:
            self._source.end()
            shutil.rmtree(folder)

    def _disturb(
        self, scenes: list[Scene], checkpoint: Checkpoint, load: Load, seconds: float
    ) -> None:
        """One thread disturbs the servers, and one the job; each one thing at a time. Meanwhile
        as much is written as the job keeps up with."""
        of_servers, of_job = scenes
        heal = self._source.heal
        over = threading.Event()
        with ThreadPoolExecutor(2) as threads:
            counted = self.report.faults
            found = [
                threads.submit(at_random, scene, kinds, over.is_set, _PAUSE_SECONDS, heal, counted)
                for scene, kinds in (
                    (of_servers, self._source.disturbances(of_servers)),
                    (of_job, upon_the_job.disturbances(of_job, self._source.refuse)),
                )
            ]
            began, ends = time.time(), time.monotonic() + seconds
            latest = ends + seconds
            while time.monotonic() < ends or not _has_streamed(_written(checkpoint)):
                is_stuck = time.monotonic() > latest or of_job.job.unexpected
                if is_stuck or any(each.done() for each in found):
                    break
                load.pause = _BRISK if _lag(checkpoint, began) < _LAG_SECONDS else _SLOW
                self.report.say("under faults", checkpoint.committed())
                time.sleep(0.2)
            over.set()
            for each in found:
                each.result()

    def _wait(
        self, checkpoint: Checkpoint, job: Supervised, enough: Callable[[list[Frontier]], bool]
    ) -> None:
        """For that among the batches that are written; as long as one comes after the other."""
        batches, deadline = -1, time.monotonic() + _STALL_SECONDS
        while not enough(_written(checkpoint)):
            if checkpoint.committed() > batches:
                batches, deadline = checkpoint.committed(), time.monotonic() + _STALL_SECONDS
            assert not job.unexpected, job.unexpected
            assert time.monotonic() < deadline, f"no batch after {batches}: {job.said()}"
            self.report.say("catching up", batches)
            time.sleep(0.2)

    def _judge(
        self, config: Config, checkpoint: Checkpoint, namespaces: Sequence[Namespace]
    ) -> None:
        truth = self._source.truth()
        for namespace in namespaces:
            found = violations(self._spark, truth, config, checkpoint, namespace)
            table = config.table("changelog", namespace)
            if table is not None:
                found += self._judge_live_view(truth, config, checkpoint, namespace)
                rows = table.target.read(self._spark)
                copied = rows.where("op = 'read'").count()
                self.report.documents_checked += copied
                self.report.events_checked += rows.count() - copied
            else:
                table = config.table("mirror", namespace)
                assert table is not None
                self.report.documents_checked += table.target.read(self._spark).count()
            self.report.violations += found[:_MOST_SHOWN]
            self.report.unnamed_files += len(unnamed_files(Path(table.target.address)))

    def _judge_live_view(
        self, truth: Truth, config: Config, checkpoint: Checkpoint, namespace: Namespace
    ) -> list[str]:
        try:
            view = live(self._spark, config.layout, namespace).rows
        except NotCovered:  # the mirror has no batch yet
            return []
        rows = collected(view.select("key", "document"))
        return live_violations(rows, truth, config, checkpoint, namespace)


def _following(
    config: Config, folder: Path, environment: Mapping[str, str]
) -> AbstractContextManager[Supervised | None]:
    """The process that applies the changelogs, if the job does not."""
    if config.follow_by == REPLICATE:
        return nullcontext()
    folder.mkdir()
    return Supervised(config, folder, FOLLOW, environment)


def _apply_all(config: Config, environment: Mapping[str, str]) -> None:
    done = subprocess.run(
        [*FOLLOW, *arguments(config), "--available-now"],
        cwd=ROOT,
        env={**program_environment(), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def _lag(checkpoint: Checkpoint, began: float) -> float:
    """How far the last batch that is written is behind now, or the beginning, in seconds."""
    written = _written(checkpoint)
    return time.time() - (written[-1].time.time if written else began)


def _written(checkpoint: Checkpoint) -> list[Frontier]:
    return checkpoint.planned()[: checkpoint.committed() + 1]


def _has_streamed(written: list[Frontier]) -> bool:
    return len(written) >= _STREAMED and written[-_STREAMED].is_streaming


def _has_all(last: Timestamp, written: list[Frontier]) -> bool:
    return bool(written) and written[-1].is_streaming and written[-1].time >= last
