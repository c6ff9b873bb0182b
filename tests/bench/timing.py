"""Side by side: what is compared runs in turns, and each figure is a median of its runs."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

from tests.bench.processes import KINDS, cpu_seconds
from tests.bench.stage import Stage


class Figure(NamedTuple):
    """Seconds: the median of the runs, the least and the most; CPU seconds of a run by the kind of
    process, on average."""

    median: float
    least: float
    most: float
    cpu: dict[str, float]


def side_by_side(
    runs: int,
    stage: Stage,
    works: Mapping[str, Callable[[Stage], object]],
    part: Stage | None = None,
) -> dict[str, Figure]:
    """Each of the works once with a part of the stage to warm up, then all of them in turns."""
    for work in works.values():
        work(part or stage.part)
    taken: dict[str, list[float]] = {name: [] for name in works}
    used = {name: Counter[str]() for name in works}
    for _ in range(runs):
        for name, work in works.items():
            before, began = cpu_seconds(), time.perf_counter()
            work(stage)
            taken[name].append(time.perf_counter() - began)
            used[name].update(cpu_seconds() - before)
    return {
        name: Figure(
            statistics.median(each),
            min(each),
            max(each),
            {kind: used[name][kind] / runs for kind in KINDS},
        )
        for name, each in taken.items()
    }
