"""A load that goes on: `LOAD_SECONDS=1800 LOAD_RATE=5000 make load`."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession

from cdc.checkpoint import checkpoint
from cdc.demo import ReplicaSet, load_orders
from cdc.model import Namespace, Timestamp
from cdc.pipeline import Config
from tests.bench.result import machine
from tests.end_to_end.job import Job
from tests.end_to_end.sustained.judged import judged
from tests.end_to_end.sustained.report import Load, show, written
from tests.end_to_end.sustained.samples import Sample, samples
from tests.end_to_end.sustained.writers import Steady

_DOCUMENTS = 50_000
_ORDERS = Namespace("load", "orders")
# A JVM that lives long compiles with all that it has.
_AS_BY_DEFAULT = {"JAVA_TOOL_OPTIONS": ""}


def test_what_grows_without_end_is_distinguished_from_what_goes_up_and_down() -> None:
    chance = random.Random(3)
    flat = Sample(0, 0, 0, 8, 30_000, 140.0, 1100.0, 800.0, 100_000, 1200)
    found = [
        replace(
            flat,
            second=n,
            written=5000 * n,
            lag=chance.randrange(20),
            jvm=chance.uniform(900, 1300),
        )
        for n in range(1800)
    ]
    whole, found = found, found[:180]
    assert Load(5000, 1800, "", whole).growing == {}
    for name in ("driver", "jvm", "workers"):  # as a leak that kills within hours
        leaking = [replace(s, **{name: getattr(s, name) + 0.4 * s.second}) for s in whole]
        assert set(Load(5000, 1800, "", leaking).growing) == {name}
    assert Load(5000, 180, "", found).growing == {}
    assert round(Load(5000, 180, "", found).achieved) == 5000
    for name, step in {"lag": 0.5, "backlog": 1000, "jvm": 10, "workers": 6, "offset": 10}.items():
        rising = [replace(s, **{name: getattr(s, name) + step * s.second}) for s in found]
        assert set(Load(5000, 180, "", rising).growing) == {name}


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_under_a_steady_load_nothing_is_lost_and_lag_and_all_that_is_kept_are_bounded(
    spark: SparkSession, pipeline: Callable[..., Config], tmp_path: Path
) -> None:
    """Lag, backlog, memory and checkpoint do not grow in the second half of the run; how fast the
    server took the writes is reported, and has to be what was asked for. At the end every change is
    looked for."""
    seconds = float(os.environ.get("LOAD_SECONDS", "180"))
    rate = int(os.environ.get("LOAD_RATE", "1000"))
    print(f"LOAD_SECONDS={seconds:.0f} LOAD_RATE={rate}")
    with ReplicaSet(cache_gigabytes=2.0, oplog_megabytes=8192) as server:
        load_orders(server.uri, _ORDERS, _DOCUMENTS, must_be_new=True)
        config = pipeline(str(_ORDERS), f"uri={server.uri}", "split.size.mb=64", "mode=initial")
        job = Job(config, tmp_path, environment=_AS_BY_DEFAULT)
        try:
            load, until = _observed(server, config, job, rate, seconds)
        finally:
            job.kill()
        with server.client() as client:
            events, wrong = judged(spark, client, config, _ORDERS, until, tmp_path)
    load = replace(load, events_checked=events, violations=wrong)
    written(load)
    show(load)
    assert load.violations == []
    assert load.growing == {}, "see build/load.json and build/load.svg"
    assert load.achieved >= 0.95 * rate, "the server did not take as many writes"


def _observed(
    server: ReplicaSet, config: Config, job: Job, rate: int, seconds: float
) -> tuple[Load, Timestamp]:
    """And the time of the last write, which the job has come to."""
    process, found = psutil.Process(job.process.pid), []
    with server.client() as client:
        with Steady(server.uri, _ORDERS, rate, _DOCUMENTS) as steady:
            for sample in samples(config, client, process, lambda: steady.written, steady.behind):
                assert job.process.poll() is None, job.said()
                found.append(sample)
                if sample.second >= found[0].second + seconds:
                    break
        last = client.admin.command("hello")["lastWrite"]["opTime"]["ts"]
        while (
            reported := checkpoint.complete_until(config.checkpoint, _ORDERS)
        ) is None or reported < last:
            assert job.process.poll() is None, job.said()
            time.sleep(1)
        version = client.server_info()["version"]
    return Load(rate, seconds, machine(version), found), last
