"""The history: the same versions whatever the order, the batches and the repetition."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from cdc.delta.followers.history import HISTORY, history
from cdc.delta.sink import Sink
from cdc.errors import BadOption
from cdc.model import DROPPED, RENAMED, REPLACED
from tests.delta.batches import batch, change, commits, sink
from tests.delta.timeline import Event, timeline, versions
from tests.slow import slow_but

# Columns may be named as what the sink works with.
NAMED = {"position": "int from n", "lowest": "int from m"}
DDL = {DROPPED: "drop", RENAMED: "rename", REPLACED: "resync"}
HOT = ("hot", "collection")
VERSIONS = "__END_AT IS DISTINCT FROM __START_AT"
Reported = tuple[tuple[str, str], Event]


class Crash(Exception):
    """Stands for a process that ends at this point."""


def crashing(*arguments: Any, write: Callable[..., None] = HISTORY.write) -> None:
    write(*arguments)
    raise Crash


def timelines(random: Random, count: int) -> list[Reported]:
    return [(("db", f"c{n}"), event) for n in range(count) for event in timeline(random, events=10)]


def dealt(random: Random, reported: list[Reported]) -> list[list[Reported]]:
    """In two batches, in any order; some of it in both."""
    batches: list[list[Reported]] = [[], []]
    for each in random.sample(reported, len(reported)):
        for n in random.choice([(0,), (1,), (0, 1)]):
            batches[n].append(each)
    return batches


def row(reported: Reported) -> dict[str, Any]:
    ns, event = reported
    op, document = DDL.get(event.op, event.op), None
    if event.document is not None:
        document = {"n": event.document[0], "m": event.document[1]}
    to = {"to": {"db": "else", "coll": "where"}} if op == "rename" else None
    at = {"time": event.time, "event": event.place}
    return change(op, event.key or None, document, **at, ns=ns, description=to)


def expected(reported: list[Reported], *, tracked: bool = False) -> set[tuple[Any, ...]]:
    by_name: dict[tuple[str, str], list[Event]] = {}
    for ns, event in reported:
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


def tracking_sink(base: Path, track: list[str]) -> Sink:
    keys = {"history": "all/history", "columns": NAMED, "track_history_columns": track}
    return sink(base, changelog="", mirror="", **keys)


def of_document() -> list[Any]:
    return [F.variant_get("document", f"$.{name}", "int").alias(name) for name in ("n", "m")]


@pytest.mark.parametrize("updates", slow_but([], [300, 10_000], soak=[10_000]))
def test_rows_in_any_order_and_number_make_the_versions_of_their_positions(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, updates: int
) -> None:
    """Guards: late rows, deletes and DDL, repeated rows, documents that are copied again, a crash
    after the history's commit, and many updates of a key in one second."""
    random = Random(6)
    reported = timelines(random, 30)
    reported += [(HOT, Event(50, n, "k", "update", (n, 0))) for n in range(1, updates + 1)]

    def target() -> Sink:
        return sink(tmp_path, changelog="", mirror="", history="all/history")

    first, second = dealt(random, reported)
    target().write_batch(batch(spark, [row(each) for each in first], until=100), 0)
    rows = batch(spark, [row(each) for each in second], until=101)
    with monkeypatch.context() as patch:
        patch.setattr(HISTORY, "write", crashing)
        with pytest.raises(Crash):
            target().write_batch(rows, 1)
    target().write_batch(rows, 1)

    table = spark.read.format("delta").load(str(tmp_path / "all/history")).persist()
    assert read(table.where(VERSIONS), *of_document()) == expected(reported)
    then = "__START_AT.time <= t AND (__END_AT.time > t OR __END_AT IS NULL)"
    as_at = read(table.withColumn("t", F.timestamp_seconds(F.lit(5))).where(then), *of_document())
    until_then = expected([each for each in reported if each[1].time <= 5])
    assert {each[:-1] for each in as_at} == {each[:-1] for each in until_then if each[-1] is None}
    assert commits(tmp_path / "all/history") == ["CREATE TABLE", "MERGE", "MERGE"]


@pytest.mark.slow
def test_only_tracked_columns_begin_a_version_and_the_others_are_as_they_were_last(
    spark: SparkSession, tmp_path: Path
) -> None:
    random = Random(7)
    reported = timelines(random, 40)
    for batch_id, part in enumerate(dealt(random, reported)):
        rows = batch(spark, [row(each) for each in part], until=100 + batch_id)
        tracking_sink(tmp_path, ["position"]).write_batch(rows, batch_id)
    table = spark.read.format("delta").load(str(tmp_path / "all/history"))
    columns = [F.col(name) for name in NAMED]
    assert read(table.where(VERSIONS), *columns) == expected(reported, tracked=True)
    changelog = batch(spark, [row(each) for each in reported], until=100)
    columns = [F.variant_get("after", f"$.{name}", "int").alias(name) for name in ("n", "m")]
    whole = history(changelog, columns, track_history_columns=["n"])
    assert read(whole, "n", "m") == expected(reported, tracked=True)


@pytest.mark.slow
def test_a_history_of_typed_columns_keeps_what_does_not_fit_and_grows(
    spark: SparkSession, tmp_path: Path
) -> None:
    columns = {"total": "int", "a.b": "string from a"}
    keys = {"history": "{coll}/history", "columns": columns, "schema_evolution": True}
    target = sink(tmp_path, changelog="", mirror="", **keys)
    documents: list[dict[str, Any]] = [
        {"total": 1, "a": "x"},
        {"total": "one", "a": "x"},
        {"total": "one", "a": "x", "new": 5},
    ]
    rows = [change("update", "k", document, time=n) for n, document in enumerate(documents, 1)]
    target.write_batch(batch(spark, rows[:2], until=2), 1)
    target.write_batch(batch(spark, rows[2:], until=3), 2)
    table = spark.read.format("delta").load(str(tmp_path / "orders/history"))
    rescued = F.to_json("_rescued").alias("_rescued")
    found = table.orderBy("__START_AT").select("total", "`a.b`", "new", rescued).collect()
    assert [tuple(each) for each in found] == [
        (1, "x", None, None),
        (None, "x", None, '{"total":"one"}'),
        (None, "x", 5, '{"total":"one"}'),
    ]


@pytest.mark.slow
def test_a_history_that_is_there_keeps_to_the_columns_it_tracks(
    spark: SparkSession, tmp_path: Path
) -> None:
    first = batch(spark, [change("insert", "k", {"n": 1}, time=1)], until=1)
    tracking_sink(tmp_path, ["position"]).write_batch(first, 0)
    second = batch(spark, [change("update", "k", {"n": 2}, time=2)], until=2)
    with pytest.raises(BadOption, match=r"track\.history\.columns"):
        tracking_sink(tmp_path, ["lowest"]).write_batch(second, 1)
