"""A changelog of either form gives the collection at each time that it covers, and no other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from bson.timestamp import Timestamp
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from cdc.delta.columns import cdf
from cdc.delta.log import Target, newest_commit
from cdc.delta.reading import as_of
from cdc.delta.tables import Layout
from cdc.errors import BadOption, NotCovered
from cdc.model import Coverage, Namespace, Span
from tests.delta.batches import batch, change, content, sink
from tests.slow import slow_but

# `both` share a changelog of the form of a change data feed; `orders` has one of its own.
OVERRIDES = [{"match": r"both\..*", "changelog": "all/both/changelog", "form": "cdf", "mirror": ""}]
ORDERS, BOTH = ("shop", "orders"), ("both", "orders")
Documents = dict[str, tuple[Any, bool]]


def t(second: int) -> Timestamp:
    return Timestamp(second, 1)


def target(base: Path, ns: tuple[str, str]) -> Target:
    table = Layout.parse(str(base), {}, OVERRIDES).table("changelog", Namespace(*ns))
    assert table is not None
    return table.target


def documents(
    spark: SparkSession, base: Path, ns: tuple[str, str], at: int, **more: Any
) -> Documents:
    """By key, each document and whether it is exact."""
    found = as_of(spark, target(base, ns), Namespace(*ns), t(at), **more)
    rows = found.select("key", F.to_json("document").alias("document"), "exact").collect()
    assert len({row.key for row in rows}) == len(rows)
    return {row.key: (json.loads(row.document), row.exact) for row in rows}


def history(ns: tuple[str, str]) -> list[list[dict[str, Any]]]:
    later = {"exactFrom": "11:1"}
    return [
        [change("read", key, {"n": 0}, time=5, ns=ns) for key in "abc"],
        [
            change("update", "a", {"n": 7}, time=7, ns=ns),
            change("delete", "b", time=8, ns=ns),
            change("update", "c", {"n": 9}, time=9, ns=ns, description=later),
            {**change("update", "a", None, time=10, ns=ns), "exact": False},
        ],
        [
            change("insert", "d", {"n": 13}, time=13, ns=ns),
            change("drop", None, time=14, ns=ns),
            change("create", None, time=15, ns=ns),
            change("insert", "e", {"n": 16}, time=16, ns=ns),
        ],
    ]


def moved(ns: tuple[str, str]) -> list[dict[str, Any]]:
    """A document goes to another shard: each reports it at a time of its own."""
    rows = [change("insert", "m", {"at": "A"}, time=6, ns=ns)]
    rows += [change("delete", "m", time=10, event=7, ns=ns)]
    rows += [change("insert", "m", {"at": "B"}, time=11, event=7, ns=ns)]
    for row, shard in zip(rows[1:], "AB", strict=True):
        row["txn"] = {"lsid": "ab", "number": 7, "shard": shard}
    return rows


@pytest.fixture(scope="module")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same history in both forms; each batch is written by a process of its own, the second
    twice. A neighbour in the shared table has the same keys and is empty at its birth."""
    base = tmp_path_factory.mktemp("lake")
    neighbour, clustered = ("both", "other"), ("both", "moved")
    pairs = zip(history(ORDERS), history(BOTH), (5, 12, 20), strict=True)
    names = ["shop.orders", "both.orders", "both.moved", "both.other", "shop.nothing"]
    for number, (orders, both, until) in enumerate(pairs):
        others = [change("insert", "a", {"n": -1}, time=until, event=9, ns=neighbour)]
        others += [change("drop", None, time=14, event=8, ns=neighbour)] if number == 2 else []
        others += moved(clustered) if number == 1 else []
        frame = batch(
            spark,
            orders + both + others,
            until=until,
            copied=names if number == 0 else [],
            reported={"but": names} if number == 0 else {},
        )
        for _ in range(1 + (number == 1)):
            sink(base, overrides=OVERRIDES, with_mirror=number == 0).write_batch(frame, number)
    return base


STATES: dict[int, Documents] = {
    5: {key: ({"n": 0}, True) for key in "abc"},
    9: {"a": ({"n": 7}, True), "c": ({"n": 9}, False)},
    12: {"a": ({"n": 7}, False), "c": ({"n": 9}, True)},
    14: {},
    16: {"e": ({"n": 16}, True)},
}


