"""`status` reports where a pipeline stands by its checkpoint and its source, and starts nothing."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pymongo.database import Database
from pyspark.sql.types import StructType

from cdc import options as declared
from cdc import source
from cdc.cli import status
from cdc.demo import ReplicaSet
from cdc.model import Selection, Timestamp
from cdc.mongo.connection.privileges import required_needs
from cdc.mongo.inspect import source_status
from cdc.mongo.topology import Remaining
from cdc.monitoring import Tables, summarize
from tests.jvm import run_without_java
from tests.mongo.access import SECRET, Guarded
from tests.mongo.capture import Document
from tests.monitoring.example_view import view

Run = Callable[..., Result]


class Job:
    """Batches as Spark logs them, by the source's own offsets."""

    def __init__(self, given: dict[str, str], checkpoint: Path) -> None:
        options = {"split.size.mb": "1", "snapshot.splits.per.batch": "1", **given}
        self._reader = source.ChangeReader(declared.parse(options), StructType())
        self._checkpoint, self._number = checkpoint, -1
        self.now: Callable[[], float] = time.time
        for name in ("offsets", "commits"):
            (checkpoint / name).mkdir(parents=True)
        self.offset = self._reader.initialOffset()

    def plan(self) -> None:
        limit = self._reader.getDefaultReadLimit()
        self.offset = self._reader.latestOffset(self.offset, limit)
        self._number += 1
        (self._checkpoint / "offsets" / f".{self._number}.crc").write_text("not an offset")
        began = {"batchWatermarkMs": 0, "batchTimestampMs": int(self.now() * 1000), "conf": {}}
        self._logged("offsets", json.dumps(began), json.dumps(self.offset))

    def write(self) -> None:
        self._logged("commits", "{}")

    def _logged(self, kind: str, *lines: str) -> None:
        path = self._checkpoint / kind / str(self._number)
        path.write_text("\n".join(["v1", *lines]))
        os.utime(path, (self.now(), self.now()))

    def stop(self) -> None:
        self._reader.stop()


@pytest.fixture
def given(mongod: ReplicaSet, database: Database[Document]) -> dict[str, str]:
    return {"uri": mongod.uri, "collections": rf"{database.name}\.[abc]"}


@pytest.fixture
def run(given: dict[str, str], tmp_path: Path) -> Run:
    """Calls `status` in this process."""
    named = {**given, "sink.path": str(tmp_path)}

    def call(*arguments: str, **overrides: str) -> Result:
        settings = {**named, **{k.replace("_", "."): v for k, v in overrides.items()}}
        options = [item for name, value in settings.items() for item in ("-o", f"{name}={value}")]
        return CliRunner().invoke(status.main, [*options, *arguments])

    return call


