"""Batches that a mirror gets by its data files, compared with what Spark's MERGE makes of them."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from delta.tables import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from cdc.delta.followers import pending
from cdc.delta.followers.merges import file_merge
from cdc.delta.log import (
    LiveFiles,
    Target,
    UnsuitableTable,
    require_changeable,
    require_suitable,
)
from cdc.delta.sink import Sink
from cdc.delta.tables import writes
from tests.delta import delta_rs
from tests.delta.batches import LandingSink, batch, change, commits, content, sink
from tests.delta.test_followers import lagging
from tests.slow import slow_but
from tests.soak import choose_seed

MIRROR = "shop/orders/mirror"
BY_FILES, BY_SPARK = "STREAMING UPDATE", "MERGE"


def write(spark: SparkSession, own: Sink, rows: Sequence[dict[str, Any]], number: int) -> None:
    own.write_batch(batch(spark, [*rows], until=1000 * (number + 1)), number)


@pytest.fixture(scope="module")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables whose mirror contains the keys a to f; see `base`."""
    own = tmp_path_factory.mktemp("lake")
    write(spark, sink(own), COPIED, 0)
    return own


@pytest.fixture
def base(lake: Path, tmp_path: Path) -> Path:
    """A lakehouse of the test's own with these tables."""
    return Path(shutil.copytree(lake, tmp_path / "lake"))


COPIED = [change("read", key, {"n": 1}, time=1) for key in "abcdef"]


def later(number: int = 1) -> list[dict[str, Any]]:
    """An update, a delete and an insert; and a change of a key that was changed before."""
    time = 1000 * number + 1
    return [
        change("update", "a", {"n": number}, time=time),
        change("delete", "b", time=time),
        change("insert", f"x{number}", {"n": number}, time=time),
        change("update", f"x{number}", {"n": number + 1}, time=time, event=2),
    ]


AFTER = {**{key: {"n": 1} for key in "acdef"}, "x1": {"n": 2}}


def random_rows(
    numbers: random.Random, batch_number: int, keys: Sequence[str]
) -> list[dict[str, Any]]:
    ops = ("insert", "update", "replace", "delete")
    rows = []
    for event in range(numbers.randrange(1, 30)):
        op = numbers.choice(ops)
        image = None if op == "delete" else {"n": numbers.randrange(1000), "s": "x" * event}
        # An update whose image is missing changes nothing.
        image = None if op == "update" and numbers.random() < 0.1 else image
        key = numbers.choice(keys)
        time = 1000 * batch_number + 1
        rows.append(change(op, key, image, time=time, event=event + 1))
    return rows


def batches_of(numbers: random.Random, count: int) -> list[list[dict[str, Any]]]:
    """A copy, and so many batches of changes of its keys and of others."""
    keys = [f"k{number:02}" for number in range(40)]
    copied = [change("read", key, {"n": 0}, time=1) for key in keys[::2]]
    return [copied, *(random_rows(numbers, number, keys) for number in range(1, count + 1))]


def compact(spark: SparkSession, base: Path) -> None:
    DeltaTable.forPath(spark, str(base / MIRROR)).optimize().executeCompaction()


@pytest.mark.parametrize("count", slow_but([], [4, 12], soak=[12]))
def test_any_batches_make_of_a_mirror_what_spark_makes_of_them(
    spark: SparkSession, tmp_path: Path, count: int
) -> None:
    """Guards: a row that is lost, doubled or kept; a vector that marks another row; files that
    Spark, OPTIMIZE and this way of writing change in turn."""
    numbers = random.Random(choose_seed())
    both = {by_spark: tmp_path / str(by_spark) for by_spark in (False, True)}
    sinks = {by_spark: sink(base, by_spark=by_spark) for by_spark, base in both.items()}
    steps = batches_of(numbers, count)
    optimized, by_spark_too = numbers.sample(range(2, count), 2)
    for number, rows in enumerate(steps):
        if number in (by_spark_too, by_spark_too + 1):
            sinks[False] = sink(both[False], by_spark=number == by_spark_too)
        for by_spark, own in sinks.items():
            if number == optimized:
                compact(spark, both[by_spark])
            write(spark, own, rows, number)
        found = [delta_rs.rows(base / MIRROR) for base in both.values()]
        assert found[0] == found[1], f"batch {number}"
        assert content(both[False] / MIRROR) == content(both[True] / MIRROR)
        found = [as_spark_reads_it(spark, base / MIRROR) for base in both.values()]
        assert found[0] == found[1], f"batch {number}"
        assert len(found[0]) == len(content(both[False] / MIRROR))
    made = commits(both[False] / MIRROR)
    assert made.count(BY_FILES) == len(steps) - 1
    assert BY_FILES not in commits(both[True] / MIRROR)


