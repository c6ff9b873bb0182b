"""`kill -9` of the whole job, driver, JVM and workers at once, restarted from its checkpoint."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pymongo.database import Database
from pyspark.sql import SparkSession

from cdc.model.selection import Namespace
from jobs.config import Config
from jobs.load import Writers, load_orders
from jobs.mongod import ReplicaSet
from tests.end_to_end.oracle import Checkpoint, Frontier, violations

_STALL_SECONDS = 120
_MOST_BATCHES = 60
# Each is the state of the checkpoint at which the job is killed: what has been planned, not yet
# what has been written.
_PHASES: dict[str, Callable[[list[Frontier]], bool]] = {
    "first batch": lambda seen: len(seen) >= 1,
    "snapshot": lambda seen: len(seen) >= 3 and seen[-1].below is not None,
    "hand-over": lambda seen: bool(seen) and seen[-1].below is None,
    "stream": lambda seen: _streamed(seen) >= 2,
}


def _streamed(seen: list[Frontier]) -> int:
    return sum(1 for offset in seen if offset.below is None)


class Job:
    """`mongodb-cdc replicate` as a user starts it, in a process group of its own."""

    def __init__(self, config: Config, folder: Path) -> None:
        options = [f"{name}={value}" for name, value in config.source.items()]
        options += [f"sink.path={config.checkpoint.removesuffix('/_checkpoint')}"]
        arguments = [item for option in options for item in ("-o", option)]
        self._path = folder / "job.log"
        self._log = self._path.open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "jobs.replicate", *arguments],
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            # These JVMs do not live long enough for the second compiler to pay.
            env={**os.environ, "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1"},
            cwd=Path(__file__).parents[2],
        )

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._log.close()

    def wait_for(self, checkpoint: Checkpoint, reached: Callable[[list[Frontier]], bool]) -> None:
        """Waits as long as the job plans one batch after the other, but not for ever."""
        first, batches, deadline = len(checkpoint.planned()), -1, 0.0
        while not reached(seen := checkpoint.planned()):
            if len(seen) > batches:
                batches, deadline = len(seen), time.monotonic() + _STALL_SECONDS
            assert batches < first + _MOST_BATCHES, "the job went past what was waited for"
            assert self.process.poll() is None, f"the job ended by itself:\n{self._tail()}"
            assert time.monotonic() < deadline, f"no batch after {batches}:\n{self._tail()}"
            time.sleep(0.02)

    def _tail(self) -> str:
        return self._path.read_text(errors="replace")[-3000:]


def _campaign(
    mongod: ReplicaSet,
    namespace: Namespace,
    config: Config,
    folder: Path,
    phases: list[str],
    chance: random.Random,
    problems: Callable[[Checkpoint], list[str]],
) -> None:
    """Kills the job in each phase, up to a second and a half later; asks for problems after each
    kill, and after a last run that more batches have been committed in."""
    checkpoint = Checkpoint(config)
    with Writers(mongod.uri, namespace, threads=1):
        for phase in phases:
            job = Job(config, folder)
            try:
                job.wait_for(checkpoint, _PHASES.get(phase) or _some_batches_later(checkpoint))
                time.sleep(chance.uniform(0, 1.5))
            finally:
                job.kill()
            assert problems(checkpoint) == [], f"after a kill in phase '{phase}'"
        job = Job(config, folder)
        try:
            before = checkpoint.committed()
            job.wait_for(checkpoint, lambda _: checkpoint.committed() >= before + 2)
        finally:
            job.kill()
    assert _streamed(checkpoint.planned()) >= 3
    assert problems(checkpoint) == [], "after the last run"


def _some_batches_later(checkpoint: Checkpoint) -> Callable[[list[Frontier]], bool]:
    begun = len(checkpoint.planned())
    return lambda seen: len(seen) >= begun + 2


@pytest.mark.timeout(600)
def test_a_job_killed_in_every_phase_goes_on_without_losing_or_doubling_a_change(
    mongod: ReplicaSet,
    database: Database[dict[str, Any]],
    spark: SparkSession,
    pipeline: Callable[..., Config],
    tmp_path: Path,
) -> None:
    orders = Namespace(database.name, "orders")
    load_orders(mongod.uri, orders, 8_000, must_be_new=True)
    config = pipeline(str(orders))

    def problems(checkpoint: Checkpoint) -> list[str]:
        return violations(spark, database.client, config, checkpoint, orders)[:20]

    _campaign(mongod, orders, config, tmp_path, list(_PHASES), random.Random(5), problems)


@pytest.mark.soak
def test_a_job_killed_again_and_again_goes_on_without_losing_or_doubling_a_change(
    mongod: ReplicaSet,
    database: Database[dict[str, Any]],
    spark: SparkSession,
    pipeline: Callable[..., Config],
    tmp_path: Path,
) -> None:
    seed = int(os.environ.get("SOAK_SEED", time.time_ns() % 10**6))
    seconds = float(os.environ.get("SOAK_SECONDS", "900"))
    print(f"SOAK_SEED={seed} SOAK_SECONDS={seconds:.0f}")
    chance = random.Random(seed)
    ends, kills, rounds = time.monotonic() + seconds, 0, 0
    while kills < 20 or time.monotonic() < ends:
        orders = Namespace(database.name, f"orders{rounds}")
        load_orders(mongod.uri, orders, 20_000, must_be_new=True)
        folder = tmp_path / str(rounds)
        folder.mkdir()
        config = pipeline(str(orders), f"sink.path={folder / 'lakehouse'}")

        def problems(
            checkpoint: Checkpoint, config: Config = config, orders: Namespace = orders
        ) -> list[str]:
            return violations(spark, database.client, config, checkpoint, orders)[:20]

        phases = [*_PHASES, *["some batches later"] * 5]
        _campaign(mongod, orders, config, folder, phases, chance, problems)
        kills, rounds = kills + len(phases) + 1, rounds + 1
        print(f"round {rounds}: {kills} kills so far, 0 violations")
