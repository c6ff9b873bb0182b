"""What is seen of a job from outside, second by second."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
from pymongo import MongoClient

from cdc.checkpoint import checkpoint
from cdc.pipeline import Config

_MB = 2**20


@dataclass(frozen=True, slots=True)
class Sample:
    """`lag`: seconds that the last batch in all tables is behind the live edge; `backlog`: writes
    after it, about. Memory is RSS, in MB: of the job's own Python, its JVM, and all of Spark's
    Python processes together. `checkpoint` and `offset` are bytes on disk, of all and of the newest
    offset."""

    second: float
    written: int
    batch: int
    lag: int
    backlog: int
    driver: float
    jvm: float
    workers: float
    checkpoint: int
    offset: int


def samples(
    config: Config,
    client: MongoClient[dict[str, object]],
    job: psutil.Process,
    written: Callable[[], int],
    behind: Callable[[int], int],
) -> Iterator[Sample]:
    """One for each second for which there is a batch in all tables, without end."""
    began = time.monotonic()
    folder = Path(config.checkpoint)
    while True:
        last = checkpoint.read(config.checkpoint).last
        if last is not None:
            edge = client.admin.command("hello")["lastWrite"]["majorityOpTime"]["ts"]
            yield Sample(
                round(time.monotonic() - began, 1),
                written(),
                last.batch,
                max(0, edge.time - last.offset.time.time),
                behind(last.offset.time.time),
                *_memory(job),
                sum(_size(path) for path in folder.rglob("*")),
                _size(folder / "offsets" / str(last.batch)),
            )
        time.sleep(1.0)


def _memory(job: psutil.Process) -> tuple[float, float, float]:
    children = job.children(recursive=True)
    jvms = [each for each in children if _is_java(each)]
    workers = [each for jvm in jvms for each in jvm.children(recursive=True)]
    return _rss([job]), _rss(jvms), _rss(workers)


def _is_java(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.name() == "java")
    return False


def _rss(processes: list[psutil.Process]) -> float:
    total = 0
    for each in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            total += each.memory_info().rss
    return total / _MB


def _size(path: Path) -> int:
    """0 for what Spark has removed meanwhile."""
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_size if path.is_file() else 0
    return 0
