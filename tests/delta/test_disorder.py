"""Batches that are handed over in another order than that in which their changes happened."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.delta.batches import batch, sink
from tests.delta.test_history import VERSIONS, Reported, expected, of_document, read, row
from tests.delta.timeline import Event
from tests.slow import slow_but
from tests.soak import choose_seed

# A mirror with hard deletes does not remember what is gone: it gets no such change.
OPS = {("shop", "soft"): ("insert", "update", "delete"), ("shop", "hard"): ("insert", "update")}
_EVENTS = 6


def happened(random: Random, count: int) -> list[list[Reported]]:
    """In its order, batch by batch; to three keys of each collection."""
    batches = list[list[Reported]]()
    for number in range(count):
        batches.append([])
        for ns, ops in OPS.items():
            for time in range(number * _EVENTS, (number + 1) * _EVENTS):
                op, document = random.choice(ops), (random.randrange(9), random.randrange(9))
                image = None if op == "delete" else document
                batches[-1].append((ns, Event(time, 1, random.choice("abc"), op, image)))
    return batches


@pytest.mark.timeout(900)
@pytest.mark.parametrize("count", slow_but([], [3, 8], soak=[8]))
def test_batches_in_any_order_leave_mirrors_and_histories_as_in_their_own(
    spark: SparkSession, tmp_path: Path, count: int
) -> None:
    """Guards: a delete that comes before the insert of what it deletes. The order is never that in
    which the changes happened."""
    random = Random(choose_seed())
    batches = happened(random, count)
    disordered = batches
    while disordered == batches:
        disordered = random.sample(batches, count)
    soft = {"match": r"shop\.sof.", "delete": "soft"}
    target = sink(tmp_path, changelog="", history="all/of/history", overrides=[soft])
    for number, reported in enumerate(disordered):
        until = max(event.time for _, event in reported)
        target.write_batch(batch(spark, [row(each) for each in reported], until=until), number)

    wanted = expected([each for reported in batches for each in reported])
    table = spark.read.format("delta").load(str(tmp_path / "all/of/history"))
    assert read(table.where(VERSIONS), *of_document()) == wanted
    for ns in OPS:
        last = {each[1]: each[2:4] for each in wanted if each[0] == ".".join(ns) and not each[5]}
        assert mirrored(spark, tmp_path / "/".join((*ns, "mirror"))) == last


def mirrored(spark: SparkSession, path: Path) -> dict[str, tuple[Any, ...]]:
    rows = spark.read.format("delta").load(str(path))
    if "_deleted" in rows.columns:
        rows = rows.where(~F.col("_deleted"))
    found = rows.select("key", *of_document()).collect()
    assert len({each.key for each in found}) == len(found)
    return {each.key: tuple(each[1:]) for each in found}
