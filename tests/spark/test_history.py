"""The history: the same versions whatever the order, the batches and the repetition."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, StructField

from cdc.delta import history as writer
from cdc.delta.facts import DROPPED, RENAMED, REPLACED, Bounds
from cdc.delta.history import history
from cdc.delta.sink import Sink
from cdc.delta.versioned import Scope, Shape, merge
from tests.spark.batches import batch, change, commits, sink
from tests.spark.timeline import Event, timeline, versions

TRACKED = Shape(
    ("_namespace", "key"),
    (StructField("n", IntegerType()), StructField("m", IntegerType())),
    track=("n",),
)
DDL = {DROPPED: "drop", RENAMED: "rename", REPLACED: "resync"}
HOT = ("hot", "collection")
VERSIONS = "__END_AT IS DISTINCT FROM __START_AT"
Told = tuple[tuple[str, str], Event]


class Crash(Exception):
    """Stands for a process that ends at this point."""


def crashing(*arguments: Any, write: Callable[..., None] = writer.write) -> None:
    write(*arguments)
    raise Crash


def timelines(random: Random, count: int) -> list[Told]:
    return [(("db", f"c{n}"), event) for n in range(count) for event in timeline(random, events=10)]


def dealt(random: Random, told: list[Told]) -> list[list[Told]]:
    """In two batches, in any order; some of it in both."""
    batches: list[list[Told]] = [[], []]
    for each in random.sample(told, len(told)):
        for n in random.choice([(0,), (1,), (0, 1)]):
            batches[n].append(each)
    return batches


def row(told: Told) -> dict[str, Any]:
    ns, event = told
    op, document = DDL.get(event.op, event.op), None
    if event.document is not None:
        document = {"n": event.document[0], "m": event.document[1]}
    to = {"to": {"db": "else", "coll": "where"}} if op == "rename" else None
    at = {"time": event.time, "event": event.place}
    return change(op, event.key or None, document, **at, ns=ns, description=to)


def expected(told: list[Told], *, tracked: bool = False) -> set[tuple[Any, ...]]:
    by_name: dict[tuple[str, str], list[Event]] = {}
    for ns, event in told:
        by_name.setdefault(ns, []).append(event)
    return {
        (".".join(ns), key, *each.document, each.start, each.end)
        for ns, events in by_name.items()
        for key in {event.key for event in events} - {""}
        for each in versions(events, key, tracked=tracked)
    }


def read(rows: DataFrame, *image: Any) -> set[tuple[Any, ...]]:
    places = F.col("__START_AT.position"), F.col("__END_AT.position")
    found = rows.select("_namespace", "key", *image, *places).collect()
    assert len(set(found)) == len(found)
    return {tuple(each) for each in found}


def of_document() -> list[Any]:
    return [F.variant_get("document", f"$.{name}", "int").alias(name) for name in ("n", "m")]


def test_rows_in_any_order_and_number_make_the_versions_of_their_positions(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards: late rows, deletes and DDL, repeated rows, documents that are told anew, a crash
    behind the history's commit, and 10,000 updates of a key in one second."""
    random = Random(6)
    told = timelines(random, 30)
    told += [(HOT, Event(50, n, "k", "update", (n, 0))) for n in range(1, 10_001)]

    def target() -> Sink:
        return sink(tmp_path, changelog="", mirror="", history="all/history")

    first, second = dealt(random, told)
    target().write_batch(batch(spark, [row(each) for each in first], until=100), 0)
    rows = batch(spark, [row(each) for each in second], until=101)
    with monkeypatch.context() as patch:
        patch.setattr(writer, "write", crashing)
        with pytest.raises(Crash):
            target().write_batch(rows, 1)
    target().write_batch(rows, 1)

    table = spark.read.format("delta").load(str(tmp_path / "all/history")).persist()
    assert read(table.where(VERSIONS), *of_document()) == expected(told)
    then = "__START_AT.time <= t AND (__END_AT.time > t OR __END_AT IS NULL)"
    as_at = read(table.withColumn("t", F.timestamp_seconds(F.lit(5))).where(then), *of_document())
    until_then = expected([each for each in told if each[1].time <= 5])
    assert {each[:-1] for each in as_at} == {each[:-1] for each in until_then if each[-1] is None}
    assert commits(spark, tmp_path / "all/history") == ["CREATE TABLE", "MERGE", "MERGE"]


@pytest.mark.slow
def test_only_tracked_columns_begin_a_version_and_the_others_are_as_they_were_last(
    spark: SparkSession, tmp_path: Path
) -> None:
    random = Random(7)
    told = timelines(random, 40)
    table = DeltaTable.create(spark).location(str(tmp_path)).addColumns(TRACKED.schema()).execute()
    for part in dealt(random, told):
        rows = [
            (".".join(ns), each.key, each.position, each.op, each.document)
            for ns, each in part
            if each.key
        ]
        schema = "_namespace string, key string, position string, op string"
        frame = spark.createDataFrame(rows, f"{schema}, image struct<n: int, m: int>")
        scopes = [Scope(".".join(ns), each.position, each.op) for ns, each in part if not each.key]
        merge(table, frame, scopes, TRACKED, [Bounds("a", "b")]).execute()
    assert read(table.toDF().where(VERSIONS), "n", "m") == expected(told, tracked=True)
    changelog = batch(spark, [row(each) for each in told], until=100)
    columns = [F.variant_get("after", f"$.{name}", "int").alias(name) for name in ("n", "m")]
    whole = history(changelog, columns, track_history_columns=["n"])
    assert read(whole, "n", "m") == expected(told, tracked=True)
