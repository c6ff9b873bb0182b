"""`kill -9` of the whole job, driver, JVM and workers at once, restarted from its checkpoint."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pymongo.database import Database
from pyspark.sql import SparkSession

from cdc.delta.sink import BatchReport
from cdc.demo import ReplicaSet, Writers, load_orders
from cdc.model import Namespace
from cdc.pipeline import Config, Replication
from tests.end_to_end.in_process import WRITERS_PAUSE, wait_until
from tests.end_to_end.job import Phase, run_until
from tests.end_to_end.oracle import Checkpoint, Frontier, OfReplicaSet, violations
from tests.soak import soak

_PHASES: dict[str, Phase] = {
    "first batch": lambda seen: len(seen) >= 1,
    "snapshot": lambda seen: len(seen) >= 3 and not _is_copied(seen[-1]),
    "hand-over": lambda seen: bool(seen) and _is_copied(seen[-1]),
    "stream": lambda seen: _streamed(seen) >= 2,
}


def _is_copied(offset: Frontier) -> bool:
    """Whether the one collection is, though the sweep may not have looked for more yet."""
    return offset.copying is None and offset.swept != ""


def _streamed(seen: list[Frontier]) -> int:
    return sum(map(_is_copied, seen))


def _campaign(
    spark: SparkSession,
    mongod: ReplicaSet,
    namespace: Namespace,
    config: Config,
    folder: Path,
    phases: list[str],
    chance: random.Random,
    problems: Callable[[Checkpoint], list[str]],
) -> None:
    """Kills the job in each phase, up to a second and a half later; asks for problems after each
    kill, and after a last run, in this process, that more batches have been committed in."""
    checkpoint = Checkpoint(config)
    with Writers(mongod.uri, namespace, threads=1, pause=WRITERS_PAUSE):
        for phase in phases:
            reached = _PHASES.get(phase) or _some_batches_later(checkpoint)
            run_until(reached, checkpoint, config, folder, longer=chance.uniform(0, 1.5))
            assert problems(checkpoint) == [], f"after a kill in phase '{phase}'"
        before = checkpoint.committed()

        def has_gone_on() -> bool:
            return _streamed(checkpoint.planned()) >= 3 and checkpoint.committed() >= before + 2

        reports: list[BatchReport] = []
        replication = Replication(spark, config, on_batch=reports.append)
        wait_until(has_gone_on, replication, reports)
        replication.stop()
    assert problems(checkpoint) == [], "after the last run"


def _some_batches_later(checkpoint: Checkpoint) -> Phase:
    begun = len(checkpoint.planned())
    return lambda seen: len(seen) >= begun + 2


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("options", [[], ["table.changelog="]], ids=["changelog", "mirror alone"])
def test_a_job_killed_in_its_copy_and_at_the_hand_over_loses_and_doubles_no_change(
    mongod: ReplicaSet,
    database: Database[dict[str, Any]],
    spark: SparkSession,
    pipeline: Callable[..., Config],
    tmp_path: Path,
    options: list[str],
) -> None:
    orders = Namespace(database.name, "orders")
    load_orders(mongod.uri, orders, 8_000, must_be_new=True)
    config = pipeline(str(orders), *options)
    truth = OfReplicaSet(database.client)

    def problems(checkpoint: Checkpoint) -> list[str]:
        return violations(spark, truth, config, checkpoint, orders)[:20]

    phases = ["snapshot", "hand-over"]  # the soak has them all, and more
    _campaign(spark, mongod, orders, config, tmp_path, phases, random.Random(5), problems)


@pytest.mark.soak
def test_a_job_killed_again_and_again_goes_on_without_losing_or_doubling_a_change(
    mongod: ReplicaSet,
    database: Database[dict[str, Any]],
    spark: SparkSession,
    pipeline: Callable[..., Config],
    tmp_path: Path,
) -> None:
    seed, seconds = soak()
    chance = random.Random(seed)
    truth = OfReplicaSet(database.client)
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
            return violations(spark, truth, config, checkpoint, orders)[:20]

        phases = [*_PHASES, *["some batches later"] * 5]
        _campaign(spark, mongod, orders, config, folder, phases, chance, problems)
        kills, rounds = kills + len(phases), rounds + 1
        print(f"round {rounds}: {kills} kills so far, 0 violations")
