"""A table that the configuration lacked for some batches does not count as complete afterwards."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bson.timestamp import Timestamp
from pyspark.sql import DataFrame, SparkSession

from cdc.checkpoint import Folder, LocalFiles
from cdc.delta.followers import KINDS
from cdc.delta.reading import as_of
from cdc.delta.tables import Layout, LayoutHistory
from cdc.errors import NotCovered, RebuildRefused, TransientError
from cdc.model import Namespace
from cdc.pipeline.config import load
from cdc.pipeline.layouts import read_layouts, record_layout
from tests.delta.batches import batch, change, content, sink

ORDERS, OTHER = Namespace("shop", "orders"), Namespace("shop", "customers")
SHARED = {"changelog": "all/{db}/changelog"}
MIRROR = "shop/orders/mirror"


def layout(base: Path | str = "lake", *overrides: dict[str, Any], **table: Any) -> Layout:
    return Layout.parse(str(base), table, overrides)


def history(*entries: tuple[int, Layout]) -> LayoutHistory:
    found = LayoutHistory("lake")
    for first, each in entries:
        found = found.extended(first, each)
    return found


def was_away(found: LayoutHistory, now: Layout, name: Namespace, after: int, before: int) -> bool:
    table = now.table("changelog", name)
    assert table is not None
    return found.was_away("changelog", table, name, after, before)


@pytest.mark.parametrize(
    ("after", "before", "expected"),
    [
        (9, 10, False),
        (9, 11, True),
        (10, 20, True),
        (19, 20, False),
        (19, 21, False),
        (3, 8, False),
    ],
)
def test_a_table_was_away_where_a_batch_between_had_another_layout(
    after: int, before: int, expected: bool
) -> None:
    now, without = layout(), layout(changelog="")
    found = history((0, now), (10, without), (20, now))
    assert was_away(found, now, ORDERS, after, before) is expected
    elsewhere = history((0, now), (10, layout(changelog="{db}/{coll}/log")), (20, now))
    assert was_away(elsewhere, now, ORDERS, after, before) is expected


def test_a_layout_by_which_no_batch_was_written_leaves_no_trace() -> None:
    now, without = layout(), layout(changelog="")
    assert history((0, now), (10, without), (10, now)) == history((0, now))
    assert history((0, now), (0, now), (7, now)) == history((0, now))


def test_a_shared_table_was_away_for_a_collection_that_had_one_of_its_own() -> None:
    now = layout(**SHARED)
    own = layout("lake", {"match": "shop.orders", "changelog": ""}, **SHARED)
    found = history((0, now), (10, own), (20, now))
    assert was_away(found, now, ORDERS, 5, 25)
    assert not was_away(found, now, OTHER, 5, 25)


@pytest.mark.parametrize("text", ["", "[", "{}", "[1]", '["lake", {"changelog": true}, []]'])
def test_a_layout_that_cannot_be_read_lacked_each_table(text: str) -> None:
    """Guards: a changelog that counts as complete because the record of its absence is damaged."""
    now = layout()
    recorded = history((0, now), (20, now))
    damaged = replace(recorded, entries=(recorded.entries[0], (10, text), (20, "")))
    assert was_away(damaged, now, ORDERS, 5, 15)
    assert damaged.has_lacked("changelog", ORDERS, 5, 15)
    assert not was_away(damaged, now, ORDERS, 5, 9)
    assert not damaged.has_lacked("changelog", ORDERS, 5, 9)


@pytest.mark.parametrize("moves", [True, False])
def test_tables_that_were_moved_were_not_away(moves: bool) -> None:
    """Guards: a quiet changelog that covers nothing any more because its lake was moved."""
    recorded = LayoutHistory("lake").extended(0, layout(), moves=moves)
    now = layout("elsewhere")
    moved = replace(recorded, base="elsewhere").extended(10, now, moves=moves)
    assert not was_away(moved, now, ORDERS, 5, 12)
    taken_out = recorded.extended(7, layout(changelog=""), moves=moves)
    moved = replace(taken_out, base="elsewhere").extended(10, now, moves=moves)
    assert was_away(moved, now, ORDERS, 5, 12)


def test_each_layout_is_a_file_that_no_later_one_touches(tmp_path: Path) -> None:
    """Guards: a crash while a layout is recorded, which would forget the earlier ones."""
    folder, base = Folder(LocalFiles(), str(tmp_path / "lake/_checkpoint")), str(tmp_path / "lake")
    given = [f"sink.path={base}", "uri=mongodb://h/?replicaSet=rs0", "collections=shop.orders"]
    now, without = load(None, given), load(None, [*given, "table.changelog="])
    for first, config in ((0, now), (10, without), (20, now), (20, without), (20, now), (30, now)):
        found = record_layout(folder, config, first)
        assert read_layouts(folder, base) == found
    assert folder.numbers("layouts") == [0, 10, 20]
    assert was_away(found, now.layout, ORDERS, 5, 31)
    (tmp_path / "lake/_checkpoint/layouts/20").write_text("damaged")
    assert record_layout(folder, now, 20) == found
    (tmp_path / "lake/_checkpoint/layouts").rename(tmp_path / "away")
    (tmp_path / "lake/_checkpoint/layouts").write_text("no folder")
    with pytest.raises(TransientError, match="cannot be written"):
        record_layout(folder, now, 20)


def steps(spark: SparkSession) -> list[DataFrame]:
    other = (OTHER.db, OTHER.coll)
    copied = [change("read", key, {"n": 0}, time=5) for key in "ab"]
    copied += [change("read", "x", {"n": 0}, time=5, event=2, ns=other)]
    away = [change("insert", "c", {"n": 1}, time=11), change("delete", "a", None, time=12)]
    away += [change("update", "x", {"n": 1}, time=13, ns=other)]
    back = [change("update", "b", {"n": 2}, time=21)]
    return [
        batch(spark, copied, until=5, copied=[str(ORDERS), str(OTHER)]),
        batch(spark, away, until=14),
        batch(spark, back, until=22),
    ]


@pytest.mark.parametrize(
    ("table", "overrides"),
    [
        ({"changelog": ""}, ()),
        ({"changelog": "{db}/{coll}/log"}, ()),
        (SHARED, [{"match": str(ORDERS), "changelog": ""}]),
    ],
)
def test_a_changelog_that_comes_back_does_not_cover_the_time_before(
    spark: SparkSession, tmp_path: Path, table: dict[str, Any], overrides: list[dict[str, Any]]
) -> None:
    """Guards: an earlier state of the collection that lacks changes; a rebuild that makes a mirror
    wrong. A shared changelog gets the rows of other collections meanwhile."""
    usual = SHARED if overrides else {}
    layouts = [
        layout(tmp_path, **usual),
        layout(tmp_path, *overrides, **table),
        layout(tmp_path, **usual),
    ]
    for number, rows in enumerate(steps(spark)):
        found = history(*enumerate(layouts[: number + 1]))
        is_away = number == 1
        own = sink(
            tmp_path,
            overrides=overrides if is_away else (),
            layouts=found,
            **(table if is_away else usual),
        )
        own.write_batch(rows, number)
    assert content(tmp_path / MIRROR) == {"b": {"n": 2}, "c": {"n": 1}}
    log = layouts[0].table("changelog", ORDERS)
    assert log is not None
    assert as_of(spark, log.target, ORDERS, Timestamp(5, 1)).count() == 2
    for second in (13, 22):
        with pytest.raises(NotCovered):
            as_of(spark, log.target, ORDERS, Timestamp(second, 1))
    mirror = layouts[0].table("mirror", ORDERS)
    assert mirror is not None
    own._followers.begin(3, rows.schema)
    if table["changelog"] and not overrides:
        own._followers.require_possible(spark, KINDS[0], mirror)  # both changelogs give it
    else:
        with pytest.raises(RebuildRefused, match="had none for it"):
            own._followers.require_possible(spark, KINDS[0], mirror)


def test_a_mirror_that_comes_back_together_with_its_changelog_is_warned_of(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Guards: a mirror that lacks changes and states a later time. One that was away alone gets
    them from its changelog."""
    copied, away, _ = steps(spark)
    now, without = layout(tmp_path), layout(tmp_path, mirror="")
    sink(tmp_path, layouts=history((0, now))).write_batch(copied, 0)
    found = history((0, now), (1, without))
    sink(tmp_path, with_mirror=False, layouts=found).write_batch(away, 1)
    with caplog.at_level(logging.WARNING):
        sink(tmp_path, layouts=found.extended(2, now)).begin(spark, 2, copied.schema)
        assert "lacks batches" not in caplog.text
        paused = history((0, now), (1, layout(tmp_path, mirror="", changelog="")), (2, now))
        sink(tmp_path, layouts=paused).begin(spark, 2, copied.schema)
    assert "lacks batches between" in caplog.text
    assert "backfill --into mirror --repair" in caplog.text
