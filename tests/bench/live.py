"""A stream that runs: how fresh its tables are under load, and what it costs without any."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet

from cdc.delta.sink import BatchReport
from cdc.pipeline import Replication
from cdc.pipeline import config as configuration
from tests.bench.processes import SERVER, cpu_seconds
from tests.bench.result import Result
from tests.bench.stage import CHANGED, Stage

_WRITES_PER_SECOND = 200
# Some 300 commits, with those in which Delta writes its checkpoints.
_FIRST_SECONDS, _WARM_SECONDS, _SECONDS = 60, 30, 210
_CHANGELOG = "bench/changed/changelog"
# Once the followers have caught up. A batch without changes is made every 60 s.
_SETTLE_SECONDS, _IDLE_SECONDS = 30, 120


def run(stage: Stage) -> Iterator[Result]:
    # The first stream of a JVM is slower.
    with _running(stage, stage.fresh("first"), {}, []):
        _write(stage, _FIRST_SECONDS)
    idle: list[Result] = []
    ages, _ = _measure(stage, "live", then=lambda path: idle.append(_idle(path)))
    yield from _freshness("changelog", ages, {"p50": 0.8, "p99": 2.0})
    yield from idle
    yield from compare(stage)
    ages, mirror_ages = _measure(stage, "followed", "sink.mirror.interval=0")
    yield from _freshness("changelog, mirror.interval = 0", ages, {"p50": 0.8, "p99": 2.0})
    yield from _freshness("mirror, mirror.interval = 0", mirror_ages, {"p50": 4.0})


def _freshness(table: str, ages: list[float], goals: dict[str, float]) -> Iterator[Result]:
    for name, goal in goals.items():
        age = _percentile(ages, name)
        yield Result(
            f"freshness of a write, {table}, {name}",
            "s",
            ours=age,
            goal=f"at most {goal} s from commit to table",
            met=age <= goal,
        )


def compare(stage: Stage) -> Iterator[Result]:
    """Two streams of the same writes at the same time, each by its own way of reading."""
    paths = {by: stage.fresh(by) for by in ("auto", "change_stream")}
    seen: dict[str, dict[int, float]] = {by: {} for by in paths}
    with ExitStack() as both:
        for by, path in paths.items():
            both.enter_context(_running(stage, path, seen[by], [f"source.read.by={by}"]))
        began = time.time() + _WARM_SECONDS
        _write(stage, _WARM_SECONDS + _SECONDS)
        for found in seen.values():
            _wait_until_reported(found)
    ages, others = (sorted(_ages(path / _CHANGELOG, seen[by], began)) for by, path in paths.items())
    for name in ("p50", "p99"):
        age, other = _percentile(ages, name), _percentile(others, name)
        yield Result(
            f"freshness, a stream by the oplog beside one by a change stream, {name}",
            "s",
            ours=age,
            peer=other,
            goal="not worse by more than a tenth",
            met=age <= 1.1 * other,
        )


def _percentile(ages: list[float], name: str) -> float:
    return ages[int(len(ages) * int(name[1:]) / 100)]


def _measure(
    stage: Stage, name: str, *options: str, then: Callable[[Path], object] = lambda path: None
) -> tuple[list[float], list[float]]:
    """Seconds from each write to changelog and mirror, ascending.

    `then` is called with the folder while the stream still runs.
    """
    path, seen = stage.fresh(name), dict[int, float]()
    with _running(stage, path, seen, options):
        began = time.time() + _WARM_SECONDS
        written = _write(stage, _WARM_SECONDS + _SECONDS)
        _wait_until_reported(seen)
        then(path)
    log, mirror = path / _CHANGELOG, path / "bench/changed/mirror"
    ages = sorted(_ages(log, seen, began))
    assert len(ages) > written * _SECONDS / (_WARM_SECONDS + _SECONDS) / 2
    return ages, sorted(_ages(log, _visible(mirror, seen), began))


def _visible(mirror: Path, batches: Iterable[int]) -> dict[int, float]:
    """When the mirror contained each batch."""
    made: list[tuple[int, float]] = []
    for file in sorted((mirror / "_delta_log").glob("*.json")):
        info = _commit_info(file)
        if "userMetadata" in info:
            made.append((json.loads(info["userMetadata"])["batch"], file.stat().st_mtime))
    times = {batch: [time for last, time in made if last >= batch] for batch in batches}
    return {batch: min(found) for batch, found in times.items() if found}


@contextmanager
def _running(
    stage: Stage, path: Path, seen: dict[int, float], options: Iterable[str]
) -> Iterator[None]:
    given = [f"uri={stage.server.uri}", f"collections={CHANGED}", "mode=latest"]
    given += [f"sink.path={path}", *options]
    config = configuration.load(None, given)

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
    """Seconds from each write to the moment at which its batch was seen."""
    for commit in sorted((log / "_delta_log").glob("*.json")):
        reported = _commit_info(commit)
        if "userMetadata" not in reported:
            continue
        visible = seen[json.loads(reported["userMetadata"])["batch"]]
        for action in map(json.loads, commit.read_text().splitlines()):
            if "add" in action:
                path = log / action["add"]["path"]
                rows = pyarrow.parquet.read_table(path, columns=["wall_time"])
                for wall in rows["wall_time"].to_pylist():
                    if wall is not None and wall.timestamp() >= began:
                        yield visible - wall.timestamp()


def _commit_info(commit: Path) -> dict[str, Any]:
    actions = map(json.loads, commit.read_text().splitlines())
    [info] = [each["commitInfo"] for each in actions if "commitInfo" in each]
    return dict(info)


def _idle(path: Path) -> Result:
    time.sleep(_SETTLE_SECONDS)
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