def reported(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def phases(found: dict[str, Any]) -> list[tuple[str, float]]:
    return [(each["phase"], each["copiedPercent"]) for each in found["collections"]]


def test_each_phase_of_a_run_is_reported_as_far_as_its_tables_are(
    given: dict[str, str], database: Database[Document], run: Run, tmp_path: Path
) -> None:
    """Guards: what is planned and not written counts for nothing."""
    for name in "abc":
        database[name].insert_many({"_id": n, "pad": "x" * 2000} for n in range(1200))
    found = reported(run("--json"))
    assert found["batches"] == {
        "planned": None,
        "written": None,
        "beganAt": None,
        "writtenAt": None,
    }
    assert phases(found) == [("not begun", 0.0)] * 3
    assert (found["metrics"]["time"], found["metrics"]["snapshotPercent"]) == (None, 0)
    assert found["metrics"]["lagSeconds"] is None
    assert found["freshnessSeconds"] == {"changelog": None, "liveView": None, "mirror": None}

    job = Job(given, tmp_path / "_checkpoint")
    job.plan()
    found = reported(run("--json"))
    assert (found["batches"]["planned"], found["batches"]["written"]) == (0, None)
    assert phases(found) == [("not begun", 0.0)] * 3

    job.write()
    first = job.offset["time"]
    job.plan()
    found = reported(run("--json"))
    assert (found["batches"]["planned"], found["batches"]["written"]) == (1, 0)
    [(phase, percent), *others] = phases(found)
    assert phase == "copying"
    assert 35 < percent < 60
    assert others == [("not begun", 0.0)] * 2
    assert found["metrics"]["time"] == first
    assert abs(found["metrics"]["snapshotPercent"] - percent / 3) < 0.2

    while job.offset["swept"] is not None:
        job.write()
        job.plan()
    job.write()
    found = reported(run("--json"))
    assert phases(found) == [("streaming", 100.0)] * 3
    assert found["metrics"]["snapshotPercent"] == 100
    assert found["metrics"]["oplogWindow"]["percentLeft"] == 100
    job.stop()


def test_lag_and_changes_are_those_of_the_last_batches(
    given: dict[str, str],
    database: Database[Document],
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(source_status, "_PATIENCE_SECONDS", 30.0)
    database.a.insert_one({"_id": 0})
    job = Job({**given, "heartbeat.interval": "0"}, tmp_path / "_checkpoint")
    for number in range(4):
        database.a.insert_many({} for _ in range(100))
        job.now = partial(float, 1_700_000_000 + 4 * number)
        job.plan()
        job.now = partial(float, 1_700_000_001 + 4 * number)
        job.write()
    job.stop()
    found = reported(run("--json"))
    # The first of the four is more than ten seconds older than the last.
    assert found["metrics"]["eventsPerSecond"] == 200 / 8
    assert found["batches"]["beganAt"] == "2023-11-14T22:13:32Z"
    assert found["batches"]["writtenAt"] == "2023-11-14T22:13:33Z"
    assert found["metrics"]["lagSeconds"] is not None

    shown = run()
    assert shown.exit_code == 0, shown.output
    lines = dict(line.split(":", 1) for line in shown.stdout.splitlines() if ":" in line)
    assert lines["batches"].strip().startswith("3 was written ")
    assert job.offset["time"] in lines["T"]
    assert lines["changes"].strip() == "25.0 events/s in the last batches"
    assert lines["oplog"].strip().endswith("(100 %) left")
    assert lines["copied"].strip() == "100.0 %"

    shutil.copytree(tmp_path / "_checkpoint", tmp_path / "copy", copy_function=shutil.copyfile)
    copied = reported(run("--json", sink_checkpoint=str(tmp_path / "copy")))
    assert copied["metrics"]["eventsPerSecond"] == 200 / 8
    assert copied["batches"] == {**found["batches"], "writtenAt": None}
    assert "3 is written, and began " in run(sink_checkpoint=str(tmp_path / "copy")).stdout


def test_what_is_to_be_copied_from_now_on_is_not_reported_as_copied(
    given: dict[str, str], database: Database[Document], run: Run, tmp_path: Path
) -> None:
    for name in "ab":
        database[name].insert_many({"_id": n} for n in range(10))
    job = Job({**given, "collections": f"{database.name}.a"}, tmp_path / "_checkpoint")
    while job.offset["swept"] is not None:
        job.plan()
        job.write()
    job.stop()
    for changed, phases_then in (
        ({"collections": f"{database.name}.a"}, [("streaming", 100.0)]),
        ({}, [("streaming", 100.0), ("not begun", 0.0)]),
        ({"collections": f"{database.name}.a", "fields": "n"}, [("not begun", 0.0)]),
    ):
        found = reported(run("--json", **changed))
        assert phases(found) == phases_then
        percents = [percent for _, percent in phases_then]
        assert (found["metrics"]["snapshotPercent"] == 100) == (min(percents) == 100)


def test_what_the_user_may_not_know_is_unknown(guarded: Guarded, tmp_path: Path) -> None:
    guarded.client["looked"]["a"].insert_one({"_id": 0})
    collections = "looked.a"
    needs = required_needs(Selection.parse(collections))
    uri = guarded.user(needs, guarded.by_uuid)
    job = Job({"uri": uri, "collections": collections}, tmp_path / "_checkpoint")
    for _ in range(2):
        job.plan()
        job.write()
    job.stop()
    given = (f"uri={uri}", f"collections={collections}", f"sink.path={tmp_path}")
    arguments = [item for each in given for item in ("-o", each)]
    shown = CliRunner().invoke(status.main, arguments)
    assert shown.exit_code == 0, shown.output
    assert SECRET not in shown.output
    lines = dict(line.split(":", 1) for line in shown.stdout.splitlines() if ":" in line)
    assert lines["oplog"].strip() == lines["changes"].strip() == "unknown"


@pytest.mark.parametrize(
    ("overrides", "code", "said"),
    [
        ({"uri": "nonsense"}, 2, "uri"),
        ({"sink_checkpoint": "s3://bucket/_checkpoint"}, 2, "local file system"),
        ({"sink_checkpoint": "hdfs:/lake/_checkpoint"}, 2, "local file system"),
        ({"uri": "mongodb://u:c4nary@127.0.0.1:1", "server_timeout_ms": "300"}, 3, "port"),
    ],
)
def test_a_status_that_cannot_be_had_is_reported_by_exit_code_and_sentence(
    run: Run, overrides: dict[str, str], code: int, said: str
) -> None:
    result = run(**overrides)
    assert result.exit_code == code, result.output
    [line] = result.stderr.splitlines()
    assert line.startswith("error: ")
    assert said in line
    assert "Remedy: " in line
    assert "c4nary" not in result.output


def test_a_checkpoint_of_something_else_is_refused(
    given: dict[str, str], database: Database[Document], run: Run, tmp_path: Path
) -> None:
    database.a.insert_one({"_id": 0})
    job = Job(given, tmp_path / "_checkpoint")
    job.plan()
    job.write()
    job.stop()
    assert run(sink_checkpoint=f"file://{tmp_path}/_checkpoint").exit_code == 0
    offset = tmp_path / "_checkpoint" / "offsets" / "0"
    text = offset.read_text()
    for other in (
        text.replace('"source": "rs', '"source": "not-rs'),
        text.replace('"version": 4', '"version": 99'),
        text.replace("v1\n", "v9\n"),
        text.replace("batchTimestampMs", "somethingElse"),
        f"{text}\n{{}}",
    ):
        offset.write_text(other)
        result = run()
        assert result.exit_code == 1, result.output
        assert "Remedy: " in result.stderr


def test_older_batches_may_be_damaged_and_the_last_may_not(
    given: dict[str, str], database: Database[Document], run: Run, tmp_path: Path
) -> None:
    """Guards: a repair leaves what no job asks for."""
    database.a.insert_one({"_id": 0})
    job = Job(given, tmp_path / "_checkpoint")
    for _ in range(3):
        job.plan()
        job.write()
    job.stop()
    offsets = tmp_path / "_checkpoint" / "offsets"
    (offsets / "0").write_text("v1")
    (offsets / "1").unlink()
    assert reported(run("--json"))["batches"]["written"] == 2
    whole = (offsets / "2").read_text()
    (offsets / "2").write_text("v1")
    result = run()
    assert result.exit_code == 1
    assert "offsets/2 is damaged" in result.stderr
    assert "repair-checkpoint" in result.stderr
    (offsets / "3").write_text(whole)
    (offsets / "4").write_text(whole)
    assert reported(run("--json"))["batches"] == {
        "planned": 4,
        "written": None,
        "beganAt": None,
        "writtenAt": None,
    }


def test_it_works_where_there_is_no_java(
    given: dict[str, str], database: Database[Document], tmp_path: Path
) -> None:
    """Guards: no Spark is started."""
    database.a.insert_one({"_id": 0})
    settings = (f"{name}={value}" for name, value in {**given, "sink.path": tmp_path}.items())
    done = run_without_java("cdc.cli.status", settings)
    assert done.returncode == 0, done.stderr
    assert "not begun" in done.stdout


def test_a_mirror_that_lags_is_as_fresh_as_the_batch_before_those_that_it_lacks() -> None:
    """Guards: the time that a batch waits for the mirror, which was called its lag."""
    found = status.describe(view(changed=["drop"]))
    assert found["metrics"]["lagSeconds"] == 5
    assert found["freshnessSeconds"] == {"changelog": 5, "liveView": 5, "mirror": 70}
    [collection] = found["collections"]
    assert collection["freshnessSeconds"] == {"mirror": 70}
    assert collection["backlog"]["mirror"]["batches"] == 2
    shown = summarize(view(changed=["drop"]))
    assert shown["freshness"] == "changelogs and live views 5 s, mirrors and histories 70 s"
    fresh = status.describe(view())
    assert fresh["freshnessSeconds"] == {"changelog": 5, "liveView": 5, "mirror": 5}


def test_where_nothing_is_written_there_is_neither_lag_nor_freshness() -> None:
    new = view()
    new = replace(new, metrics=replace(new.metrics, time=None, lag_seconds=None), collections=[])
    shown = summarize(new)
    assert (shown["lag"], shown["freshness"]) == ("none yet", "none yet")


def test_a_batch_of_which_the_checkpoint_has_no_time_makes_freshness_unknown() -> None:
    """Guards: a backlog that is longer than what Spark and Delta retain, and looks short."""
    lagging = replace(view(changed=["drop"]), times={})
    assert status.describe(lagging)["freshnessSeconds"]["mirror"] is None
    [(extent, tables)] = lagging.collections
    assert tables.changelog is not None
    assert tables.mirror is not None
    cut = replace(tables.changelog, commits=tables.changelog.commits[:2])
    tables = Tables(cut, {"mirror": replace(tables.mirror, applied=3)})
    backlogs = tables.backlogs(extent.namespace)
    assert (backlogs["mirror"].batches, backlogs["mirror"].first) == (2, 4)


@pytest.mark.parametrize(
    ("reported", "said"),
    [
        ({}, None),
        ({"left": Remaining(3.0, 12.0, "")}, "3.0 hours more (12 %)"),
        ({"quiet": 500.0, "lag": 400}, "No batch was written for 50"),
        ({"quiet": 500.0, "lag": 4}, None),
        ({"quiet": 5.0, "lag": 400}, None),
        ({"letters": 1234}, "1,234 values could not be mapped"),
        ({"changed": ["createIndexes", "drop"]}, "lags its changelog by 2 batches, 50"),
        ({"changed": ["createIndexes"]}, None),
        ({"exact_from": Timestamp(2**32 - 1, 1)}, "is exact from"),
    ],
)
def test_what_somebody_should_look_at_is_reported_in_one_sentence(
    reported: dict[str, Any], said: str | None
) -> None:
    warnings = view(**reported).warnings
    assert len(warnings) == (said is not None)
    assert said is None or said in warnings[0]


def test_a_page_is_served_until_ctrl_c(
    given: dict[str, str], database: Database[Document], tmp_path: Path
) -> None:
    database.a.insert_one({"_id": 0})
    settings = {**given, "sink.path": str(tmp_path / "the shop")}
    options = [item for name, value in settings.items() for item in ("-o", f"{name}={value}")]
    command = [sys.executable, "-m", "cdc.cli.status", *options, "--serve", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:\d+/", program.stdout.readline())
        assert found
        with urllib.request.urlopen(found[0]) as reply:
            page = reply.read().decode()
        program.send_signal(signal.SIGINT)
        assert program.wait(20) == 130
    assert "<h1>the shop</h1>" in page
    assert f"<b>{database.name}.a</b>" in page
    assert "No batch is written yet" in page