def test_any_batches_leave_of_each_key_its_last_image(spark: SparkSession, tmp_path: Path) -> None:
    """Guards: the same for far less, as nothing is merged twice. What Spark makes of a mirror's
    columns besides is in the slow test above."""
    numbers, count = random.Random(1), 4
    steps, expected = batches_of(numbers, count), dict[str, Any]()
    optimized, by_spark = numbers.sample(range(2, count), 2)
    own = sink(tmp_path)
    for number, rows in enumerate(steps):
        if number in (by_spark, by_spark + 1):
            own = sink(tmp_path, by_spark=number == by_spark)
        if number == optimized:
            compact(spark, tmp_path)
        write(spark, own, rows, number)
        apply(expected, rows)
        assert content(tmp_path / MIRROR) == expected, f"batch {number}"
    assert len(as_spark_reads_it(spark, tmp_path / MIRROR)) == len(expected)
    made = commits(tmp_path / MIRROR)
    assert made.count(BY_FILES) == len(steps) - 1
    assert made.count(BY_SPARK) == 1


def apply(documents: dict[str, Any], rows: Sequence[dict[str, Any]]) -> None:
    """Apply changes, in their order, to documents by key."""
    for row in rows:
        if row["op"] == "delete":
            documents.pop(row["key"], None)
        elif row["after"] is not None:
            documents[row["key"]] = json.loads(row["after"])


def as_spark_reads_it(spark: SparkSession, table: Path) -> list[str]:
    return sorted(map(repr, spark.read.format("delta").load(str(table)).collect()))


@pytest.mark.parametrize(
    "writer",
    slow_but(["OPTIMIZE"], ["another follower", "OPTIMIZE", "a user"], soak=["another follower"]),
)
def test_what_another_writer_commits_between_the_look_and_the_commit_is_kept(
    spark: SparkSession, base: Path, monkeypatch: pytest.MonkeyPatch, writer: str
) -> None:
    """Guards: vectors for files that are no part of the table any more: their rows come back."""
    own = sink(base)
    original, looks = file_merge.find_outdated, list[int]()

    def overtaken(*args: Any) -> Any:
        found = original(*args)
        looks.append(1)
        if len(looks) == 1:
            table = DeltaTable.forPath(spark, str(base / MIRROR))
            if writer == "another follower":
                other = sink(base)
                other.begin(spark, 2, batch(spark, [], until=1).schema)
                other._followers.apply(spark)
            elif writer == "OPTIMIZE":
                table.delete("key = 'c'")
                table.optimize().executeCompaction()
            else:
                table.delete("key = 'c'")
        return found

    monkeypatch.setattr(file_merge, "find_outdated", overtaken)
    write(spark, own, later(), 1)
    gone = set() if writer == "another follower" else {"c"}
    assert content(base / MIRROR) == {k: v for k, v in AFTER.items() if k not in gone}
    # The other follower looks once, and has applied everything then.
    assert len(looks) == 2


@pytest.mark.slow
def test_a_later_state_of_a_key_is_kept_unless_its_row_is_deleted(
    spark: SparkSession, base: Path, tmp_path: Path
) -> None:
    """Guards: a change that undoes a backfill; a row that a vector marks and that counts all the
    same, so that a document stays away."""
    table = DeltaTable.forPath(spark, str(base / MIRROR))
    later = {"_position": "'8Z'", "document": "parse_json('{\"n\": 9}')"}
    table.update("key in ('a', 'c', 'd')", later)
    table.delete("key = 'c'")
    rows = [change("update", key, {"n": 2}, time=1001) for key in "ace"]
    rows.append(change("delete", "d", time=1001))
    expected = {"a": {"n": 9}, "b": {"n": 1}, "c": {"n": 2}, "d": {"n": 9}, "e": {"n": 2}}
    both = {BY_FILES: base, BY_SPARK: Path(shutil.copytree(base, tmp_path / "other"))}
    for operation, own in both.items():
        write(spark, sink(own, by_spark=operation == BY_SPARK), rows, 1)
        assert content(own / MIRROR) == {**expected, "f": {"n": 1}}
        assert commits(own / MIRROR)[-1] == operation


