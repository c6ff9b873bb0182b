"""Mirrors and histories without a changelog, whose rows tasks write to files all the same."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from cdc.delta.followers.merges import file_merge
from cdc.delta.sink import Sink
from cdc.delta.tables import writes
from tests.delta import delta_rs
from tests.delta.batches import LandingSink, batch, change, commits, content, sink
from tests.delta.test_dead_letters import BROKEN, images
from tests.delta.test_file_merge import apply, batches_of
from tests.delta.test_followers import lagging
from tests.delta.test_landing import HISTORY, MIRROR, STATES, copying_batches, state
from tests.delta.test_mirror import CASES
from tests.slow import slow_but

BY_FILES, BY_SPARK = "STREAMING UPDATE", "MERGE"
PAST = "shop/orders/history"
TYPED = {"n": "bigint", "inner": "struct<a: int, b: string>", "tags": "array<string>"}


def alone(base: Path, **options: Any) -> Sink:
    """A sink of a mirror without a changelog, whose rows tasks write."""
    own = sink(base, with_changelog=False, **options)
    assert isinstance(own, LandingSink)
    return own


def unnamed_files(table: Path) -> list[str]:
    """The data files in a table's folder that no commit names."""
    logs = [each.read_text() for each in (table / "_delta_log").glob("*.json")]
    names = [each.name for each in table.glob("*.parquet")]
    return [name for name in names if not any(name in log for log in logs)]


