"""Mirrors and histories follow the changelogs, however far they lag and whatever ends a run."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from cdc.delta.columns import BATCH
from cdc.delta.followers import Followers, mirror
from cdc.delta.log import Target, settings
from cdc.delta.log.log_checkpoints import write_if_due
from cdc.delta.maintenance import deliver
from cdc.delta.sink import Sink
from cdc.delta.tables import Layout, LayoutHistory
from cdc.errors import ChangelogTooShort
from cdc.model import Namespace, Timestamp
from cdc.monitoring import read_table_stats
from tests.delta import delta_rs
from tests.delta.batches import batch, change, commits, content, sink, time_of
from tests.delta.test_dead_letters import BROKEN, MENDED, images

LOG, MIRROR = "shop/orders/changelog", "shop/orders/mirror"
OTHER = ("shop", "other")
# Longer than any test: nothing is applied before the run ends.
NEVER = 3_600.0
_HISTORY = {"match": "shop.orders", "history": "{db}/{coll}/history"}
WITH_HISTORY: dict[str, Any] = {"overrides": [_HISTORY]}
TABLES = ("orders/mirror", "orders/history", "other/mirror")


CUSTOMERS = ("shop", "customers")


def lagging(base: Path, number: int, rows: DataFrame, **table: Any) -> Sink:
    """A run that is killed when the changelogs contain the batch, and nothing else does."""
    killed = sink(base, interval=NEVER, **table)
    killed._start = lambda *_: None  # type: ignore[method-assign]
    killed.write_batch(rows, number)
    return killed


def copied(spark: SparkSession) -> DataFrame:
    rows = [change("read", key, {"n": 1}, time=9) for key in "abcd"]
    return batch(spark, rows, until=9, copied=["shop.orders"])


def changed(spark: SparkSession) -> DataFrame:
    rows = [
        change("update", "a", {"n": 2}, time=11),
        change("delete", "b", None, time=12),
        change("insert", "e", {"n": 1}, time=13),
        change("insert", "x", {"n": 1}, time=13, ns=OTHER),
    ]
    return batch(spark, rows, until=14)


def changed_again(spark: SparkSession) -> DataFrame:
    rows = [
        change("insert", "b", {"n": 7}, time=21),
        change("delete", "e", None, time=22),
        change("replace", "a", {"n": "three"}, time=23),
    ]
    return batch(spark, rows, until=24)


def dropped(spark: SparkSession) -> DataFrame:
    rows = [
        change("update", "c", {"n": 9}, time=31),
        change("drop", None, time=32),
        change("drop", None, time=33, ns=OTHER),
    ]
    return batch(spark, rows, until=34)


def made_again(spark: SparkSession) -> DataFrame:
    rows = [
        change("create", None, time=41),
        change("insert", "c", {"n": 10}, time=42),
        change("insert", "f", {"n": 11, "new": True}, time=43),
    ]
    return batch(spark, rows, until=44)


BATCHES: list[Callable[[SparkSession], DataFrame]] = [
    *(copied, changed, changed_again, dropped, made_again)
]


def held(base: Path, names: tuple[str, ...] = TABLES) -> dict[str, Any]:
    """The rows of tables, and what their last commits state but for what they have read."""
    found = {}
    for name in names:
        table = (base / "shop" / name).resolve()
        [newest] = delta_rs.history(table, 1)
        stated = json.loads(newest["userMetadata"])
        assert stated.pop("follows", None) != []
        found[name] = (delta_rs.rows(table), stated)
    return found


@pytest.fixture(scope="module")
def whole(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lakehouse in which each batch was written to all tables before the next one came."""
    base = tmp_path_factory.mktemp("whole")
    for number, rows in enumerate(BATCHES):
        sink(base, **WITH_HISTORY).write_batch(rows(spark), number)
    return base


