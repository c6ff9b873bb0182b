"""The oracles find each kind of damage, nothing before there is any, and share no code with the
product: that they found nothing is worth as much as that."""

from __future__ import annotations

import ast
import json
import re
import shutil
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from bson.timestamp import Timestamp
from pymongo import MongoClient
from pyspark.sql import SparkSession

from cdc.delta.reading import live
from cdc.demo import ReplicaSet
from cdc.model import Namespace
from cdc.pipeline import Config
from cdc.pipeline import config as configuration
from tests.end_to_end.in_process import replicated
from tests.end_to_end.oracle import (
    Checkpoint,
    OfReplicaSet,
    changelog,
    collected,
    data_files,
    documents,
    live_violations,
    unnamed_files,
    violations,
)
from tests.end_to_end.oracle.changelog import changelog_violations
from tests.mongo.capture import filled

_ORACLE = Path(__file__).parent / "oracle"
# By which a table is named.
_NAMING = {"cdc.model.Namespace", "cdc.pipeline.Config"}


def test_the_oracles_import_nothing_of_the_product_but_what_names_a_table() -> None:
    imported = {name for path in _ORACLE.glob("*.py") for name in _imports(path)}
    assert {name for name in imported if name.startswith("cdc")} == _NAMING
    ours = {name for name in imported if name.startswith("tests")}
    assert {name for name in ours if not name.startswith("tests.end_to_end.oracle.")} == set()


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


class Scene(NamedTuple):
    """A pipeline that has copied and streamed, and its rows as the oracles read them."""

    config: Config
    checkpoint: Checkpoint
    truth: OfReplicaSet
    orders: Namespace
    changelog: list[Any]
    mirror: list[Any]
    history: list[Any]
    live: list[Any]

    def folder(self, kind: str) -> Path:
        table = self.config.table(kind, self.orders)
        assert table is not None
        return Path(table.target.address)