def test_copies_and_changes_reach_a_mirror_alone_without_a_merge(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Guards: a file with changes that stays in the folder of the mirror, or becomes part of it."""
    own = alone(tmp_path)
    for number, step in enumerate(copying_batches(spark)):
        own.write_batch(step, number)
        assert state(spark, tmp_path) == STATES[number]
        assert unnamed_files(tmp_path / MIRROR) == []
    assert commits(tmp_path / MIRROR) == ["CREATE TABLE", *[BY_FILES] * 3]
    assert not (tmp_path / "shop/orders/changelog").exists()


@pytest.mark.parametrize("count", slow_but([4], [4, 12]))
def test_any_batches_leave_of_each_key_its_last_image_in_a_mirror_alone(
    spark: SparkSession, tmp_path: Path, count: int
) -> None:
    """Guards: what Spark and files write in turns; rows of a batch that are left out."""
    numbers, expected = random.Random(count), dict[str, Any]()
    steps = batches_of(numbers, count)
    by_spark = numbers.randrange(1, count)
    for number, rows in enumerate(steps):
        options = {"by_spark": True} if number == by_spark else {}
        own = sink(tmp_path, with_changelog=False, **options)
        own.write_batch(batch(spark, [*rows], until=1000 * (number + 1)), number)
        apply(expected, rows)
        assert content(tmp_path / MIRROR) == expected, f"batch {number}"
    made = commits(tmp_path / MIRROR)
    assert (made.count(BY_FILES), made.count(BY_SPARK)) == (len(steps) - 1, 1)


def test_of_each_key_the_last_change_that_can_be_merged_is_in_a_mirror_alone(
    spark: SparkSession, tmp_path: Path
) -> None:
    own = alone(tmp_path)
    for number, until in enumerate((10, 15)):
        rows = [row for case in CASES.values() for row in (case.first, case.then)[number]]
        own.write_batch(batch(spark, rows, until=until), number)
    left = {key: document for case in CASES.values() for key, document in case.left.items()}
    assert content(tmp_path / MIRROR) == left


@pytest.mark.parametrize("loses", ["the commit", "the answer"])
def test_a_batch_reaches_a_mirror_alone_once_whatever_is_lost(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loses: str
) -> None:
    """Guards: documents that are copied twice or never, and a deleted one that comes back."""
    steps = copying_batches(spark)
    alone(tmp_path).write_batch(steps[0], 0)
    original = writes.commit_files

    def commits_files(*args: Any, **named: Any) -> None:
        if loses == "the answer":
            original(*args, **named)
        raise RuntimeError("the answer was lost")

    monkeypatch.setattr(writes, "commit_files", commits_files)
    with pytest.raises(RuntimeError):
        alone(tmp_path).write_batch(steps[1], 1)
    monkeypatch.setattr(writes, "commit_files", original)
    assert state(spark, tmp_path) == STATES[loses == "the answer"]
    alone(tmp_path).write_batch(steps[1], 1)
    assert state(spark, tmp_path) == STATES[1]
    alone(tmp_path).write_batch(steps[2], 2)
    assert state(spark, tmp_path) == STATES[2]
    assert commits(tmp_path / MIRROR) == ["CREATE TABLE", *[BY_FILES] * 3]


DOCUMENTS: Sequence[Any] = (
    {"n": 1, "inner": {"a": 1, "b": "x", "more": None}, "tags": ["x", None], "other": {"y": [1]}},
    {"n": "no number", "inner": {"a": None}, "tags": "none"},
    {"n": 1.5, "inner": 7, "tags": [], "none": None},
    {},
)


def copied(spark: SparkSession, time: int) -> DataFrame:
    rows = [change("read", str(n), document, time=time) for n, document in enumerate(DOCUMENTS)]
    return batch(
        spark, [*rows, change("insert", f"new {time}", {"n": time}, time=time)], until=time
    )


@pytest.mark.parametrize("columns", slow_but([TYPED], [{}, TYPED]))
def test_copies_of_keys_that_a_mirror_alone_contains_are_merged_by_spark(
    spark: SparkSession, tmp_path: Path, columns: dict[str, str]
) -> None:
    """Guards: a second row of a key, which would stay for ever; and rows that are nowhere but in
    files of the mirror, which Spark has to take from there as the task would have stored them."""
    bases = {by_spark: tmp_path / str(by_spark) for by_spark in (False, True)}
    for by_spark, base in bases.items():
        own = sink(base, with_changelog=False, by_spark=by_spark, columns=columns)
        own.write_batch(copied(spark, 1), 0)
        own.write_batch(copied(spark, 2), 1)
    found = [delta_rs.rows(base / MIRROR) for base in bases.values()]
    assert found[0] == found[1]
    assert len(found[0]) == len(DOCUMENTS) + 2
    assert commits(bases[False] / MIRROR) == ["CREATE TABLE", BY_FILES, BY_SPARK]
    assert commits(bases[True] / MIRROR) == ["CREATE TABLE", BY_SPARK, BY_SPARK]


def test_a_collection_that_is_dropped_and_copied_again_is_in_its_mirror_alone(
    spark: SparkSession, tmp_path: Path
) -> None:
    own = alone(tmp_path)
    own.write_batch(copied(spark, 1), 0)
    dropped = [change("drop", None, time=2), change("insert", "x", {"n": 2}, time=3)]
    own.write_batch(batch(spark, dropped, until=3), 1)
    assert content(tmp_path / MIRROR) == {"x": {"n": 2}}
    own.write_batch(batch(spark, [change("delete", "x", time=4)], until=4), 2)
    own.write_batch(copied(spark, 5), 3)
    assert content(tmp_path / MIRROR).keys() == {"0", "1", "2", "3", "new 5"}


@pytest.mark.parametrize("form", slow_but(["variant"], ["variant", "json"]))
def test_a_copied_document_that_cannot_be_mapped_is_a_dead_letter_of_a_mirror_alone(
    spark: SparkSession, tmp_path: Path, form: str
) -> None:
    """Guards: rows that are nowhere but in files of the mirror, which have no `before`, no reason
    and no bytes."""
    rows = [change("read", key, {"n": 1}, time=1, event=n) for n, key in enumerate("abc")]
    document = "variant" if form == "variant" else "string"
    frame = batch(spark, rows, until=1, document=document)
    frame = images(frame, form, {(rows[1]["position"], "after"): BROKEN})
    report = alone(tmp_path).write_batch(frame, 0)
    assert sum(report.unmappable.values()) == 1
    [letter] = delta_rs.read(
        tmp_path / "_dead_letters", "SELECT key, document_key, raw, reason FROM t"
    )
    assert (letter["key"], letter["raw"]) == ("b", BROKEN)
    assert letter["document_key"] == rows[1]["document_key"]
    assert letter["reason"]
    assert delta_rs.by_key(tmp_path / MIRROR, "document").keys() == {"a", "b", "c"}
    assert commits(tmp_path / MIRROR) == ["CREATE TABLE", BY_FILES]


def test_a_history_beside_a_mirror_has_the_documents_that_tasks_copied_into_the_mirror(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Guards: the same for far less than the next test."""
    alone(tmp_path, history=HISTORY).write_batch(copied(spark, 1), 0)
    assert len(delta_rs.rows(tmp_path / PAST)) == len(DOCUMENTS) + 1


@pytest.mark.slow
@pytest.mark.parametrize("columns", [{}, TYPED], ids=["documents", "typed columns"])
def test_mirrors_and_histories_without_changelogs_contain_what_those_with_one_do(
    spark: SparkSession, tmp_path: Path, columns: dict[str, str]
) -> None:
    """Guards: a history that lacks the documents which tasks copied into its mirror alone."""
    found = {}
    for name, options in {
        "with a changelog": {},
        "without": {"with_changelog": False},
        "a history alone": {"with_changelog": False, "with_mirror": False},
    }.items():
        base = tmp_path / name
        own = sink(base, history=HISTORY, columns=columns, **options)
        assert isinstance(own, LandingSink)
        own.write_batch(copied(spark, 1), 0)
        later = [change("update", "0", {"n": 3, "x": 1}, time=2), change("delete", "1", time=3)]
        own.write_batch(batch(spark, [*later, change("read", "4", {}, time=3)], until=3), 1)
        mirror = delta_rs.rows(base / MIRROR) if options.get("with_mirror", True) else None
        found[name] = mirror, delta_rs.rows(base / PAST)
    (mirror, past), without, only = found.values()
    assert len(past) == 7
    assert without == (mirror, past)
    assert only == (None, past)


def test_collections_with_and_without_a_changelog_share_a_pipeline(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Guards: files of one collection that are taken for those of another."""
    own = sink(tmp_path, overrides=[{"match": "shop.orders", "changelog": ""}])
    assert isinstance(own, LandingSink)
    for number in range(2):
        time, op = 10 * number + 1, "update" if number else "read"
        rows = [
            change(op, key, {"n": time}, time=time, event=event, ns=("shop", coll))
            for event, (key, coll) in enumerate((k, c) for k in "ab" for c in ("orders", "other"))
        ]
        own.write_batch(batch(spark, rows, until=time + 1), number)
        for coll in ("orders", "other"):
            found = content(tmp_path / f"shop/{coll}/mirror")
            assert found == {key: {"n": time} for key in "ab"}
    assert not (tmp_path / "shop/orders/changelog").exists()
    assert commits(tmp_path / "shop/other/changelog").count("STREAMING UPDATE") == 2
    assert commits(tmp_path / MIRROR) == ["CREATE TABLE", BY_FILES, BY_FILES]


@pytest.mark.parametrize("with_changelog", slow_but([False], [False, True]))
def test_a_mirror_whose_columns_somebody_gave_other_names_in_its_files_is_merged_by_spark(
    spark: SparkSession, tmp_path: Path, with_changelog: bool
) -> None:
    """Guards: Delta's notes of these names inside of structs, taken for other columns."""
    options: dict[str, Any] = {"with_changelog": with_changelog, "columns": TYPED}
    sink(tmp_path, **options).write_batch(copied(spark, 1), 0)
    mode = "SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')"
    spark.sql(f"ALTER TABLE delta.`{tmp_path / MIRROR}` {mode}")
    changed = [change("update", "0", {"n": 5, "inner": {"a": 1, "b": "x"}}, time=2)]
    sink(tmp_path, **options).write_batch(batch(spark, changed, until=2), 1)
    rows = spark.read.format("delta").load(str(tmp_path / MIRROR)).where("key = '0'").collect()
    assert [(row.n, row.inner.b) for row in rows] == [(5, "x")]
    assert commits(tmp_path / MIRROR)[-1] == BY_SPARK


def test_a_pipeline_whose_changelog_is_taken_away_applies_what_its_mirror_lacks_of_it_first(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Guards: a mirror that lacked batches when the configuration changed, for ever."""
    first, second, third = copying_batches(spark)
    own = lagging(tmp_path, 0, first)
    own.write_batch(second, 1)
    assert content(tmp_path / MIRROR) == {}
    alone(tmp_path).write_batch(third, 2)
    assert state(spark, tmp_path) == STATES[2]


def test_more_changes_than_fit_into_memory_reach_a_mirror_alone_by_spark(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards: copies beside such changes, which Spark finds in files of the mirror alone."""
    steps = copying_batches(spark)
    own = alone(tmp_path)
    own.write_batch(steps[0], 0)
    monkeypatch.setattr(file_merge, "_MOST_BYTES", 1)
    own.write_batch(steps[1], 1)
    assert state(spark, tmp_path) == STATES[1]
    assert commits(tmp_path / MIRROR) == ["CREATE TABLE", BY_FILES, BY_SPARK]