@pytest.fixture(scope="module")
def all_late(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One with the same batches, in which all tables lag; see `late`."""
    base = tmp_path_factory.mktemp("late")
    for number, rows in enumerate(BATCHES):
        lagging(base, number, rows(spark), **WITH_HISTORY)
    return base


@pytest.fixture
def late(all_late: Path, tmp_path: Path) -> Path:
    """A lakehouse of the test's own whose mirrors and histories contain nothing yet."""
    return Path(shutil.copytree(all_late, tmp_path / "late"))


def caught_up(spark: SparkSession, base: Path, number: int = len(BATCHES), **table: Any) -> Sink:
    """A run whose followers have caught up before its first batch, which has that number."""
    own = sink(base, **table)
    own.begin(spark, number, copied(spark).schema)
    own._followers.apply(spark)
    return own


# What all batches together leave in the history: of each key the times of its versions.
VERSIONS = {
    "a": [(9, 11), (11, 23), (23, 32)],
    "b": [(9, 12), (21, 32)],
    "c": [(9, 31), (31, 32), (42, None)],
    "d": [(9, 32)],
    "e": [(13, 22)],
    "f": [(43, None)],
}


@pytest.mark.slow
def test_tables_that_lag_by_many_batches_become_as_if_they_had_never_lagged(
    spark: SparkSession, whole: Path, late: Path
) -> None:
    """Guards: a batch that is left out, applied in part or in another order; a drop among them; a
    lakehouse that was moved; a run that was believed to be dead and applies the same batches;
    columns and statements of a commit that only a table that never lagged has. How far tables lag
    is read without Spark, also where no batch was applied to them yet."""
    assert commits(late / MIRROR) == ["CREATE TABLE"]
    assert backlog(late, MIRROR) == backlog(late, "shop/orders/history") == len(BATCHES)
    dead = sink(late, **WITH_HISTORY)
    dead.begin(spark, len(BATCHES), copied(spark).schema)
    caught_up(spark, late, **WITH_HISTORY)
    dead._followers.apply(spark)
    assert commits(late / MIRROR) == ["CREATE TABLE", "MERGE"]
    assert content(late / MIRROR) == {"c": {"n": 10}, "f": {"n": 11, "new": True}}
    assert content(late / "shop/other/mirror") == {}
    assert held(late) == held(whole)
    assert versions(late / "shop/orders/history") == VERSIONS
    assert backlog(late, MIRROR) == backlog(late, "shop/orders/history") == 0


def versions(path: Path) -> dict[str, list[tuple[int, int | None]]]:
    """The times at which the versions of each key begin and end."""
    found: dict[str, list[tuple[int, int | None]]] = {}
    query = 'SELECT key, "__START_AT" AS start, "__END_AT" AS until FROM t ORDER BY 1, 2'
    for row in delta_rs.read(path, query):
        start, until = (each and time_of(each["position"]) for each in (row["start"], row["until"]))
        assert start is not None
        if row["start"] != row["until"]:
            found.setdefault(row["key"], []).append((start, until))
    return {key: sorted(each) for key, each in found.items()}


def backlog(base: Path, table: str) -> int:
    """By how many batches a table lags, as the logs say."""
    log, follower = (read_table_stats(Target(str(base / each))) for each in (LOG, table))
    assert log is not None
    assert follower is not None
    found = follower.backlog(log, Namespace("shop", "orders"), time.time())
    assert found is not None
    assert (found.seconds > 0) == (found.batches > 0)
    return found.batches


@pytest.mark.soak
def test_changelogs_in_the_form_of_a_change_feed_are_followed_into_typed_columns(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Guards: rows that Spark writes, of which an update is two."""
    table = {**WITH_HISTORY, "columns": {"n": "bigint"}, "form": "cdf"}
    for number, rows in enumerate(BATCHES[:3]):
        sink(tmp_path / "whole", **table).write_batch(rows(spark), number)
        lagging(tmp_path / "late", number, rows(spark), **table)
    caught_up(spark, tmp_path / "late", **table)
    assert held(tmp_path / "late") == held(tmp_path / "whole")


@pytest.mark.slow
def test_a_run_goes_on_from_the_batch_that_each_table_contains(
    spark: SparkSession, whole: Path, tmp_path: Path
) -> None:
    """Guards: a batch applied twice; a table that is ahead of another one."""
    for number, rows in enumerate(BATCHES):
        if number % 2:
            sink(tmp_path, **WITH_HISTORY).write_batch(rows(spark), number)
        else:
            lagging(tmp_path, number, rows(spark), **WITH_HISTORY)
    last = sink(tmp_path, interval=NEVER, **WITH_HISTORY)
    last.begin(spark, len(BATCHES), copied(spark).schema)
    assert last.close(None, is_complete=True)
    assert held(tmp_path) == held(whole)


@pytest.mark.slow
def test_a_table_of_several_collections_follows_the_changelog_of_each(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Guards: a changelog that is left out because the table has not read it before."""
    shared = {"changelog": "logs/{db}/{coll}", "mirror": "mirrors"}
    for number, rows in enumerate(BATCHES[:2]):
        sink(tmp_path / "whole", **shared).write_batch(rows(spark), number)
        lagging(tmp_path / "late", number, rows(spark), **shared)
    caught_up(spark, tmp_path / "late", **shared)
    names = ("../mirrors",)
    assert held(tmp_path / "late", names) == held(tmp_path / "whole", names)


@pytest.mark.slow
def test_a_changelog_that_was_compacted_and_vacuumed_meanwhile_is_followed(
    spark: SparkSession, whole: Path, late: Path
) -> None:
    """Guards: a follower that reads data files by the commits that added them."""
    log = DeltaTable.forPath(spark, str(late / LOG))
    log.optimize().executeCompaction()
    with settings(spark, {"spark.databricks.delta.retentionDurationCheck.enabled": "false"}):
        log.vacuum(0)
    caught_up(spark, late, **WITH_HISTORY)
    assert held(late) == held(whole)


def test_a_changelog_that_no_longer_contains_what_a_mirror_lacks_ends_the_run(
    spark: SparkSession, late: Path
) -> None:
    """Guards: batches that are left out in silence, be it only the next one."""
    trim_log(spark, late / LOG, 1)
    with pytest.raises(ChangelogTooShort, match="after -1"):
        caught_up(spark, late, **WITH_HISTORY)
    assert commits(late / MIRROR) == ["CREATE TABLE"]


@pytest.mark.slow
def test_a_log_that_no_longer_contains_batches_without_its_rows_lacks_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Guards: batches of other collections that are taken for missing ones; a table of several
    collections that follows every changelog."""
    alone = {"match": "shop.other", "mirror": "alone"}
    table = {"changelog": "logs/{db}/{coll}", "mirror": "mirrors", "overrides": [alone]}
    sink(tmp_path, **table).write_batch(copied(spark), 0)
    for number in (1, 2):
        rows = [change("insert", f"x{number}", {"n": 1}, time=10 + number, ns=OTHER)]
        sink(tmp_path, **table).write_batch(batch(spark, rows, until=13), number)
    trim_log(spark, tmp_path / "logs/shop/other", 1)
    lagging(
        tmp_path, 3, batch(spark, [change("update", "a", {"n": 2}, time=14)], until=15), **table
    )
    trim_log(spark, tmp_path / "logs/shop/orders", 1)
    caught_up(spark, tmp_path, 4, **table)
    assert content(tmp_path / "mirrors")["a"] == {"n": 2}
    assert len(commits(tmp_path / "mirrors")) == 3, "batches of others are no commits"


def trim_log(spark: SparkSession, path: Path, versions: int) -> None:
    """Remove the oldest commits of a table's log, as Delta does after its retention."""
    assert write_if_due(spark, Target(str(path)), 1) == 0
    for version in range(versions):
        (path / f"_delta_log/{version:020}.json").unlink(missing_ok=True)
    jvm: Any = spark._jvm
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()


def test_a_batch_that_is_repeated_with_other_rows_is_applied_as_its_changelog_contains_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Guards: facts of a manifest whose rows were not committed."""
    rows = [change("insert", "a", {"n": 1}, time=11), change("drop", None, time=12)]
    lagging(tmp_path, 0, batch(spark, rows, until=13))
    again = [change("insert", key, {"n": 2}, time=11) for key in "ab"]
    sink(tmp_path).write_batch(batch(spark, again, until=13), 0)
    assert content(tmp_path / MIRROR) == {}


def test_a_copy_that_is_repeated_with_other_documents_is_applied_as_its_changelog_contains_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Guards: data files of a mirror whose rows no changelog contains."""
    for keys in ("ab", "ac"):
        rows = [change("read", key, {"n": 1}, time=9) for key in keys]
        lagging(tmp_path, 0, batch(spark, rows, until=9, copied=["shop.orders"]))
    own = sink(tmp_path)
    rows = [change("read", key, {"n": 1}, time=9) for key in "ac"]
    own.write_batch(batch(spark, rows, until=9, copied=["shop.orders"]), 0)
    assert set(content(tmp_path / MIRROR)) == set("ab")


def test_a_batch_is_its_rows_and_no_interval_of_time(spark: SparkSession, tmp_path: Path) -> None:
    """Guards: a follower that selects rows by their time. A batch may contain changes after its
    end, the next one changes before its begin; a backfill adds rows of no batch, of which a later
    change is known."""
    rows = [change("insert", "a", {"n": 1}, time=11), change("insert", "b", {"n": 1}, time=19)]
    sink(tmp_path).write_batch(batch(spark, rows, until=14), 0)
    backfilled = batch(spark, [change("read", "z", {"n": 1}, time=16)], until=16)
    numbered = backfilled.where("op = 'read'").withColumn(BATCH, F.lit(None).cast("long"))
    numbered.write.format("delta").mode("append").save(str(tmp_path / LOG))
    rows = [change("insert", "c", {"n": 1}, time=12), change("update", "a", {"n": 2}, time=18)]
    sink(tmp_path).write_batch(batch(spark, rows, until=20), 1)
    expected = {"a": {"n": 2}, "b": {"n": 1}, "c": {"n": 1}}
    assert content(tmp_path / MIRROR) == expected


def test_a_mirror_states_the_time_of_a_batch_that_does_not_change_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Guards: a mirror that is compared as of a time long ago, because its collection is quiet."""
    sink(tmp_path).write_batch(batch(spark, [change("insert", "a", {}, time=1)], until=2), 0)
    sink(tmp_path).write_batch(batch(spark, [change("modify", None, time=5)], until=6), 1)
    target = Target(str(tmp_path / MIRROR))
    found = mirror.state(spark, target, Namespace("shop", "orders"))
    assert found is not None
    assert (found.batch, found.watermark) == (1, Timestamp(6, 1))


def test_the_transaction_of_a_follower_is_set_in_no_other_session(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards: a write of the query's thread that Delta takes for the follower's, and skips."""
    merge, found = mirror.MIRROR.merge, list[Any]()

    def merges(*args: Any) -> Any:
        found.append(spark.conf.get("spark.databricks.delta.write.txnAppId", None))
        return merge(*args)

    monkeypatch.setattr(mirror.MIRROR, "merge", merges)
    own = sink(tmp_path, interval=0.0, by_spark=True)
    own.write_batch(batch(spark, [change("insert", "a", {"n": 1}, time=1)], until=1), 0)
    assert own.close(None, is_complete=True)
    assert found == [None]
    assert set(content(tmp_path / MIRROR)) == {"a"}


def test_the_thread_of_the_followers_brings_tables_up_to_date_beside_the_batches(
    spark: SparkSession, tmp_path: Path
) -> None:
    own = sink(tmp_path, interval=0.0)
    own.write_batch(copied(spark), 0)
    own.write_batch(changed(spark), 1)
    until = time.monotonic() + 60
    while own.backlog().batches:
        assert time.monotonic() < until
        time.sleep(0.05)
    assert set(content(tmp_path / MIRROR)) == set("acde")
    own.write_batch(changed_again(spark), 2)
    assert own.close(None, is_complete=True)
    assert set(content(tmp_path / MIRROR)) == set("abcd")


@pytest.mark.slow
def test_followers_that_fail_again_and_again_end_the_run(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Guards: an error that nobody reads, while the changelogs go on."""
    own: Sink = sink(tmp_path, interval=0.0)
    own.write_batch(copied(spark), 0)
    assert set(content(tmp_path / MIRROR)) <= set("abcd")
    until = time.monotonic() + 60
    while own.backlog().batches and time.monotonic() < until:
        time.sleep(0.05)
    (tmp_path / MIRROR / "_delta_log").rename(tmp_path / "away")
    own.write_batch(changed(spark), 1)
    until, error = time.monotonic() + 120, None
    while error is None and time.monotonic() < until:
        time.sleep(0.2)
        try:
            own.backlog()
        except Exception as found:
            error = found
    assert error is not None
    with pytest.raises(type(error)):
        own.write_batch(changed_again(spark), 2)


def everything_again(spark: SparkSession) -> DataFrame:
    rows = [
        change("gap", None, time=13, ns=(None, None), description={"from": "12:1", "to": "14:1"}),
        change("resync", None, time=14, ns=(None, None)),
    ]
    return batch(spark, rows, until=14)


def database_dropped(spark: SparkSession) -> DataFrame:
    return batch(spark, [change("dropDatabase", None, time=13, ns=("shop", None))], until=14)


@pytest.mark.parametrize("emptying", [everything_again, database_dropped])
@pytest.mark.parametrize("template", ["{db}/{coll}/mirror", "all/{db}/of/mirror"])
def test_an_event_that_empties_a_mirror_reaches_one_that_had_no_changelog_until_then(
    spark: SparkSession,
    tmp_path: Path,
    emptying: Callable[[SparkSession], DataFrame],
    template: str,
) -> None:
    """Guards: documents that stay although they were deleted in a gap. No row of the batch is about
    the collection, so no changelog begins with it."""
    sink(tmp_path, with_changelog=False, mirror=template).write_batch(copied(spark), 0)
    lagging(tmp_path, 1, emptying(spark), mirror=template)
    mirror = tmp_path / (MIRROR if "coll" in template else "all/shop/of/mirror")
    assert content(mirror) == {}
    again = [change("read", key, {"n": 2}, time=15) for key in "ab"]
    own = sink(tmp_path, mirror=template)
    own.write_batch(batch(spark, again, until=15, copied=["shop.orders"]), 2)
    assert content(mirror) == {"a": {"n": 2}, "b": {"n": 2}}


def mixed(base: Path, **more: Any) -> Sink:
    """A sink of which one collection has no changelog."""
    without = {"match": "shop.customers", "changelog": ""}
    return sink(base, overrides=[without], **more)


def test_a_repeated_batch_reaches_each_mirror_as_its_changelog_has_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards: a batch that was killed after its changelogs' commits, and is a gap when it is
    repeated; another collection has no changelog."""
    rows = [change("read", key, {"n": 1}, time=9) for key in "abcd"]
    rows.append(change("read", "k", {"n": 1}, time=9, event=2, ns=CUSTOMERS))
    both = batch(spark, rows, until=9, copied=["shop.orders", "shop.customers"])
    mixed(tmp_path).write_batch(both, 0)
    with monkeypatch.context() as killing:
        for name in ("apply", "write"):
            killing.setattr(Followers, name, _interrupt)
        with pytest.raises(KeyboardInterrupt):
            mixed(tmp_path).write_batch(changed(spark), 1)
    own = mixed(tmp_path)
    gap = change("gap", None, time=13, ns=(None, None), description={"from": "9:1", "to": "14:1"})
    own.write_batch(batch(spark, [gap], until=14), 1)
    later = [
        change("insert", "z", {"n": 1}, time=15),
        change("delete", "k", None, time=15, event=2, ns=CUSTOMERS),
    ]
    own.write_batch(batch(spark, later, until=16), 2)
    kept = {"a": {"n": 2}, "c": {"n": 1}, "d": {"n": 1}, "e": {"n": 1}, "z": {"n": 1}}
    assert content(tmp_path / MIRROR) == kept
    assert content(tmp_path / "shop/customers/mirror") == {}


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def test_mirrors_follow_changelogs_though_another_collection_has_none(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Guards: batches that wait for all mirrors because one of them is written with the batch."""
    rows = [
        change("insert", "a", {"n": 2}, time=11),
        change("insert", "k", {"n": 1}, time=12, ns=CUSTOMERS),
    ]
    own = mixed(tmp_path, interval=NEVER)
    own._start = lambda *_: None  # type: ignore[method-assign]
    own.write_batch(batch(spark, rows, until=14), 0)
    assert content(tmp_path / "shop/customers/mirror") == {"k": {"n": 1}}
    assert content(tmp_path / MIRROR) == {}
    assert own.backlog().batches == 1
    own._followers.apply(spark)
    assert content(tmp_path / MIRROR) == {"a": {"n": 2}}


def test_followers_leave_tables_alone_that_are_written_with_each_batch(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Guards: two threads that write one table. It followed a shared changelog before, which goes
    on with the rows of others."""
    shared, customers = {"changelog": "all/{db}/changelog"}, tmp_path / "shop/customers/mirror"
    rows = [
        change("read", "a", {"n": 1}, time=9),
        change("read", "k", {"n": 1}, time=9, event=2, ns=CUSTOMERS),
    ]
    both = batch(spark, rows, until=9, copied=["shop.orders", "shop.customers"])
    sink(tmp_path, **shared).write_batch(both, 0)
    own = mixed(tmp_path, **shared)
    update = change("update", "k", {"n": 2}, time=11, ns=CUSTOMERS)
    own.write_batch(batch(spark, [update], until=12), 1)
    written = commits(customers)
    own.write_batch(batch(spark, [change("update", "a", {"n": 2}, time=13)], until=14), 2)
    assert content(tmp_path / MIRROR) == {"a": {"n": 2}}
    assert content(customers) == {"k": {"n": 2}}
    assert commits(customers) == written


def test_a_log_that_is_too_short_for_a_table_that_follows_it_no_more_ends_no_run(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Guards: a run that cannot start because its collection was quiet for a week. Its mirror is
    written with each batch, and followed a shared changelog before."""
    shared = {"changelog": "all/{db}/changelog"}
    usual = Layout.parse(str(tmp_path), shared)
    without = Layout.parse(str(tmp_path), shared, [{"match": "shop.customers", "changelog": ""}])
    layouts = LayoutHistory(str(tmp_path)).extended(0, usual)
    rows = [change("read", "k", {"n": 1}, time=9, ns=CUSTOMERS)]
    both = batch(spark, rows, until=9, copied=["shop.orders", "shop.customers"])
    sink(tmp_path, layouts=layouts, **shared).write_batch(both, 0)
    layouts = layouts.extended(1, without)
    own = mixed(tmp_path, layouts=layouts, **shared)
    update = change("update", "k", {"n": 2}, time=11, ns=CUSTOMERS)
    own.write_batch(batch(spark, [update], until=12), 1)
    for number in range(2, 5):
        order = change("insert", f"a{number}", {"n": 2}, time=10 * number)
        own.write_batch(batch(spark, [order], until=10 * number + 1), number)
    trim_log(spark, tmp_path / "all/shop/changelog", 2)
    again = mixed(tmp_path, layouts=layouts, **shared)
    again.begin(spark, 5, both.schema)
    assert again.backlog().batches == 0
    delete = change("delete", "k", None, time=61, ns=CUSTOMERS)
    again.write_batch(batch(spark, [delete], until=62), 5)
    assert content(tmp_path / "shop/customers/mirror") == {}


@pytest.mark.slow
def test_a_dead_letter_waits_until_the_mirror_contains_its_batch(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Guards: a stand-in that comes into the mirror after its letter was delivered."""
    rows = [change("insert", key, {}, time=time) for key, time in (("a", 1), ("b", 2))]
    broken = {(row["position"], "after"): BROKEN for row in rows}
    sink(tmp_path).write_batch(images(batch(spark, rows[:1], until=1), "variant", broken), 0)
    lagging(tmp_path, 1, images(batch(spark, rows[1:], until=2), "variant", broken))
    letters = Target(str(tmp_path / "_dead_letters"))
    spark.sql(f"UPDATE {letters.sql(spark)} SET repaired = X'{MENDED.hex()}'")
    layout = Layout.parse(str(tmp_path), {})
    first = deliver(spark, letters, layout, "variant", "relaxed", 1)
    assert (first.delivered, first.left) == (1, 1)
    caught_up(spark, tmp_path)
    mended = {"_id": 1, "s": "mended"}
    assert content(tmp_path / MIRROR) == {"a": mended, "b": mended}
    second = deliver(spark, letters, layout, "variant", "relaxed", 1)
    assert (second.delivered, second.left) == (1, 0)


@pytest.mark.slow
@pytest.mark.parametrize("was_killed", [False, True])
def test_a_changelog_of_an_earlier_release_gets_the_number_of_the_batch(
    spark: SparkSession, tmp_path: Path, was_killed: bool
) -> None:
    """Guards: rows of that release, which their mirror contains, applied again or lost; rows that
    it lacks, because the release was killed before it wrote them."""
    sink(tmp_path).write_batch(copied(spark), 0)
    write_as_earlier_release(spark, tmp_path / LOG, "9:1")
    if was_killed:
        shutil.rmtree(tmp_path / MIRROR)
    sink(tmp_path).write_batch(copied(spark), 0)
    sink(tmp_path).write_batch(changed(spark), 1)
    found = spark.read.format("delta").load(str(tmp_path / LOG)).groupBy(BATCH).count().collect()
    assert {(row[BATCH], row["count"]) for row in found} == {(None, 4), (1, 3)}
    assert set(content(tmp_path / MIRROR)) == set("acde")


def write_as_earlier_release(spark: SparkSession, path: Path, watermark: str) -> None:
    """Give a changelog of one batch the form that a release without `_batch` wrote."""
    log = str(path)
    table = DeltaTable.forPath(spark, log)
    properties = table.detail().collect()[0].properties
    own = {name: value for name, value in properties.items() if name.startswith("mongodb-cdc")}
    rows = spark.read.format("delta").load(log).drop(BATCH)
    old = DeltaTable.create(spark).location(log + "-old").addColumns(rows.schema)
    for name, value in own.items():
        old = old.property(name, value)
    old.execute()
    stated = json.dumps({"watermark": watermark, "batch": 0})
    options = {"txnAppId": "mongodb-cdc/one/changelog", "txnVersion": "0", "userMetadata": stated}
    rows.write.format("delta").mode("append").options(**options).save(log + "-old")
    shutil.rmtree(path)
    Path(log + "-old").rename(log)
    jvm: Any = spark._jvm
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
