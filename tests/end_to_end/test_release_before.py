"""A pipeline that a release before has written goes on with this one.

`releases` contains what releases have left: tables, checkpoint, options. They were made by the code
of these releases; `release_sample.py` says how.
"""

from __future__ import annotations

import json
import re
import shutil
import tomllib
from collections import Counter
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pymongo import MongoClient
from pyspark.sql import SparkSession
from rich.console import Console

from cdc.cli import follow, replicate
from cdc.delta.log import Commit
from cdc.demo import ReplicaSet
from cdc.model import Namespace, Offset, timestamp
from cdc.options import SourceOptions
from cdc.pipeline import Config, verify
from cdc.pipeline import config as configuration
from cdc.pipeline.sections import flatten
from cdc.source import fit_to_cores
from tests.delta import delta_rs
from tests.end_to_end.release_sample import COLLECTIONS, DB, change, change_last, create

SAMPLES = Path(__file__).parent / "releases"
RELEASES = sorted(each.name for each in SAMPLES.iterdir())
FOLLOWING = ("mirror", "history")
ALL = ("changelog", *FOLLOWING)
# Kinds of tables without the last batch, which is in no commit of the checkpoint then.
KILLED = {"after all commits": None, "before the mirror": FOLLOWING, "before the changelog": ALL}
# Of all pairs, which `make soak` tries, those in `make test-slow`.
_TRIED = {("before_readable_id", "before the changelog")}
LAST = 2
NAMES = [Namespace(DB, each) for each in COLLECTIONS]
# The rows of the batches of the sample, and of `change_more`.
ROWS = Counter(
    [
        *(("read", str(key)) for key in range(6)),
        *(("update", "1"), ("delete", "2"), ("insert", "7")),
        *(("update", "1"), ("delete", "7"), ("replace", "3")),
        *(("update", "1"), ("delete", "4"), ("insert", "8")),
    ]
)


def change_more(database: Any) -> None:
    """The changes that only this release reads."""
    for name in COLLECTIONS:
        database[name].update_one({"_id": 1}, {"$inc": {"n": 1}})
        database[name].delete_one({"_id": 4})
        database[name].insert_one({"_id": 8, "n": 8, "address": {"city": "new"}})


# --- what a release states is understood ----------------------------------------------------------


def offsets_of(lake: Path) -> dict[int, dict[str, Any]]:
    """The end of each batch in the checkpoint of a sample."""
    files = (lake / "_checkpoint/offsets").iterdir()
    return {int(file.name): json.loads(file.read_text().splitlines()[-1]) for file in files}


def commits_of(lake: Path) -> Iterator[tuple[Path, str]]:
    """The commits of all tables of a sample that state something, and what."""
    for file in sorted(lake.rglob("_delta_log/*.json")):
        for action in map(json.loads, file.read_text().splitlines()):
            if text := action.get("commitInfo", {}).get("userMetadata"):
                yield file, text


@pytest.mark.parametrize("release", RELEASES)
def test_the_offsets_and_commits_of_a_release_are_understood(release: str) -> None:
    """Guards: a checkpoint that is refused, and a batch that is applied twice."""
    lake = SAMPLES / release / "lake"
    offsets = offsets_of(lake)
    assert sorted(offsets) == [0, 1, LAST]
    for text in offsets.values():
        assert timestamp.text(Offset.from_json(text).time) == text["time"]
    found = list(commits_of(lake))
    assert len(found) >= len(COLLECTIONS) * len(ALL) * len(offsets)
    for file, text in found:
        commit = Commit.parse(text)
        assert commit is not None, file
        if commit.batch >= 0:
            assert timestamp.text(commit.watermark) == offsets[commit.batch]["time"]


def test_a_checkpoint_of_a_later_release_is_refused_and_nothing_is_written(
    mongod: ReplicaSet, mongo: MongoClient[dict[str, Any]], tmp_path: Path
) -> None:
    """Guards: a downgrade that goes on from what it does not understand."""
    mongo.drop_database(DB)
    create(mongo[DB])
    lake = tmp_path / "pipeline" / "lake"
    shutil.copytree(SAMPLES / RELEASES[0], tmp_path / "pipeline")
    last = lake / f"_checkpoint/offsets/{LAST}"
    last.write_text(last.read_text().replace('"version": 2', '"version": 99'))
    before = {path: path.read_bytes() for path in lake.rglob("*") if path.is_file()}
    given = ["--config", str(tmp_path / "pipeline/pipeline.toml"), "--available-now"]
    given += ["-o", f"uri={mongod.uri}", "-o", f"sink.path={lake}"]
    done = CliRunner().invoke(replicate.main, given)
    assert done.exit_code == 1, done.output
    assert "an offset of version 99" in done.output
    assert "Remedy: " in done.output
    assert {path: path.read_bytes() for path in lake.rglob("*") if path.is_file()} == before
    mongo.drop_database(DB)


# The place and the names of an example are those of its author.
OWN = ("uri", "collections", "start", "path", "checkpoint", "match")


