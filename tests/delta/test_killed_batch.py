"""A batch that is written again: after a kill between any two commits of all tables, and long after
others have followed it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from cdc.delta.sink import Sink
from cdc.errors import ForeignOffset
from tests.delta.batches import batch, change, sink
from tests.delta.lakehouse import Made, held, left_over, made, newest
from tests.delta.test_dead_letters import BROKEN, images
from tests.soak import choose_seed

TYPED, PLAIN = ("shop", "typed"), ("shop", "plain")
OVERRIDE = {"match": "shop.typed", "columns": {"n": "bigint"}, "schema.evolution": True}
KINDS = ("_dead_letters", "changelog", "mirror", "history")


def lake(base: Path, with_changelog: bool = True) -> Sink:
    """The sink of a run that has just been started."""
    history = "{db}/{coll}/history"
    return sink(base, with_changelog=with_changelog, history=history, overrides=[OVERRIDE])


def everything(spark: SparkSession) -> DataFrame:
    """A copy and each kind of change: a type that does not fit, a new field, a document that is no
    BSON; one of the collections is dropped and made again."""
    rows = [change("read", key, {"n": 1}, time=9, ns=ns) for ns in (TYPED, PLAIN) for key in "abc"]
    rows += [*changes(10, TYPED), *changes(10, PLAIN), *made_again(20)]
    return with_broken(batch(spark, rows, until=29, copying={"shop.typed": {"below": "d"}}), rows)


def everything_again(spark: SparkSession) -> DataFrame:
    """The same where the tables hold documents, with other new fields."""
    rows = [*changes(30, TYPED, "second"), *made_again(40, "third"), *changes(50, PLAIN)]
    return with_broken(batch(spark, rows, until=59, copied=["shop.typed"]), rows)


def copied_again(spark: SparkSession) -> DataFrame:
    """One of the collections alone."""
    rows = [
        change("resync", None, time=61, ns=PLAIN),
        change("read", "a", {"n": "not a number"}, time=62, ns=PLAIN),
        change("read", "e", {"n": 6}, time=62, ns=PLAIN),
    ]
    return batch(spark, rows, until=62)


def changes(time: int, ns: tuple[str, str], field: str = "first") -> list[dict[str, Any]]:
    reported = [
        ("update", "a", {"n": "not a number"}),
        ("delete", "b", None),
        ("insert", "d", {"n": 2, field: "new"}),
        ("replace", "c", {}),
        ("update", "d", {"n": 3, field: "new"}),
    ]
    return [change(*each, time=time + n, ns=ns) for n, each in enumerate(reported)]


def made_again(time: int, field: str = "first") -> list[dict[str, Any]]:
    return [
        change("drop", None, time=time, ns=TYPED),
        change("create", None, time=time + 1, ns=TYPED),
        change("insert", "a", {"n": 5, field: "again"}, time=time + 2, ns=TYPED),
        change("replace", "b", {}, time=time + 3, ns=TYPED),
    ]


def with_broken(frame: DataFrame, rows: list[dict[str, Any]]) -> DataFrame:
    """What was replaced is no BSON."""
    broken = {(row["position"], "after"): BROKEN for row in rows if row["op"] == "replace"}
    return images(frame, "variant", broken)


BATCHES: list[Callable[[SparkSession], DataFrame]] = [everything, everything_again, copied_again]


@dataclass
class Undisturbed:
    """The batches, each written once, and no sooner than it is asked for."""

    spark: SparkSession
    base: Path
    with_changelog: bool = True
    _commits: list[list[Made]] = field(default_factory=list)

    def commits(self, number: int) -> list[Made]:
        """Those of one batch, in their order."""
        while len(self._commits) <= number:
            before = len(made(self.base))
            rows = BATCHES[len(self._commits)](self.spark)
            self.lake(self.base).write_batch(rows, len(self._commits))
            self._commits.append(made(self.base)[before:])
        return self._commits[number]

    def lake(self, base: Path) -> Sink:
        return lake(base, self.with_changelog)

    def until(self, number: int) -> list[Made]:
        """Those of all batches before that one."""
        return [each for earlier in range(number) for each in self.commits(earlier)]


@pytest.fixture(scope="module")
def undisturbed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    return Undisturbed(spark, tmp_path_factory.mktemp("undisturbed"))


@pytest.fixture(scope="module")
def alone(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """Without changelogs."""
    return Undisturbed(spark, tmp_path_factory.mktemp("alone"), with_changelog=False)


def difference(whole: Undisturbed, folder: Path, number: int, count: int) -> dict[str, Any]:
    """The tables that are not as they would be, after a batch that was killed after so many of its
    commits and that a new run has written again: what they are, and what they should be."""
    base, all_of_it = folder / f"{number}-{count}", newest(whole.until(number + 1))
    left_over(whole.base, base, whole.until(number) + whole.commits(number)[:count])
    whole.lake(base).write_batch(BATCHES[number](whole.spark), number)
    jvm: Any = whole.spark._jvm
    # It would keep what it has read of the logs of all these lakes.
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    found, wanted = held(base, newest(made(base))), held(whole.base, all_of_it)
    return {
        name: (found.get(name), wanted.get(name))
        for name in found.keys() | wanted.keys()
        if found.get(name) != wanted.get(name)
    }


@pytest.mark.slow
def test_what_a_table_says_was_reported_before_by_those_that_it_rests_on(
    undisturbed: Undisturbed,
) -> None:
    """Guards: that all kinds of tables and commits are there for a kill to come between."""
    base = undisturbed.base
    commits = [each for each in undisturbed.commits(0) if not each.is_creation(base)]
    kinds = [KINDS.index(each.table.rpartition("/")[2]) for each in commits]
    assert kinds == sorted(kinds)
    assert {each.table for each in commits} == {"_dead_letters"} | {
        f"shop/{coll}/{kind}" for coll in ("typed", "plain") for kind in KINDS[1:]
    }
    grown = [each.table for each in commits if each.is_growth(base)]
    assert grown == ["shop/typed/mirror", "shop/typed/history"]


def kills(undisturbed: Undisturbed) -> dict[str, list[tuple[int, int]]]:
    """By the kind of table that a batch is killed after: numbers of batches and of commits. The
    last commit of a batch is a kind of its own."""
    found: dict[str, list[tuple[int, int]]] = {}
    for number in range(len(BATCHES)):
        commits = undisturbed.commits(number)
        for count, each in enumerate(commits, 1):
            kind = each.table.rpartition("/")[2] if count < len(commits) else "the last commit"
            found.setdefault(kind, []).append((number, count))
    return found


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("whole", ["undisturbed", "alone"])
@pytest.mark.parametrize(
    "all_of_them",
    [
        pytest.param(False, id="one of each kind", marks=pytest.mark.slow),
        pytest.param(True, id="all of them", marks=pytest.mark.soak),
    ],
)
def test_a_batch_killed_between_any_two_of_its_commits_is_written_once(
    request: pytest.FixtureRequest, tmp_path: Path, all_of_them: bool, whole: str
) -> None:
    """SOAK_SEED chooses one kill after a commit of each kind of table."""
    undisturbed: Undisturbed = request.getfixturevalue(whole)
    chance, by_kind = Random(choose_seed()), kills(undisturbed)
    kinds = KINDS if undisturbed.with_changelog else set(KINDS) - {"changelog"}
    assert by_kind.keys() == {*kinds, "the last commit"}
    wrong = {}
    for places in by_kind.values():
        for number, count in places if all_of_them else [chance.choice(places)]:
            if found := difference(undisturbed, tmp_path, number, count):
                wrong[number, count] = found
    assert wrong == {}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("restarted", [True, False])
def test_a_batch_of_the_past_that_is_handed_over_again_changes_nothing(
    undisturbed: Undisturbed, tmp_path: Path, restarted: bool
) -> None:
    """Guards: also one that none of its tables is ahead of; the others are refused, not skipped."""
    commits = undisturbed.until(len(BATCHES))
    left_over(undisturbed.base, tmp_path / "lake", commits)
    target = lake(tmp_path / "lake")
    for number, rows in enumerate(BATCHES):
        if number < len(BATCHES) - 1:
            with pytest.raises(ForeignOffset):
                target.write_batch(rows(undisturbed.spark), number)
        else:
            target.write_batch(rows(undisturbed.spark), number)
        if restarted:
            target = lake(tmp_path / "lake")
    assert newest(made(tmp_path / "lake")) == newest(commits)
