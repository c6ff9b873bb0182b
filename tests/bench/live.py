"""A stream that runs: how fresh its tables are under load, and what it costs without any."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet

from cdc.delta.sink import BatchReport
from cdc.pipeline import Replication
from cdc.pipeline import config as configuration
from tests.bench.processes import SERVER, cpu_seconds
from tests.bench.result import Result
from tests.bench.stage import CHANGED, Stage

_WRITES_PER_SECOND = 200
_WARM_SECONDS, _SECONDS, _IDLE_SECONDS = 20, 40, 30


def run(stage: Stage) -> Iterator[Result]:
    path, seen = stage.fresh("live"), dict[int, float]()
    with _running(stage, path, seen):
        idle = _idle(path)
        began = time.time() + _WARM_SECONDS
        written = _write(stage, _WARM_SECONDS + _SECONDS)
        _wait_until_reported(seen)
    ages = sorted(_ages(path / "bench/changed/changelog", seen, began))
    assert len(ages) > written * _SECONDS / (_WARM_SECONDS + _SECONDS) / 2
    for name, share, goal in (("p50", 0.5, 1.0), ("p99", 0.99, 3.0)):
        age = ages[int(len(ages) * share)]
        yield Result(
            f"freshness of a write, {name}",
            "s",
            ours=age,
            goal=f"at most {goal} s from commit to changelog and mirror",
            met=age <= goal,
        )
    yield idle


@contextmanager
def _running(stage: Stage, path: Path, seen: dict[int, float]) -> Iterator[None]:
    given = [f"uri={stage.server.uri}", f"collections={CHANGED}", "mode=latest"]
    config = configuration.load(None, [*given, f"sink.path={path}"])

    def reported(report: BatchReport) -> None:
        seen[report.batch_id] = time.time()

    replication = Replication(stage.spark, config, on_batch=reported)
    while not seen:
        time.sleep(0.2)
    yield
    replication.stop()


def _write(stage: Stage, seconds: float) -> int:
    """At a steady rate; returns how many."""
    until, written = time.monotonic() + seconds, 0
    with stage.server.client() as client:
        collection = client[CHANGED.db][CHANGED.coll]
        next_one = time.monotonic()
        while time.monotonic() < until:
            collection.update_one({"_id": written % 997}, {"$inc": {"seen": 1}})
            written += 1
            next_one += 1 / _WRITES_PER_SECOND
            time.sleep(max(0.0, next_one - time.monotonic()))
    return written


def _wait_until_reported(seen: dict[int, float]) -> None:
    """Two batches more: the second began when all was written."""
    last = max(seen)
    while max(seen) < last + 2:
        time.sleep(0.1)


def _ages(log: Path, seen: dict[int, float], began: float) -> Iterator[float]:
    """Seconds from each write to the moment at which its batch stood in all tables."""
    for commit in sorted((log / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in commit.read_text().splitlines()]
        [reported] = [each["commitInfo"] for each in actions if "commitInfo" in each]
        if "userMetadata" not in reported:
            continue
        visible = seen[json.loads(reported["userMetadata"])["batch"]]
        for action in actions:
            if "add" in action:
                path = log / action["add"]["path"]
                rows = pyarrow.parquet.read_table(path, columns=["wall_time"])
                for wall in rows["wall_time"].to_pylist():
                    if wall is not None and wall.timestamp() >= began:
                        yield visible - wall.timestamp()


def _idle(path: Path) -> Result:
    time.sleep(5)
    commits = len(list(path.rglob("_delta_log/*.json")))
    before, began = cpu_seconds(), time.monotonic()
    time.sleep(_IDLE_SECONDS)
    used = cpu_seconds() - before
    share = (used.total() - used[SERVER]) / (time.monotonic() - began)
    made = len(list(path.rglob("_delta_log/*.json"))) - commits
    return Result(
        "idle stream",
        "of a core",
        ours=share,
        goal="less than 0.02 of a core, no commits of data",
        met=share < 0.02 and made == 0,
    )