@pytest.mark.parametrize("ns", slow_but([ORDERS], [ORDERS, BOTH]), ids=["event", "cdf"])
def test_the_collection_is_as_it_was_at_each_time(
    spark: SparkSession, lake: Path, ns: tuple[str, str]
) -> None:
    """Guards: an image that was taken later is exact from then on; one that is missing makes what
    is known before inexact, and does not undo it."""
    assert {at: documents(spark, lake, ns, at) for at in STATES} == STATES


def test_a_transaction_across_shards_counts_from_the_first_time_that_it_is_reported_at(
    spark: SparkSession, lake: Path
) -> None:
    for at, where in ((9, "A"), (10, "B")):
        assert documents(spark, lake, ("both", "moved"), at) == {"m": ({"at": where}, True)}


def test_a_time_that_is_not_covered_is_refused_with_those_that_are(
    spark: SparkSession, lake: Path
) -> None:
    for at, more in ((4, {}), (21, {}), (26, {"complete_until": t(25)})):
        with pytest.raises(NotCovered) as refused:
            documents(spark, lake, ORDERS, at, **more)
        assert f"5:1 to {25 if more else 20}:1" in str(refused.value)
    assert documents(spark, lake, ORDERS, 25, complete_until=t(25)) == STATES[16]
    with pytest.raises(NotCovered):
        documents(spark, lake, ("shop", "never"), 5)


def test_a_collection_that_is_empty_from_birth_has_its_tables(
    spark: SparkSession, lake: Path
) -> None:
    assert documents(spark, lake, ("shop", "nothing"), 5) == {}
    assert content(lake / "shop/nothing/mirror") == {}


@pytest.mark.slow
def test_what_was_taken_out_or_lost_or_void_is_not_covered(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Guards: what one batch says of it, as the next ones keep it."""

    def said() -> Coverage:
        newest = newest_commit(spark, Target(str(tmp_path / "shop/orders/changelog")))
        assert newest
        return newest[1].state(Namespace(*ORDERS)).whole

    def write(number: int, *rows: dict[str, Any], until: int, **more: Any) -> Coverage:
        frame = batch(spark, list(rows), until=until, **more)
        sink(tmp_path, with_mirror=False).write_batch(frame, number)
        return said()

    own, copying = ["shop.orders"], {"shop.orders": {"below": "k"}}
    out = {"reported": {"but": own}}
    first = change("read", "a", {}, time=2)
    assert write(0, first, until=2, copying=copying, **out) == Coverage()
    gap = change("gap", None, time=2, event=9, ns=(None, None))
    assert write(1, gap, until=4, copying=copying, **out) == Coverage(torn=True)
    assert write(2, change("read", "b", {}, time=5), until=5, copied=own, **out) == Coverage()
    void, resync = change("void", None, time=6), change("resync", None, time=6, event=0)
    assert write(3, resync, void, until=6, copied=own) == Coverage()
    anew = change("read", "b", {}, time=6)  # at the position of the resync, as the source has it
    assert write(4, anew, until=7, copied=own, **out).spans == (Span(t(7)),)
    assert documents(spark, tmp_path, ORDERS, 7) == {"b": ({}, True)}
    assert write(5, until=9, following="shop.others").spans == (Span(t(7), t(9)),)


def test_another_form_is_refused_and_a_view_of_it_is_not(spark: SparkSession, lake: Path) -> None:
    rows = [change("insert", "z", {}, time=21)]
    with pytest.raises(BadOption, match="form"):
        sink(lake, with_mirror=False, form="cdf").write_batch(batch(spark, rows, until=21), 3)
    mine = cdf(target(lake, ORDERS).read(spark))
    kept = target(lake, BOTH).read(spark).where("coll = 'orders'")
    assert sorted(mine.columns) == sorted(kept.columns)
    reported = (
        "_change_type",
        "op",
        "key",
        "to_json(document)",
        "_commit_timestamp = cluster_time",
    )
    shown = sorted(map(str, mine.selectExpr(*reported).collect()))
    assert shown == sorted(map(str, kept.selectExpr(*reported).collect()))
    kinds = [row[0] for row in mine.select("_change_type").collect()]
    assert {kind: kinds.count(kind) for kind in set(kinds)} == {
        "insert": 5,
        "update_postimage": 3,
        "delete": 1,
        "drop": 1,
        "create": 1,
    }