@pytest.mark.parametrize("release", RELEASES)
def test_each_option_of_a_release_is_accepted_and_has_the_same_default(release: str) -> None:
    """Its example lists all options with their defaults, and those without one as comments. Some
    defaults depend on the cores now; with two of them they are the same."""
    text = (SAMPLES / release / "example.toml").read_text()
    required = ["uri=mongodb://h", "collections=a.b", "sink.path=/lake"]
    given = [
        f"{section}.{name}={configuration.to_text(value)}"
        for section, values in tomllib.loads(text).items()
        for name, value in flatten(values)
        if name not in OWN and value not in ({}, [])
    ]
    assert len(given) >= 30
    by_cores = fit_to_cores(configuration.load(None, required).options, 2).items()
    fitting = [f"{name}={value}" for name, value in by_cores]
    default, same = (configuration.load(None, [*required, *more]) for more in (fitting, given))
    for field in SourceOptions.__dataclass_fields__:
        if field not in ("uri", "collections"):
            assert getattr(same.options, field) == getattr(default.options, field), field
    assert same.layout == default.layout
    assert (same.trigger, same.stop_seconds) == (default.trigger, default.stop_seconds)
    section = ""
    commented = []
    for line in text.splitlines():
        section = found[1] if (found := re.match(r"\[(\w+)\]", line)) else section
        if found := re.match(r"# ([a-z_.]+) = (.+)", line):
            option = tomllib.loads(f"x = {found[2]}")["x"]
            commented.append((section, found[1], configuration.to_text(option)))
    others = [each for each in commented if each[0] == "source" and each[1] not in OWN]
    assert len(others) >= 4
    more = [f"{section}.{name}={value}" for section, name, value in others]
    assert configuration.load(None, [*required, *more]).options != default.options


# --- the pipeline goes on -------------------------------------------------------------------------


def put_back(
    release: str, folder: Path, mongod: ReplicaSet, client: MongoClient[dict[str, Any]], kill: str
) -> Config:
    """The pipeline of a release after its last batch, whose source is the server of the tests.

    The server makes the changes of the sample again, and the times at which the batches end are
    those of this server instead: the only thing in the sample that is changed.
    """
    shutil.copytree(SAMPLES / release, folder)
    lake = folder / "lake"
    before = offsets_of(lake)
    create(client[DB])
    change(client[DB])
    ends = {LAST - 1: now(client)}
    change_last(client[DB])
    ends[LAST] = now(client)
    files = [*lake.rglob("_delta_log/*.json"), *(lake / "_checkpoint/offsets").iterdir()]
    for file in files:
        text = file.read_text()
        for batch, end in ends.items():
            text = re.sub(rf"\b{before[batch]['time']}\b", end, text)
        file.write_text(text)
    if kinds := KILLED[kill]:
        (lake / f"_checkpoint/commits/{LAST}").unlink()
        for file, text in list(commits_of(lake)):
            if json.loads(text)["batch"] == LAST and file.parents[1].name in kinds:
                file.unlink()
    return configuration.load(
        str(folder / "pipeline.toml"), [f"uri={mongod.uri}", f"sink.path={lake}"]
    )


def now(client: MongoClient[dict[str, Any]]) -> str:
    """The time of the last write, as offsets state it."""
    return timestamp.text(client.admin.command("ping")["operationTime"])


def run(config: Config) -> None:
    assert replicate.run(config, True, Console(file=StringIO())) == 0


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("release", "kill"),
    [
        pytest.param(
            *(release, kill),
            marks=pytest.mark.slow if (release, kill) in _TRIED else pytest.mark.soak,
        )
        for release in RELEASES
        for kill in KILLED
    ],
)
def test_a_pipeline_of_a_release_goes_on(
    spark: SparkSession,
    mongod: ReplicaSet,
    mongo: MongoClient[dict[str, Any]],
    tmp_path: Path,
    release: str,
    kill: str,
) -> None:
    """Guards: rows that are lost or there twice where the release was killed; tables that are not
    taken for those of the pipeline; a mirror or a history that lacks a batch; a command to rebuild
    them that does not."""
    mongo.drop_database(DB)
    config = put_back(release, tmp_path / "pipeline", mongod, mongo, kill)
    run(config)
    change_more(mongo[DB])
    run(config)
    for name in NAMES:
        require_whole(spark, config, mongo, name)
        assert not any("_id" in columns for columns in columns_of(spark, config, name))
    orders = NAMES[0]
    assert verify(spark, config, orders, True).is_equal
    # The command that gives tables of a release the columns that new ones have.
    follow.rebuild(config, (str(orders),), Console(file=StringIO()))
    require_whole(spark, config, mongo, orders)
    assert all("_id" in columns for columns in columns_of(spark, config, orders))
    mongo.drop_database(DB)


def columns_of(spark: SparkSession, config: Config, name: Namespace) -> list[list[str]]:
    return [config.require_table(kind, name).target.read(spark).columns for kind in FOLLOWING]


def require_whole(
    spark: SparkSession, config: Config, client: MongoClient[dict[str, Any]], name: Namespace
) -> None:
    """The changelog contains each row once, and mirror and history what the collection does."""
    changelog = config.require_table("changelog", name).target
    rows = delta_rs.read(Path(changelog.address), "SELECT op, key FROM t")
    assert Counter((row["op"], row["key"]) for row in rows) == ROWS
    assert verify(spark, config, name).is_equal
    there = {str(each["_id"]) for each in client[name.db][name.coll].find({}, {"_id": 1})}
    history = config.require_table("history", name).target.read(spark)
    valid = history.where("__END_AT IS NULL").select("key").collect()
    assert sorted(row.key for row in valid) == sorted(there)