@pytest.mark.parametrize("is_killed", slow_but([True], [True, False]))
def test_a_crash_before_the_commit_leaves_the_mirror_as_it_was(
    spark: SparkSession, base: Path, monkeypatch: pytest.MonkeyPatch, is_killed: bool
) -> None:
    """Guards: files without a commit that a reader sees, or that the next attempt takes along; and
    files of an attempt that failed, left for ever."""
    own = sink(base)
    before = {each.name for each in (base / MIRROR).iterdir()}

    original = writes.commit_files

    def fails(spark: SparkSession, target: Target, *args: Any, **named: Any) -> Any:
        if target.address.endswith(MIRROR):
            raise KeyboardInterrupt
        return original(spark, target, *args, **named)

    with monkeypatch.context() as patch:
        patch.setattr(writes, "commit_files", fails)
        if is_killed:
            patch.setattr(file_merge, "remove", lambda *_: None)
        with pytest.raises(KeyboardInterrupt):
            write(spark, own, later(), 1)
    assert set(content(base / MIRROR)) == set("abcdef")
    left = {each.name for each in (base / MIRROR).iterdir()} - before
    assert bool(left) == is_killed
    write(spark, sink(base), later(), 1)
    assert content(base / MIRROR) == AFTER


ALTERATIONS = {
    "a column of a user": "ADD COLUMNS (note string)",
    "its change data feed": "SET TBLPROPERTIES (delta.enableChangeDataFeed = true)",
    "no deletion vectors": "SET TBLPROPERTIES (delta.enableDeletionVectors = false)",
    "a constraint": "ADD CONSTRAINT some CHECK (key <> 'z')",
    "row tracking": "SET TBLPROPERTIES (delta.enableRowTracking = true)",
}


def alter(spark: SparkSession, base: Path, what: str) -> None:
    spark.sql(f"ALTER TABLE delta.`{base / MIRROR}` {ALTERATIONS[what]}")


@pytest.mark.parametrize("what", ALTERATIONS)
def test_a_table_that_somebody_altered_takes_no_files(
    spark: SparkSession, base: Path, what: str
) -> None:
    """What the slow tests of the same alterations merge by Spark."""
    target = Target(str(base / MIRROR))
    columns = target.read(spark).schema

    def require_possible() -> None:
        snapshot = target.snapshot(spark)
        require_suitable(snapshot, columns)
        require_changeable(snapshot, columns)

    require_possible()
    alter(spark, base, what)
    with pytest.raises(UnsuitableTable):
        require_possible()


@pytest.mark.slow
@pytest.mark.parametrize("what", ALTERATIONS)
def test_a_table_that_somebody_altered_is_merged_by_spark(
    spark: SparkSession, base: Path, what: str
) -> None:
    """Guards: values of a user that an update removes, changes that a feed lacks, and rows that a
    constraint forbids."""
    alter(spark, base, what)
    if what == "a column of a user":
        table = DeltaTable.forPath(spark, str(base / MIRROR))
        table.update("key = 'a'", {"note": "'mine'"})
    write(spark, sink(base), later(), 1)
    if what == "a column of a user":
        assert delta_rs.by_key(base / MIRROR, "note")["a"] == "mine"
    assert set(content(base / MIRROR)) == set(AFTER)
    assert commits(base / MIRROR)[-1] == BY_SPARK


def test_more_changes_than_fit_into_memory_are_merged_by_spark(
    spark: SparkSession, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_merge, "_MOST_BYTES", 100)
    write(spark, sink(base), later(), 1)
    assert content(base / MIRROR) == AFTER
    assert commits(base / MIRROR)[-1] == BY_SPARK


