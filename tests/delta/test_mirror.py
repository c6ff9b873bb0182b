"""The mirror: the collection as of the watermark, whatever order, repetition or DDL."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from bson.timestamp import Timestamp
from delta.tables import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from cdc.delta.followers import MirrorState
from cdc.delta.followers.mirror import placed, state
from cdc.delta.log import Target
from cdc.model import Namespace
from tests.delta import delta_rs
from tests.delta.batches import batch, change, commits, content, sink
from tests.slow import slow_but

MIRROR = "shop/orders/mirror"
ORDERS, ZEBRAS, RIDES = ("shop", "orders"), ("shop", "zebras"), ("fair", "rides")


class Pipeline:
    """A sink of mirrors that is fed one hand-made batch after the other.

    Spark merges them, unless there is a changelog.
    """

    def __init__(self, spark: SparkSession, base: Path, with_changelog: bool = False) -> None:
        self.spark, self.base, self._with_changelog = spark, base, with_changelog
        self.restart()
        self._ids = itertools.count()

    def write(self, *rows: dict[str, Any], until: int, **options: Any) -> None:
        frame = batch(self.spark, rows, until=until, **options)
        self.sink.write_batch(frame, next(self._ids))

    def restart(self) -> None:
        by_spark = not self._with_changelog
        self.sink = sink(self.base, with_changelog=self._with_changelog, by_spark=by_spark)

    def mirror(self, path: str = MIRROR) -> dict[str, Any]:
        return content(self.base / path)

    def commits(self, path: str = MIRROR) -> list[str]:
        return commits(self.base / path)


@pytest.fixture
def pipeline(spark: SparkSession, tmp_path: Path) -> Pipeline:
    return Pipeline(spark, tmp_path)


@pytest.fixture
def landing(spark: SparkSession, tmp_path: Path) -> Pipeline:
    """One with changelogs, whose mirrors Spark merges only where it has to: for much less."""
    return Pipeline(spark, tmp_path, with_changelog=True)


def said(pipeline: Pipeline) -> MirrorState | None:
    """What the newest commit says of the mirror."""
    target = Target(str(pipeline.base / MIRROR))
    return state(pipeline.spark, target, Namespace(*ORDERS))


@dataclass(frozen=True)
class Case:
    """What becomes of keys that no other case has: two batches, and what is left of them."""

    first: list[dict[str, Any]]
    then: list[dict[str, Any]]
    left: dict[str, Any]


CASES = {
    "the last change of each key counts": Case(
        [
            change("insert", "last", {"n": 1}, time=1),
            change("update", "last", {"n": 2}, time=2),
            change("insert", "gone at once", {"n": 1}, time=2, event=2),
            change("delete", "gone at once", time=3),
            change("insert", "gone", {"n": 1}, time=3, event=2),
        ],
        [change("replace", "last", {"m": 3}, time=12), change("delete", "gone", time=13)],
        {"last": {"m": 3}},
    ),
    "a key deleted and inserted again in one batch is there": Case(
        [change("insert", "again", {"n": 1}, time=1)],
        [
            change("delete", "again", time=13),
            change("insert", "again", {"n": 2}, time=13, event=2),
        ],
        {"again": {"n": 2}},
    ),
    "a change older than what the mirror holds changes nothing": Case(
        [
            change("insert", "newer", {"n": 5}, time=5),
            change("insert", "newer too", {"n": 5}, time=5),
        ],
        [
            change("update", "newer", {"n": 4}, time=4),
            change("delete", "newer too", time=4, event=2),
        ],
        {"newer": {"n": 5}, "newer too": {"n": 5}},
    ),
    "a snapshot row lies before an event of the same time": Case(
        [
            change("read", "event", {"from": "snapshot"}, time=10),
            change("update", "event", {"from": "event"}, time=10),
            change("read", "read", {"from": "snapshot"}, time=10),
        ],
        [
            change("read", "event", {"from": "late snapshot"}, time=10),
            change("update", "read", {"from": "event"}, time=10, event=2),
        ],
        {"event": {"from": "event"}, "read": {"from": "event"}},
    ),
    **{
        f"a missing after is never merged: {op}": Case(
            [change("insert", f"there {op}", {"n": 1}, time=1)],
            [
                change("update", f"there {op}", {"n": 2}, time=13),
                change(op, f"there {op}", None, time=14),
                change(op, f"not there {op}", None, time=14, event=2),
            ],
            {f"there {op}": {"n": 2}},
        )
        for op in ("insert", "update", "replace")
    },
    "a missing after does not undo the delete before it": Case(
        [change("insert", "deleted", {"n": 1}, time=1)],
        [change("delete", "deleted", time=13), change("update", "deleted", None, time=14)],
        {},
    ),
}


@pytest.fixture(scope="module")
def both(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    """A mirror after both batches of all cases, each batch in one."""
    pipeline = Pipeline(spark, tmp_path_factory.mktemp("merged"))
    pipeline.write(*(row for case in CASES.values() for row in case.first), until=10)
    pipeline.write(*(row for case in CASES.values() for row in case.then), until=15)
    return pipeline


@pytest.fixture(scope="module")
def merged(both: Pipeline) -> dict[str, Any]:
    return both.mirror()


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_of_each_key_the_last_change_that_can_be_merged_counts(
    merged: dict[str, Any], case: Case
) -> None:
    keys = {row["key"] for row in case.first + case.then}
    assert {key: merged[key] for key in keys & merged.keys()} == case.left


def test_another_engine_reads_of_a_mirror_what_spark_reads(
    both: Pipeline, merged: dict[str, Any]
) -> None:
    """Guards: rows that a deletion vector marks, and VARIANT."""
    assert list((both.base / MIRROR).glob("deletion_vector_*.bin"))
    assert delta_rs.by_key(both.base / MIRROR, "document") == merged


MOVES: dict[str, tuple[list[tuple[str, str]], dict[str, Any] | None]] = {
    "moved": ([("delete", "A"), ("insert", "B")], {"at": "B"}),
    "in reverse": ([("insert", "B"), ("delete", "A")], {"at": "B"}),
    "and updated": ([("insert", "B"), ("update", "B"), ("delete", "A")], {"at": "B", "n": 1}),
    "back": ([("delete", "A"), ("insert", "A"), ("insert", "B"), ("delete", "B")], {"at": "A"}),
    "on": ([("insert", "B"), ("delete", "B"), ("insert", "C"), ("delete", "A")], {"at": "C"}),
    "deleted": ([("insert", "B"), ("delete", "B"), ("delete", "A")], None),
    "only deleted": ([("delete", "A")], None),
    "never there": ([("insert", "A"), ("update", "A"), ("delete", "A")], None),
}


def test_a_document_that_moved_to_another_shard_is_there(landing: Pipeline) -> None:
    """Guards: a move is a delete and an insert of one transaction, in whatever order."""
    landing.write(*(change("insert", key, {"at": "A"}, time=1) for key in MOVES), until=2)
    rows = []
    for key, (happened, _) in MOVES.items():
        for time, (op, shard) in enumerate(happened, 3):
            after = {"at": shard, **({"n": 1} if op == "update" else {})}
            row = change(op, key, None if op == "delete" else after, time=time)
            row["document_key"] = json.dumps({"time": time, "_id": key})
            row["txn"] = {"lsid": "ab", "number": 7, "shard": shard}
            rows.append(row)
    landing.write(*rows, until=9)
    assert landing.mirror() == {key: left for key, (_, left) in MOVES.items() if left}


def test_two_collections_keep_to_themselves(landing: Pipeline) -> None:
    landing.write(
        change("insert", "a", {"n": 1}, time=1),
        change("insert", "a", {"stripes": 9}, time=1, event=2, ns=ZEBRAS),
        until=2,
    )
    before = landing.commits()
    landing.write(change("delete", "a", time=3, ns=ZEBRAS), until=4)
    assert landing.mirror() == {"a": {"n": 1}}
    assert landing.mirror("shop/zebras/mirror") == {}
    assert landing.commits() == before


def to(coll: str) -> dict[str, Any]:
    return {"to": {"db": "shop", "coll": coll}}


# What empties each of three collections, in a run and as the first of one: (op, ns, description).
DDL: dict[str, dict[tuple[str, str], tuple[str, tuple[str, str | None], Any]]] = {
    "in a run": {
        ORDERS: ("drop", ORDERS, None),
        ZEBRAS: ("rename", ZEBRAS, to("old")),
        RIDES: ("dropDatabase", ("fair", None), None),
    },
    "after a restart": {
        ORDERS: ("rename", ("shop", "fresh"), to("orders")),
        ZEBRAS: ("resync", ZEBRAS, None),
        RIDES: ("dropDatabase", ("fair", None), None),
    },
}


@pytest.mark.slow
def test_ddl_empties_the_mirror_of_what_lies_before_it_only(pipeline: Pipeline) -> None:
    first = [change("insert", "c", {}, time=1, ns=("club", "members"))]
    for ns in (ORDERS, ZEBRAS, RIDES):
        first += [
            change("insert", "old", {"n": 1}, time=1, ns=ns),
            change("insert", "both", {"n": 1}, time=1, event=2, ns=ns),
        ]
    pipeline.write(*first, until=2)
    for number, when in enumerate(DDL, 1):
        if when == "after a restart":
            pipeline.restart()
        at, then = 10 * number, list[dict[str, Any]]()
        before, after = {"n": 2 * number}, {"n": 2 * number + 1}
        for ns, (op, reported_of, description) in DDL[when].items():
            if (
                op == "resync"
            ):  # what is copied again may be as of the same time, at the same position
                then.append(change("read", "anew", after, time=at + 5, event=1, ns=ns))
            then += [
                change("insert", "before", before, time=at + 3, ns=ns),
                change("update", "both", before, time=at + 4, ns=ns),
                change(op, None, time=at + 5, ns=reported_of, description=description),
                change("insert", "both", after, time=at + 6, ns=ns),
                change("insert", f"after {number}", after, time=at + 7, ns=ns),
            ]
        pipeline.write(*then, until=at + 8)
        for ns, (op, _, _) in DDL[when].items():
            names = ["both", f"after {number}", *(["anew"] if op == "resync" else [])]
            assert pipeline.mirror("/".join([*ns, "mirror"])) == dict.fromkeys(names, after)
        assert pipeline.mirror("club/members/mirror") == {"c": {}}
    assert pipeline.commits() == ["CREATE TABLE", "MERGE", "MERGE", "MERGE"]


def test_a_resync_of_everything_empties_every_mirror(landing: Pipeline) -> None:
    """Guards: those of collections that were dropped while nobody could see it."""
    landing.write(
        change("insert", "a", {"n": 1}, time=1),
        change("insert", "c", {}, time=1, event=3, ns=("club", "members")),
        until=2,
    )
    landing.restart()
    landing.write(
        change("gap", None, time=3, ns=(None, None), description={"from": "2:1", "to": "4:1"}),
        change("resync", None, time=4, ns=(None, None)),
        change("read", "b", {"n": 2}, time=5),
        until=5,
    )
    assert landing.mirror() == {"b": {"n": 2}}
    assert landing.mirror("club/members/mirror") == {}


def test_rows_that_are_not_exact_are_counted_and_warned_of_once(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    target = sink(tmp_path, with_mirror=False)
    later = {"exactFrom": "9:1"}
    rows = [
        change("insert", "a", {"n": 1}, time=1),
        change("update", "a", {"n": 2}, time=2, description=later),
        change("read", "b", {"n": 2}, time=2, description=later),
    ]
    report = target.write_batch(batch(spark, rows, until=3), 0)
    assert report.inexact == {Namespace("shop", "orders"): 2}
    update = change("update", "a", {"n": 3}, time=4, description=later)
    target.write_batch(batch(spark, [update], until=5), 1)
    assert [each for each in caplog.messages if "exact = false" in each] == [
        "shop.orders: 2 rows are marked exact = false: images are missing, or were taken later; let"
        " the server record them (changeStreamPreAndPostImages)"
    ]


def test_a_drop_alone_empties_the_mirror(landing: Pipeline) -> None:
    landing.write(change("insert", "a", {}, time=1), until=2)
    landing.write(change("drop", None, time=3), until=3)
    assert landing.mirror() == {}
    newest = said(landing)
    assert newest
    assert newest.watermark == Timestamp(3, 1)


def test_a_drop_leaves_alone_what_came_after_it(landing: Pipeline) -> None:
    landing.write(
        change("insert", "a", {}, time=1), change("insert", "b", {}, time=4, event=2), until=5
    )
    landing.write(change("drop", None, time=3), until=6)
    assert landing.mirror() == {"b": {}}


def test_a_drop_of_a_collection_without_a_mirror_makes_none(pipeline: Pipeline) -> None:
    pipeline.write(change("drop", None, time=3), until=3)
    assert not (pipeline.base / MIRROR).exists()


def test_ddl_that_empties_nothing_leaves_the_mirror_alone(pipeline: Pipeline) -> None:
    pipeline.write(change("insert", "a", {}, time=1), until=2)
    before = pipeline.commits()
    pipeline.write(change("createIndexes", None, time=3, description={"i": 1}), until=4)
    assert pipeline.mirror() == {"a": {}}
    assert pipeline.commits() == before


def test_an_idle_batch_commits_nothing(pipeline: Pipeline) -> None:
    pipeline.sink = sink(pipeline.base)
    pipeline.write(until=1)
    assert not list(pipeline.base.iterdir())
    pipeline.write(change("insert", "a", {}, time=2), until=3)
    before = pipeline.commits(), pipeline.commits("shop/orders/changelog")
    pipeline.write(until=4)
    pipeline.sink = sink(pipeline.base)
    pipeline.write(until=5)
    assert (pipeline.commits(), pipeline.commits("shop/orders/changelog")) == before


@pytest.mark.parametrize("restarted", slow_but([True], [True, False]))
def test_the_end_of_a_copy_is_committed_even_without_rows(
    pipeline: Pipeline, restarted: bool
) -> None:
    unfinished = {"shop.orders": {"below": "k"}, "shop.zebras": {"below": None}}
    pipeline.write(change("read", "a", {}, time=1), until=1, copying=unfinished)
    first = said(pipeline)
    assert first
    assert first.copying == {"below": "k"}
    if restarted:
        pipeline.restart()
    pipeline.write(until=2, copying=unfinished)
    assert said(pipeline) == first
    for until in (3, 4):
        pipeline.write(until=until, copied=["shop.orders"] if until == 3 else [])
        last = said(pipeline)
        assert last
        assert (last.watermark, last.copying) == (Timestamp(3, 1), None)
    assert pipeline.mirror() == {"a": {}}


def test_exact_from_is_the_greatest_and_stays_until_the_watermark_has_passed_it(
    landing: Pipeline,
) -> None:
    def exact_from() -> Timestamp | None:
        newest = said(landing)
        assert newest
        return newest.exact_from

    landing.write(
        change("read", "a", {}, time=1, description={"exactFrom": "9:10"}),
        change("read", "b", {}, time=1, description={"exactFrom": "9:9"}),
        until=1,
    )
    assert exact_from() == Timestamp(9, 10)
    landing.restart()
    landing.write(change("insert", "c", {}, time=2), until=3)
    assert exact_from() == Timestamp(9, 10)
    landing.write(change("insert", "d", {}, time=10), until=11)
    assert exact_from() is None


def test_state_is_found_after_commits_of_others(landing: Pipeline) -> None:
    path = str(landing.base / MIRROR)
    assert said(landing) is None
    landing.write(change("insert", "a", {}, time=1), until=2)
    landing.write(change("insert", "b", {}, time=3), until=4)
    before = said(landing)
    assert before
    table = DeltaTable.forPath(landing.spark, path)
    table.optimize().executeCompaction()
    table.delete("key = 'b'")
    for number in range(3):
        landing.spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('others' = '{number}')")
    assert "OPTIMIZE" in landing.commits()
    newest = len(landing.commits()) - 1
    assert said(landing) == replace(before, version=newest)


def test_nothing_of_a_transaction_is_left_in_the_session(pipeline: Pipeline) -> None:
    conf = pipeline.spark.conf
    conf.set("spark.databricks.delta.commitInfo.userMetadata", "the user's own")
    try:
        pipeline.write(change("insert", "a", {}, time=1), until=2)
        assert conf.get("spark.databricks.delta.commitInfo.userMetadata") == "the user's own"
        assert conf.get("spark.databricks.delta.write.txnAppId", None) is None
        assert conf.get("spark.databricks.delta.write.txnVersion", None) is None
    finally:
        conf.unset("spark.databricks.delta.commitInfo.userMetadata")


@pytest.mark.parametrize(
    ("count", "tasks"),
    [
        pytest.param(1, 1, id="few"),
        pytest.param(50_000, 1, id="as many as one task takes"),
        pytest.param(100_000, 3, id="as many as the session's shuffle takes"),
        pytest.param(1_000_000, 20, id="more than that"),
    ],
)
def test_rows_are_merged_in_as_many_tasks_as_they_need(
    spark: SparkSession, count: int, tasks: int
) -> None:
    """Guards: a copy of a large collection is not shuffled into a handful of tasks. What lies in
    three partitions here is folded where it is."""
    rows = spark.range(0, 30, 1, 3).withColumn("key", F.col("id").cast("string"))
    assert placed(rows, ["key"], count).rdd.getNumPartitions() == tasks
