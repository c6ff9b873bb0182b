"""Faults of every kind at random, under writers of every kind; the oracle decides behind each
round."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from cdc.model.selection import Namespace
from cdc.model.timestamp import Timestamp
from jobs.config import Config
from jobs.load import load_orders
from tests.end_to_end.campaign.disturbances import DISTURBANCES, Scene
from tests.end_to_end.campaign.load import Load
from tests.end_to_end.campaign.report import Report
from tests.end_to_end.campaign.supervised import Supervised
from tests.end_to_end.oracle import Checkpoint, OfReplicaSet, violations
from tests.mongo.capture import last_write
from tests.mongo.trio import Trio, three_members

_DOCUMENTS = 5_000
_ROUND_SECONDS = 120.0
_STALL_SECONDS = 300.0
_MOST_TOLD = 20
# A member that does not answer is left for another within seconds, and what is foreign is passed.
_QUICK = ("server.timeout.ms=5000", "heartbeat.interval=1")


@pytest.fixture(scope="module")
def trio() -> Iterator[Trio]:
    with three_members(oplog_megabytes=4096) as running:
        yield running


class Campaign:
    """Rounds on new collections, with one stream of chance."""

    def __init__(
        self, trio: Trio, spark: SparkSession, pipeline: Callable[..., Config], seed: int
    ) -> None:
        self._trio, self._spark, self._pipeline = trio, spark, pipeline
        self._chance = random.Random(seed)
        self.report = Report(seed)

    def round(self, folder: Path, seconds: float) -> None:
        """Writers and faults for so long; then all is healed, the job catches up, and its tables
        are compared with the oplog."""
        number = self.report.rounds
        orders = Namespace(f"campaign{number}", "orders")
        load_orders(self._trio.uri, orders, _DOCUMENTS, must_be_new=True)
        folder = folder / str(number)
        folder.mkdir()
        sink = f"sink.path={folder / 'lakehouse'}"
        config = self._pipeline(str(orders), f"uri={self._trio.uri}", sink, *_QUICK)
        checkpoint = Checkpoint(config)
        with Supervised(config, folder) as job:
            scene = Scene(self._trio, job, config, orders, self._spark, self._chance)
            with Load(self._trio.uri, orders, self._chance.randrange(10**9)) as load:
                self._disturb(scene, checkpoint, seconds)
                self._trio.heal()
            self._wait_for(checkpoint, job, last_write(self._trio.client))
        self.report.writes_refused += load.refused
        self.report.endings += job.endings
        self.report.violations += job.unexpected + load.broken
        self._judge(config, checkpoint, orders)
        self.report.rounds += 1
        self.report.written()

    def _disturb(self, scene: Scene, checkpoint: Checkpoint, seconds: float) -> None:
        kinds = list(DISTURBANCES)
        weights = [weight for weight, _ in DISTURBANCES.values()]
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            scene.a_while()
            [kind] = self._chance.choices(kinds, weights)
            _, disturbance = DISTURBANCES[kind]
            disturbance(scene)
            self.report.faults[kind] += 1
            checkpoint.planned()  # before Spark removes what is told there

    def _wait_for(self, checkpoint: Checkpoint, job: Supervised, last: Timestamp) -> None:
        """Until a committed batch has all; as long as one comes after the other."""
        batches, deadline = -1, time.monotonic() + _STALL_SECONDS
        while not _has_all(checkpoint, last):
            if checkpoint.committed() > batches:
                batches, deadline = checkpoint.committed(), time.monotonic() + _STALL_SECONDS
            assert time.monotonic() < deadline, f"no batch after {batches}: {job.said()}"
            time.sleep(0.2)

    def _judge(self, config: Config, checkpoint: Checkpoint, orders: Namespace) -> None:
        truth = OfReplicaSet(self._trio.client)
        found = violations(self._spark, truth, config, checkpoint, orders)
        self.report.violations += found[:_MOST_TOLD]
        table = config.table("changelog", orders)
        assert table is not None
        self.report.events_checked += table.target.read(self._spark).count()


def _has_all(checkpoint: Checkpoint, last: Timestamp) -> bool:
    planned, committed = checkpoint.planned(), checkpoint.committed()
    if committed < 0:
        return False
    return planned[committed].is_streaming and planned[committed].time >= last


@pytest.mark.soak
def test_a_campaign_of_faults_loses_and_doubles_no_change(
    trio: Trio, spark: SparkSession, pipeline: Callable[..., Config], tmp_path: Path
) -> None:
    seed = int(os.environ.get("SOAK_SEED", time.time_ns() % 10**6))
    seconds = float(os.environ.get("SOAK_SECONDS", "900"))
    print(f"SOAK_SEED={seed} SOAK_SECONDS={seconds:.0f}")
    campaign, ends = Campaign(trio, spark, pipeline, seed), time.monotonic() + seconds
    while time.monotonic() < ends:
        campaign.round(tmp_path, min(_ROUND_SECONDS, seconds))
        campaign.report.show(Console())
        assert campaign.report.violations == []
