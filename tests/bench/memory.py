"""The memory of a task that reads and writes, whatever the size of its split and its events."""

from __future__ import annotations

from collections.abc import Iterator

from tests.bench.changes import land_changes
from tests.bench.processes import WORKERS, most_held
from tests.bench.result import Result
from tests.bench.snapshots import land_snapshot
from tests.bench.stage import Namespace, Stage, Window, now

_LARGE = Namespace("bench", "large")
_LARGE_EVENTS, _LARGE_BYTES = 60, 7 * 2**20


def run(stage: Stage) -> Iterator[Result]:
    with most_held() as most:
        land_snapshot(stage, "whole", "split.size.mb=100000", "table.mirror=")
        with stage.server.client(w="majority") as client:
            images = {"enabled": True}
            large = client[_LARGE.db].create_collection(
                _LARGE.coll, changeStreamPreAndPostImages=images
            )
            large.insert_one({"_id": 0, "n": 0, "x": "x" * _LARGE_BYTES})
            began = now(client)
            for _ in range(_LARGE_EVENTS):
                large.update_one({"_id": 0}, {"$inc": {"n": 1}})
            window = Window(_LARGE_EVENTS, began, now(client))
        land_changes(stage, _LARGE, window, "large")
    yield Result(
        "memory of a task",
        "MB",
        ours=most[WORKERS] / 1e6,
        goal="at most 400 MB RSS, for one split of all orders and events of 14 MB",
        met=most[WORKERS] <= 400e6,
    )
