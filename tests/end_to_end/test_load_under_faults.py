"""Faults befall a job under a load that goes on: of millions of changes each one is looked for."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from cdc.checkpoint import checkpoint
from cdc.demo import ReplicaSet, load_orders
from cdc.model import Namespace, Timestamp
from cdc.pipeline import Config
from tests.bench.result import machine
from tests.end_to_end.campaign.report import Report
from tests.end_to_end.campaign.scene import Scene, at_random
from tests.end_to_end.campaign.supervised import Supervised
from tests.end_to_end.campaign.upon_the_job import disturbances, fail_commands
from tests.end_to_end.sustained.judged import judged
from tests.end_to_end.sustained.writers import Steady
from tests.soak import soak

_DOCUMENTS = 50_000
_ORDERS = Namespace("load", "orders")
_NEVER = Timestamp(0, 0)
# Between one fault and the next, at most: the job has to get through the load meanwhile.
_PAUSE_SECONDS = 60.0
_STALL_SECONDS = 900.0
# They take both cores for a while where there are millions of rows.
_OF_THE_TABLES = ("table compacted by another", "mirror rewritten by another")


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_of_a_load_during_which_faults_befall_the_job_no_change_is_lost_or_reported_twice(
    spark: SparkSession, pipeline: Callable[..., Config], tmp_path: Path
) -> None:
    seed, seconds = soak()
    rate = int(os.environ.get("LOAD_RATE", "1000"))
    with (
        ReplicaSet(cache_gigabytes=2.0, oplog_megabytes=16_384) as server,
        server.client() as client,
    ):
        report = Report("under load", seed, machine(client.server_info()["version"]))
        load_orders(server.uri, _ORDERS, _DOCUMENTS, must_be_new=True)
        config = pipeline(str(_ORDERS), f"uri={server.uri}", "split.size.mb=64")
        with Supervised(config, tmp_path) as job:
            _wait(config, Timestamp(1, 0))
            scene = Scene(job, config, [_ORDERS], spark, random.Random(seed))
            with Steady(server.uri, _ORDERS, rate, _DOCUMENTS):
                _befall(report, scene, server, seconds)
            last = client.admin.command("hello")["lastWrite"]["opTime"]["ts"]
            _wait(config, last)
            # A job that is killed leaves its mirror some seconds behind.
            assert job.end(_STALL_SECONDS) == 0
        report.endings += job.endings
        events, wrong = judged(spark, client, config, _ORDERS, last, tmp_path)
    report.documents_checked, report.events_checked = _DOCUMENTS, events
    report.violations += job.unexpected + wrong
    report.rounds = 1
    report.written()
    report.show(Console())
    assert report.violations == []


def _befall(report: Report, scene: Scene, server: ReplicaSet, seconds: float) -> None:
    ends = time.monotonic() + seconds
    kinds = disturbances(scene, partial(fail_commands, server.members))
    kinds = {name: each for name, each in kinds.items() if name not in _OF_THE_TABLES}
    at_random(
        scene,
        kinds,
        is_over=lambda: time.monotonic() > ends,
        pause=_PAUSE_SECONDS,
        heal=lambda: None,
        done=report.faults,
    )


def _wait(config: Config, upto: Timestamp) -> None:
    """Until all up to that time is in the tables; as long as the job gets on."""
    reached, deadline = _NEVER, time.monotonic() + _STALL_SECONDS
    while (now := checkpoint.complete_until(config.checkpoint, _ORDERS) or _NEVER) < upto:
        if now > reached:
            reached, deadline = now, time.monotonic() + _STALL_SECONDS
        assert time.monotonic() < deadline, f"nothing after {reached}"
        time.sleep(1)
