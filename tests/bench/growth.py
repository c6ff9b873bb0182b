"""What grows with the data, and what does not."""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from pyspark.sql import functions as F
from pyspark.sql.streaming.datasource import ReadAllAvailable

from cdc import options as declared
from cdc.model import Offset
from cdc.source import ChangeReader
from tests.bench import snapshots
from tests.bench.processes import most_held
from tests.bench.result import Result
from tests.bench.stage import ORDERS, TENTH, Namespace, Stage, copied

_MANY = Namespace("bench", "many")
_FLAT = 0.15
_LEAST_SHARE = 1 / 1.2
_SPLIT_MB = (100_000, 8, 1)
_COLLECTIONS = (1, 100, 1000)


def run(stage: Stage, large: int) -> Iterator[Result]:
    yield from _documents(stage, large)
    yield from snapshots.compare_large(replace(stage, orders=_MANY, documents=large), stage.part)
    yield from _splits(stage)
    yield from _collections(stage)


def _documents(stage: Stage, large: int) -> Iterator[Result]:
    """A tenth of the orders, the orders, and `large` documents made of them by the server."""
    copied(stage.server, _MANY, stage.documents, large // stage.documents)
    _read(stage, TENTH)  # to warm up
    sizes = {TENTH: stage.documents // 10, ORDERS: stage.documents, _MANY: large}
    rates, most = dict[Namespace, float](), dict[Namespace, Counter[str]]()
    for name, size in sizes.items():
        with most_held() as most[name]:
            rates[name] = size / _seconds(lambda name=name: _read(stage, name))
    for name, size in sizes.items():
        share = rates[name] / rates[ORDERS]
        yield Result(
            f"snapshot of {size:,} documents",
            "documents/s",
            ours=rates[name],
            peer=rates[ORDERS],
            goal=f"as with {stage.documents:,}, within 15 %",
            met=share >= 1 - _FLAT,
        )
        for kind, held in most[name].items():
            before = most[ORDERS][kind]
            yield Result(
                f"greatest RSS, {kind}, snapshot of {size:,} documents",
                "MB",
                ours=held / 1e6,
                peer=before / 1e6,
                goal=f"as with {stage.documents:,}, within 15 %",
                met=held <= (1 + _FLAT) * before,
            )


def _splits(stage: Stage) -> Iterator[Result]:
    """The same documents, cut more and more finely; small splits share a task and a cursor."""
    with stage.server.client() as client:
        size = client[ORDERS.db].command("collStats", ORDERS.coll)["size"]
    rates = {}
    for megabytes in _SPLIT_MB:
        count = math.ceil(size / (megabytes * 2**20))
        rates[count] = stage.documents / _seconds(
            lambda megabytes=megabytes: _read(stage, ORDERS, split_size_mb=str(megabytes))
        )
    best = max(rates.values())
    for count, rate in rates.items():
        yield Result(
            f"snapshot in {count:,} splits",
            "documents/s",
            ours=rate,
            peer=best,
            goal="within 20 % of the best number; one split is one task of two",
            met=rate >= _LEAST_SHARE * best or count == 1,
        )


def _collections(stage: Stage) -> Iterator[Result]:
    """Planning of a batch, and the offset, with so many collections in one expression."""
    found = dict[int, tuple[float, int]]()
    with stage.server.client() as client:
        there = 0
        for count in _COLLECTIONS:
            for n in range(there, count):
                client["benchmany"][f"c{n:04d}"].insert_many({"_id": i} for i in range(10))
            there = count
            found[count] = _planned(stage)
    for count, (seconds, size) in found.items():
        first = found[_COLLECTIONS[0]]
        yield Result(
            f"planning a batch of {count:,} collections, offset of {size} bytes",
            "s",
            ours=seconds,
            peer=first[0],
            goal="an offset no larger than 1.15 x, planned in less than a second",
            met=size <= (1 + _FLAT) * first[1] and seconds < 1.0,
        )


def _planned(stage: Stage) -> tuple[float, int]:
    options = {"uri": stage.server.uri, "collections": r"benchmany\..*", "mode": "latest"}
    reader = ChangeReader(declared.parse(options), stage.ours(ORDERS).schema)
    offset: dict[str, Any] = reader.initialOffset()
    with stage.server.client(w="majority") as client:
        client["benchmany"]["c0000"].update_one({"_id": 1}, {"$inc": {"n": 1}})
    began = time.perf_counter()
    end = reader.latestOffset(offset, ReadAllAvailable())
    seconds = time.perf_counter() - began
    reader.stop()
    assert Offset.from_json(end).is_streaming
    return seconds, len(json.dumps(end))


def _read(stage: Stage, namespace: Namespace, **options: str) -> None:
    rows = stage.ours(namespace, **options).select(F.col("after"), F.col("key"))
    rows.write.format("noop").mode("overwrite").save()


def _seconds(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