@pytest.fixture(scope="module")
def scene(
    spark: SparkSession,
    mongod: ReplicaSet,
    mongo: MongoClient[dict[str, Any]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Scene]:
    database, orders = mongo["test_oracles"], Namespace("test_oracles", "orders")
    settings = {
        "uri": mongod.uri,
        "collections": str(orders),
        "sink.path": str(tmp_path_factory.mktemp("oracles") / "lakehouse"),
        "document.format": "bson",
        "table.history": "{db}/{coll}/history",
    }
    config = configuration.load(None, [f"{name}={value}" for name, value in settings.items()])
    checkpoint, truth = Checkpoint(config), OfReplicaSet(mongo)
    filled(database, "orders", range(20))
    replicated(spark, config)
    _change(mongo, orders)
    replicated(spark, config)
    assert violations(spark, truth, config, checkpoint, orders) == []
    rows = collected(live(spark, config.layout, orders).rows.select("key", "document"))
    assert live_violations(rows, truth, config, checkpoint, orders) == []
    tables = {
        kind: collected(
            spark.read.format("delta").load(_address(config, kind, orders)).selectExpr(*c)
        )
        for kind, c in (
            ("changelog", changelog.COLUMNS),
            ("mirror", documents.MIRROR_COLUMNS),
            ("history", documents.HISTORY_COLUMNS),
        )
    }
    yield Scene(config, checkpoint, truth, orders, **tables, live=rows)
    mongo.drop_database(database.name)


def _address(config: Config, kind: str, namespace: Namespace) -> str:
    table = config.table(kind, namespace)
    assert table is not None
    return table.target.address


def _change(mongo: MongoClient[dict[str, Any]], orders: Namespace) -> None:
    coll = mongo[orders.db][orders.coll]
    for key in range(1, 9):
        coll.update_one(
            {"_id": key}, {"$set": {"n": 1, "new": {"a": [1, 2]}}, "$unset": {"old": 1}}
        )
    coll.update_one({"_id": 8}, {"$set": {"new.b": 3}, "$push": {"new.a": 3}})
    coll.replace_one({"_id": 9}, {"n": 2})
    coll.delete_one({"_id": 10})
    coll.insert_one({"_id": 30})
    with mongo.start_session() as session, session.start_transaction():
        for key in (11, 12):
            coll.update_one({"_id": key}, {"$set": {"n": 3}}, session=session)


def _row(rows: list[Any], key: str, op: str | None = None) -> dict[str, Any]:
    [found] = [row for row in rows if row["key"] == key and (op is None or row.get("op") == op)]
    assert isinstance(found, dict)
    return found


# What becomes of the changelog's rows, and what is found of it.
_OF_CHANGELOGS: dict[str, tuple[Callable[[list[Any]], object], set[str]]] = {
    "lost": (
        lambda rows: rows.remove(_row(rows, "1", "update")),
        {"update of 1 at T is missing"},
    ),
    "twice": (
        lambda rows: rows.append(_row(rows, "9", "replace")),
        {
            "9 stands 2 times at one position",
            "9: before-image of replace is not the document before it",
            "replace of 9 at T never happened",
        },
    ),
    "of another key": (
        lambda rows: _row(rows, "10", "delete").update(key="19", document_key='{"_id": 19}'),
        {
            "19: before-image of delete is not the document before it",
            "delete of 10 at T is missing",
            "delete of 19 at T never happened",
        },
    ),
    "another image": (
        lambda rows: _row(rows, "2", "update").update(after=_row(rows, "3", "update")["after"]),
        {"update of 2 at T: 'after' is not what the entry makes of 'before'"},
    ),
    "another image before": (
        lambda rows: _row(rows, "2", "update").update(before=_row(rows, "3", "read")["after"]),
        {
            "2: before-image of update is not the document before it",
            "update of 2 at T: 'after' is not what the entry makes of 'before'",
        },
    ),
    "no transaction": (
        lambda rows: _row(rows, "11", "update").update(txn=None),
        {"update of 11 at T: 'txn' is that of another transaction"},
    ),
    "another wall clock": (
        lambda rows: _row(rows, "3", "update").update(wall=0),
        {"update of 3 at T: 'wall_time' is another one"},
    ),
    "another document key": (
        lambda rows: _row(rows, "3", "update").update(document_key='{"_id": 4}'),
        {"update of 3 at T: 'document_key' is another one"},
    ),
    "another description": (
        lambda rows: _row(rows, "3", "update").update(update_description='{"updatedFields": {}}'),
        {"update of 3 at T: 'update_description' is not the entry's diff"},
    ),
    "inexact": (
        lambda rows: _row(rows, "3", "update").update(exact=False),
        {"3: update is not exact"},
    ),
}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("damage", _OF_CHANGELOGS)
def test_a_damaged_row_of_a_changelog_is_found(scene: Scene, damage: str) -> None:
    rows = deepcopy(scene.changelog)
    assert _wrong_changelog(scene, rows) == set()
    spoil, expected = _OF_CHANGELOGS[damage]
    spoil(rows)
    assert _wrong_changelog(scene, rows) == expected


def _wrong_changelog(scene: Scene, rows: list[Any]) -> set[str]:
    story, planned = scene.truth.story(scene.orders), scene.checkpoint.planned()
    found = changelog_violations(rows, story, scene.orders, planned)
    return {re.sub(r"at Timestamp\(\d+, \d+\)", "at T", text) for text in found}


@pytest.mark.slow
def test_a_damaged_row_of_a_mirror_a_live_view_or_a_history_is_found(scene: Scene) -> None:
    frontier, other = scene.checkpoint.planned()[-1], b"\x05\0\0\0\0"
    for rows in (scene.mirror, scene.live):
        damaged = [dict(row) for row in rows if row["key"] != "7"]
        _row(damaged, "8")["document"] = other
        damaged += [_row(damaged, "9"), {"key": "77", "document": other, "_position": ""}]
        found = documents.wrong_documents(damaged, scene.truth, scene.orders, frontier)
        assert set(found) == {
            "7 is missing",
            "8 differs",
            "9 is in it 2 times",
            "77 is not in the collection",
        }
    mirror = deepcopy(scene.mirror)
    _row(mirror, "5")["_position"] = _row(mirror, "4")["_position"]
    assert list(documents.wrong_positions(mirror, scene.changelog)) == [
        "5 has the position of another change than the last"
    ]
    history = [dict(row) for row in scene.history]
    [ended] = [row for row in history if row["key"] == "10"]
    start, ended["end"] = ended["start"], None
    assert set(documents.wrong_versions(history, scene.changelog)) == {
        f"10 lacks the version from {start} on",
        f"10 never had the version from {start} on",
    }


@pytest.mark.slow
def test_a_run_that_was_not_killed_leaves_no_file_that_no_commit_names(scene: Scene) -> None:
    assert {kind: unnamed_files(scene.folder(kind)) for kind in ("changelog", "mirror")} == {
        "changelog": set(),
        "mirror": set(),
    }


class Log:
    """The log of a copied changelog, to be damaged."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._last = max((folder / "_delta_log").glob("[0-9]*.json"))

    @property
    def actions(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._last.read_text().splitlines()]

    def add(self) -> dict[str, Any]:
        found = next(action["add"] for action in self.actions if "add" in action)
        assert isinstance(found, dict)
        return found

    def rewrite(self, actions: list[dict[str, Any]]) -> None:
        self._last.write_text("".join(json.dumps(action) + "\n" for action in actions))

    def append(self, actions: list[dict[str, Any]]) -> None:
        path = self._last.with_name(f"{int(self._last.stem) + 1:020}.json")
        path.write_text("".join(json.dumps(action) + "\n" for action in actions))

    def change_statistics(self, spoil: Callable[[dict[str, Any]], object]) -> None:
        actions = self.actions
        for action in actions:
            if "add" in action:
                stats = json.loads(action["add"]["stats"])
                spoil(stats)
                action["add"]["stats"] = json.dumps(stats)
        self.rewrite(actions)

    def count_twice(self) -> None:
        actions = self.actions
        for action in actions:
            if "commitInfo" in action:
                stated = json.loads(action["commitInfo"]["userMetadata"])
                for group in stated["groups"]:
                    group["rows"] *= 2
                action["commitInfo"]["userMetadata"] = json.dumps(stated)
        self.rewrite(actions)


# What becomes of a log, and how what is found begins.
_OF_LOGS: dict[str, tuple[Callable[[Log], object], set[str]]] = {
    "file removed": (
        lambda log: (log.folder / log.add()["path"]).unlink(),
        {"version V names F, which is missing"},
    ),
    "file added twice": (
        lambda log: log.append([{"add": log.add()}]),
        {"versions V add F"},
    ),
    "batch committed twice": (
        lambda log: log.append([each for each in log.actions if "add" not in each]),
        {"2 commits have the transaction 1", "2 commits contain batch 1"},
    ),
    "maximum too small": (
        lambda log: log.change_statistics(lambda stats: stats["maxValues"].update(key="1")),
        {"F: a row lies beyond the maximum of key"},
    ),
    "minimum too large": (
        lambda log: log.change_statistics(lambda stats: stats["minValues"].update(key="9")),
        {"F: a row lies beyond the minimum of key"},
    ),
    "other number of rows": (
        lambda log: log.change_statistics(lambda stats: stats.update(numRecords=1)),
        {"F: 'numRecords' is 1"},
    ),
    "counted twice": (Log.count_twice, {"the commit of batch 1 states other rows"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("damage", _OF_LOGS)
def test_a_damaged_log_is_found(scene: Scene, damage: str, tmp_path: Path) -> None:
    folder = tmp_path / "changelog"
    shutil.copytree(scene.folder("changelog"), folder)
    spoil, expected = _OF_LOGS[damage]
    assert _wrong_log(scene, folder) == set()
    spoil(Log(folder))
    assert _wrong_log(scene, folder) == expected


def _wrong_log(scene: Scene, folder: Path) -> set[str]:
    counts: dict[int, dict[str, int]] = {0: {"read": 20}, 1: {}}
    for row in scene.changelog:
        if row["key"] is not None and row["op"] != "read":
            counts[1][row["op"]] = counts[1].get(row["op"], 0) + 1
    found = [
        *data_files.log_violations(folder),
        *data_files.repeated_batches(folder),
        *data_files.wrong_statistics(folder),
        *data_files.wrong_summaries(folder, counts),
    ]
    return {_without_names(text) for text in found}


def _without_names(text: str) -> str:
    text = re.sub(r"cdc-[0-9a-f-]{36}\.parquet", "F", text)
    text = re.sub(r"(?<=versions )\d+ and \d+|(?<=version )\d+", "V", text)
    return re.sub(r" states .*", " states other rows", text)


@pytest.mark.slow
def test_delta_rs_counts_the_rows_of_a_version(scene: Scene) -> None:
    folder = scene.folder("changelog")
    version, batch = data_files.newest(folder)
    assert data_files.count_rows(folder, version) == len(scene.changelog)
    assert data_files.newest(folder, batch - 1)[0] < version
    assert scene.checkpoint.planned()[batch].time > Timestamp(0, 0)