@pytest.mark.slow
def test_what_python_cannot_read_is_merged_by_spark(
    spark: SparkSession, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards: a store that does not answer once, and files that somebody has removed: an error that
    ends the followers, where Spark would have tried again."""
    errors = (FileNotFoundError("AWS Error NETWORK_CONNECTION"), ValueError("damaged"))
    own, expected = sink(base), {key: {"n": 1} for key in "abcdef"}
    for number, error in enumerate(errors, 1):

        def fails(*_: Any, error: Exception = error) -> None:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(file_merge, "find_outdated", fails)
            write(spark, own, later(number), 2 * number)
        expected |= {"a": {"n": number}, f"x{number}": {"n": number + 1}}
        expected.pop("b", None)
        assert content(base / MIRROR) == expected
        assert commits(base / MIRROR)[-1] == BY_SPARK
    write(spark, own, [change("delete", "a", time=9001)], 9)
    assert set(content(base / MIRROR)) == expected.keys() - {"a"}
    assert commits(base / MIRROR)[-1] == BY_FILES


@pytest.mark.slow
def test_what_others_change_in_a_changelog_counts_for_a_mirror_that_lacks_it(
    spark: SparkSession, base: Path
) -> None:
    """Guards: a person whose data were erased in all tables, and who comes back into the mirror
    from a file that is no part of the changelog any more; a delivered letter that is undone."""
    changelog = DeltaTable.forPath(spark, str(base / "shop/orders/changelog"))
    expected = {key: {"n": 1} for key in "acdef"}
    for number, what in enumerate(("deleted", "compacted", "updated"), 1):
        key = f"x{number}"
        own = lagging(base, number, batch(spark, later(number), until=1000 * (number + 1)))
        if what == "deleted":
            changelog.delete(f"key = '{key}'")
        elif what == "compacted":
            changelog.optimize().executeCompaction()
        else:
            changelog.update(f"key = '{key}'", {"after": F.expr("parse_json('{\"n\": 9}')")})
        own._followers.apply(spark)
        mine = {"deleted": {}, "compacted": {key: {"n": 3}}, "updated": {key: {"n": 9}}}[what]
        expected |= {"a": {"n": number}, **mine}
        assert content(base / MIRROR) == expected, what
        assert commits(base / MIRROR)[-1] == BY_SPARK, what


def test_files_that_lack_rows_of_the_batch_are_not_taken_for_it(
    spark: SparkSession, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards: a batch that is stated as applied although a part of its rows was not read."""
    own, original = sink(base), pending._find_files

    def fewer(*args: Any) -> Any:
        found = original(*args)
        assert found is not None
        return found._replace(changes=found.changes[1:])

    monkeypatch.setattr(pending, "_find_files", fewer)
    write(spark, own, later(), 1)
    assert content(base / MIRROR) == AFTER
    assert commits(base / MIRROR)[-1] == BY_SPARK


def test_batches_are_applied_in_units_that_fit_into_memory(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards: a long backlog that is read at once, and a batch between two units that is left
    out."""
    monkeypatch.setattr(pending, "_MOST_CHANGES", 6)
    own = sink(tmp_path, interval=3600.0)
    own._start = lambda *_: None  # type: ignore[method-assign]
    write(spark, own, COPIED, 0)
    for number in range(1, 4):
        write(spark, own, later(number), number)
    own._followers.apply(spark)
    assert commits(tmp_path / MIRROR) == ["CREATE TABLE", *[BY_FILES] * 3]
    expected = {**{key: {"n": 1} for key in "cdef"}, "a": {"n": 3}}
    assert content(tmp_path / MIRROR) == {
        **expected,
        **{f"x{number}": {"n": number + 1} for number in range(1, 4)},
    }


def test_the_files_of_a_table_are_followed_through_its_log_or_read_by_delta(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards: a file that is taken for a part of the table after it was removed, or the reverse;
    a log whose older commits were removed."""
    own = sink(tmp_path)
    write(spark, own, COPIED, 0)
    loads, load = list[int](), LiveFiles._load

    def loaded(self: LiveFiles, *args: Any) -> None:
        loads.append(1)
        load(self, *args)

    monkeypatch.setattr(LiveFiles, "_load", loaded)
    write(spark, own, later(1), 1)
    assert not loads
    log = tmp_path / MIRROR / "_delta_log"
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.forTable(  # type: ignore[union-attr]
        spark._jsparkSession, str(tmp_path / MIRROR)
    ).checkpoint()
    for each in log.glob("*[01].json"):
        each.unlink()
    write(spark, sink(tmp_path), later(2), 2)
    assert loads
    found = content(tmp_path / MIRROR)
    assert found == {**AFTER, "a": {"n": 2}, "x2": {"n": 3}}
    assert delta_rs.by_key(tmp_path / MIRROR, "document") == found


def test_equal_keys_are_compared_by_the_bytes_of_their_text(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Guards: bounds of files that Python, Arrow and Delta order in another way: a file that is
    passed over, and a second row of a key."""
    keys = [
        "",
        "a",
        "A",
        "\u00e4",
        "\ue000",
        "\uffff",
        "\U00010000",
        "\U0010ffff",
        "z" * 40,
        "z" * 41,
    ]
    own = sink(tmp_path)
    assert isinstance(own, LandingSink)
    own.parts = len(keys) + 1  # a file for each key
    write(spark, own, [change("read", key, {"n": 0}, time=1) for key in keys], 0)
    assert len(list((tmp_path / MIRROR).glob("*.parquet"))) == len(keys)
    expected = {key: {"n": 0} for key in keys}
    # Not all at once: a file that is taken for that of another key would go unnoticed.
    for number, every in enumerate((keys[::2], keys[1::2]), 1):
        rows = [change("update", key, {"n": 1}, time=1000 * number + 1) for key in every]
        write(spark, own, rows, number)
        expected |= {key: {"n": 1} for key in every}
        assert content(tmp_path / MIRROR) == expected
        assert commits(tmp_path / MIRROR)[-1] == BY_FILES
