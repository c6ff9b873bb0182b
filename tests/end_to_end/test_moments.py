"""From a server through the changelog back to a server: each moment, byte for byte."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from click.testing import CliRunner
from pymongo.database import Database
from pyspark.sql import SparkSession

from cdc.checkpoint import checkpoint
from cdc.cli import restore
from cdc.cli.commands import LEFT
from cdc.delta.reading import as_of
from cdc.demo import ReplicaSet
from cdc.errors import NotCovered
from cdc.model import Namespace, timestamp
from cdc.model.bson import element
from cdc.pipeline import Config
from tests.end_to_end.in_process import replicated
from tests.model import mixed
from tests.model.test_merge_key import OTHERS, SPECIAL_NUMBERS
from tests.model.test_merge_key import document as of_elements
from tests.mongo.capture import RAW, Contents, contents, filled


def every_type() -> list[bytes]:
    values = [(element.TIMESTAMP, bytes(8)), *SPECIAL_NUMBERS, *OTHERS, *mixed.values(5, 100)]
    ids = [(element.INT32, struct.pack("<i", 100 + n)) for n in range(len(values))]
    pairs = zip(ids, values, strict=True)
    return [of_elements((b"_id", own), (b"v", of_elements((b"w", v))))[1] for own, v in pairs]


class Moments:
    """What a collection held after some steps of its life."""

    def __init__(self, database: Database[dict[str, Any]]) -> None:
        self._database = database
        self.held: dict[str, tuple[str, Timestamp, Contents]] = {}

    def look(self, step: str, name: str) -> None:
        at = self._database.command("ping")["operationTime"]
        self.held[step] = name, at, contents(self._database[name], at)


def live(database: Database[dict[str, Any]], moments: Moments) -> None:
    a, b = database["a"], database["b"]
    raw: Any = database.get_collection("a", codec_options=RAW)
    raw.insert_many([RawBSONDocument(each) for each in every_type()])
    a.update_one({"_id": 1}, {"$set": {"n": 1}})
    a.delete_one({"_id": 2})
    moments.look("written", "a")
    b.drop()
    moments.look("dropped", "b")
    b.insert_one({"_id": 7, "again": True})
    moments.look("re-created", "b")
    a.aggregate([{"$match": {"_id": {"$lt": 9}}}, {"$out": "b"}])
    moments.look("replaced", "b")
    b.delete_one({"_id": 3})


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_changelog_gives_back_each_moment_and_a_restore_its_bytes(
    mongod: ReplicaSet,
    database: Database[dict[str, Any]],
    spark: SparkSession,
    pipeline: Callable[..., Config],
    tmp_path: Path,
) -> None:
    """Guards: drop, re-creation and $out, between batches and in them; documents that the target
    of a restore refuses are left out, and taken up once it does not."""
    for name in "ab":
        filled(database, name, range(20))
    moments = Moments(database)
    config = pipeline(rf"{database.name}\.[ab]", "table.mirror=")
    moments.look("before", "a")
    database["b"].update_one({"_id": 1}, {"$set": {"n": 1}})
    replicated(spark, config)
    moments.look("copied", "b")
    live(database, moments)
    replicated(spark, config)

    for step, (name, at, content) in moments.held.items():
        # What was replaced was copied as of then.
        expected = None if step == "before" else content
        assert state(spark, config, name, at) == expected, step

    _, at, content = moments.held["written"]
    (tmp_path / "uri").write_text(mongod.uri)
    report = tmp_path / "restored.json"
    options = [f"{name}={value}" for name, value in config.source.items()]
    options += [f"sink.path={config.checkpoint.removesuffix('/_checkpoint')}"]
    arguments = [argument for option in options for argument in ("-o", option)]
    arguments += ["--to-uri", f"file:{tmp_path / 'uri'}", "--namespace", f"{database.name}.back"]
    arguments += ["--collection", f"{database.name}.a", "--json", str(report)]
    arguments += ["--as-of", timestamp.text(at)]
    database.create_collection("back", validator={"_id": {"$nin": [5, 6]}})
    incomplete = CliRunner().invoke(restore.main, arguments)
    assert incomplete.exit_code == LEFT, incomplete.output
    reason = "the target's validation refuses it (code 121)"
    assert f"\n  2 left out, {reason}: 5, 6\n" in incomplete.output
    reported = json.loads(report.read_text())
    assert (reported["documents"], reported["left_out"]) == (len(content) - 2, 2)
    assert (reported["reasons"], reported["keys"]) == ({reason: 2}, {reason: ["5", "6"]})
    assert contents(database["back"]) == {k: v for k, v in content.items() if k not in ("5", "6")}
    database.command("collMod", "back", validator={})
    done = CliRunner().invoke(restore.main, arguments)
    assert done.exit_code == 0, done.output
    assert contents(database["back"]) == content
    assert json.loads(report.read_text()) == {
        "collection": f"{database.name}.a",
        "into": f"{database.name}.back",
        "at": timestamp.text(at),
        "documents": len(content),
        "inexact": 0,
        "losses": None,
        "resumed": True,
        "left_out": 0,
        "reasons": {},
        "keys": {},
    }
    refused = CliRunner().invoke(restore.main, arguments)
    assert refused.exit_code == 1
    assert "--force" in refused.output


def state(spark: SparkSession, config: Config, name: str, at: Timestamp) -> Contents | None:
    """As the changelog has it; None if it does not."""
    (db,) = {part.split("\\")[0] for part in config.source["collections"].split(",")}
    namespace = Namespace(db, name)
    table = config.table("changelog", namespace)
    assert table is not None
    until = checkpoint.complete_until(config.checkpoint, namespace)
    try:
        found = as_of(spark, table.target, namespace, at, until).collect()
    except NotCovered:
        return None
    assert all(row.exact for row in found)
    return {row.key: bytes(row.document) for row in found}
