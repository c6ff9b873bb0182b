"""What programs find out before Spark's JVM starts: they are called where there is no Java.

The tables and the checkpoint are written by hand, because here no Spark may write them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pymongo.database import Database

from cdc.checkpoint import LocalFiles, lock_checkpoint
from cdc.delta.followers import ALL_KINDS
from cdc.delta.tables.known_table import properties_of_new
from cdc.demo import ReplicaSet
from cdc.model import Namespace, streaming
from cdc.pipeline import config as configuration
from cdc.source import query_status
from tests.cli.first_errors import require_short
from tests.mongo.access import Guarded
from tests.mongo.capture import Document, filled

ROOT = Path(__file__).parents[2]
PIPELINE = "11111111-2222-3333-4444-555555555555"
_RUN = """
import json, sys
from click.testing import CliRunner
from cdc.cli.commands import main
for call in json.loads(sys.stdin.read()):
    done = CliRunner().invoke(main, call)
    print(json.dumps([done.exit_code, done.stdout, done.stderr, repr(done.exception)]))
"""


class Done(NamedTuple):
    """The result of a program."""

    code: int
    stdout: str
    stderr: str
    exception: str


def call_without_java(*calls: list[str]) -> list[Done]:
    """The results of programs that are called one after the other in one new process."""
    done = subprocess.run(
        [sys.executable, "-c", _RUN],
        input=json.dumps(calls),
        env={**os.environ, "PYTHONPATH": str(ROOT), "PATH": "", "JAVA_HOME": "/nowhere"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return [Done(*json.loads(line)) for line in done.stdout.splitlines()]


class Written(NamedTuple):
    """A pipeline of the collection `orders` that has a checkpoint and tables."""

    folder: Path
    database: str
    options: list[str]

    def call(self, program: str, *options: str) -> list[str]:
        """The call of a program; later options override earlier ones."""
        given = [part for each in (*self.options, *options) for part in ("-o", each)]
        return [program, *given]


@pytest.fixture
def written(mongod: ReplicaSet, database: Database[Document], tmp_path: Path) -> Written:
    filled(database, "orders", [1, 2])
    given = [f"uri={mongod.uri}", f"collections={database.name}.orders", f"sink.path={tmp_path}"]
    write_lakehouse(tmp_path, given)
    return Written(tmp_path, database.name, given)


def write_lakehouse(folder: Path, given: list[str], source: str | None = None) -> None:
    """Write a checkpoint with one batch, and a mirror and a changelog without rows."""
    config = configuration.load(None, given)
    status = query_status(config.options, None, None)
    assert status.metrics.live_edge is not None
    name = source or "rs0"
    offset = streaming(status.metrics.live_edge, name, config.options.selection.text)
    files = LocalFiles()
    about = json.dumps({"batchTimestampMs": 1, "batchWatermarkMs": 0, "conf": {}})
    for path, text in (
        ("metadata", json.dumps({"id": PIPELINE})),
        ("offsets/0", f"v1\n{about}\n{json.dumps(offset.to_json())}"),
        ("commits/0", "v1\n{}"),
    ):
        files.replace(f"{config.checkpoint}/{path}", text.encode())
    [namespace] = config.options.selection.names
    for kind in ("mirror", "changelog"):
        write_table(config, kind, namespace)


def write_table(
    config: configuration.Config, kind: str, namespace: Namespace, **columns: str
) -> None:
    """Write a table without rows; `columns` are more of them, by name."""
    table = config.table(kind, namespace)
    assert table is not None
    [found] = [each for each in ALL_KINDS if each.name == kind]
    types = {"key": "string", "document": "variant", "_deleted": "boolean", **columns}
    fields = [
        {"name": name, "type": kind_of_column, "nullable": True, "metadata": {}}
        for name, kind_of_column in types.items()
    ]
    features = ["variantType"]
    actions: list[dict[str, Any]] = [
        {"commitInfo": {"timestamp": 1, "operation": "CREATE TABLE"}},
        {
            "protocol": {
                "minReaderVersion": 3,
                "minWriterVersion": 7,
                "readerFeatures": features,
                "writerFeatures": features,
            }
        },
        {
            "metaData": {
                "id": "1",
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps({"type": "struct", "fields": fields}),
                "partitionColumns": [],
                "configuration": properties_of_new(PIPELINE, found, table, "variant", None),
                "createdTime": 1,
            }
        },
    ]
    log = Path(table.target.address, "_delta_log")
    log.mkdir(parents=True)
    (log / f"{0:020}.json").write_text("\n".join(map(json.dumps, actions)))


def test_programs_that_only_read_need_no_java(written: Written) -> None:
    file = written.folder / "pipeline.toml"
    uri, collections, path = (each.partition("=")[2] for each in written.options)
    file.write_text(
        f'[source]\nuri = "{uri}"\ncollections = "{collections}"\n[sink]\npath = "{path}"\n'
    )
    config = ["--config", str(file)]
    plan, status, inferred, repair, maintain, token = call_without_java(
        ["plan", *config, "--json"],
        ["status", *config, "--json"],
        ["infer", *config, "--dry-run", "--json"],
        ["repair-checkpoint", *config, "--json"],
        ["maintain", *config, "--dry-run", "--json"],
        ["token", "826B016EF0000000082B0229296E04"],
    )
    for done in (plan, status, inferred, repair, maintain, token):
        assert (done.code, done.stderr) == (0, ""), done
    assert json.loads(plan.stdout)["problems"] == []
    assert json.loads(status.stdout)["batches"]["written"] == 0
    [columns] = json.loads(inferred.stdout)
    assert (columns["documents"], columns["columns"][0]["column"]) == (2, "bigint")
    assert json.loads(repair.stdout)["steps"] == []
    tables = {Path(each["table"]).name: each["vacuumed"] for each in json.loads(maintain.stdout)}
    assert tables == {"changelog": 0, "mirror": 0}


def test_errors_of_a_start_are_found_before_java_is_looked_for(
    written: Written, database: Database[Document]
) -> None:
    """Each start has one mistake. The last one has none: it is the only one that needs Java."""
    folder, options = written.folder, written.options
    fresh = f"sink.path={folder / 'fresh'}"
    foreign, files = folder / "foreign", folder / "files" / database.name / "orders/mirror"
    shop = Namespace(database.name, "orders")
    write_lakehouse(folder / "elsewhere", [*options, f"sink.path={folder / 'elsewhere'}"], "rs9")
    write_table(configuration.load(None, [*options, f"sink.path={foreign}"]), "mirror", shop)
    files.mkdir(parents=True)
    (files / "part-0.csv").write_text("1,2\n")
    damaged = folder / "damaged"
    LocalFiles().replace(str(damaged / "offsets/0"), b"v1\n{")
    database.create_collection("bare")
    mistakes: list[tuple[list[str], int, list[str]]] = [
        (["uri=mongodb://127.0.0.1:1", "server.timeout.ms=1000"], 3, ["127.0.0.1:1"]),
        ([f"collections={database.name}.orders,{database.name}.gone", fresh], 1, ["gone"]),
        ([f"collections={database.name}.orders,{database.name}.gone"], 1, [".gone"]),
        ([f"collections={database.name}.bare", "images=required", fresh], 1, ["bare"]),
        (["sink.path=/dev/null/lake"], 2, ["/dev/null/lake/_checkpoint", "cannot be written"]),
        (["sink.path=/dev/null/lake", fresh.replace("path", "checkpoint")], 2, ["of the tables"]),
        ([f"sink.path={foreign}"], 1, [str(foreign), f"pipeline '{PIPELINE}'"]),
        ([f"sink.path={folder / 'files'}"], 1, [str(files), "holds files"]),
        ([f"sink.checkpoint={damaged}"], 1, [f"{damaged}/", "repair-checkpoint"]),
        ([f"sink.path={folder / 'elsewhere'}"], 1, ["'rs9'", "'rs0'", "'uri'"]),
        (["mode=latest", 'filter={"n": 1}'], 2, ["'filter'", "mode to initial"]),
        (["snapshot.at=1:1"], 2, ["'snapshot.at' is for batch reads"]),
        (["table.delete=soft"], 2, ["mirror", "has the form hard, not soft"]),
        (["document.format=json"], 2, ["holds documents as variant, not as string"]),
        (['table.columns={"n": "bigint"}'], 2, ["'columns'"]),
    ]
    calls = [written.call("replicate", *given) for given, _, _ in mistakes]
    with lock_checkpoint(str(folder / "_checkpoint")):
        [locked] = call_without_java(written.call("replicate"))
    *found, last = call_without_java(*calls, written.call("replicate"))
    for done, (given, code, says) in zip(found, mistakes, strict=True):
        assert done.code == code, (given, done)
        require_short(done.stderr, says)
        assert "Spark" not in done.stderr, given
    require_short(locked.stderr, ["Another job runs", "End it first"])
    assert last.code == 1
    assert last.stderr.count("starting Spark") == 1
    assert "Spark needs Java" in last.stderr
    assert not (folder / "fresh").exists()


def test_programs_that_read_tables_find_their_absence_before_java_is_looked_for(
    written: Written,
) -> None:
    fresh, which = f"sink.path={written.folder / 'fresh'}", f"{written.database}.orders"
    verify, backfill, changes, follow = call_without_java(
        written.call("verify", fresh),
        [*written.call("backfill", fresh), "--collection", which],
        [*written.call("backfill", fresh), "--collection", which, "--from", "1:1"],
        written.call("follow", fresh, "sink.follow.by=follow"),
    )
    for done in (verify, backfill, changes):
        assert done.code == 1, done
        require_short(done.stderr, [which, "Run replicate first."])
    require_short(follow.stderr, ["There is no checkpoint", "replicate first"])
    for done in (verify, backfill, changes, follow):
        assert "Spark" not in done.stderr


def test_a_missing_privilege_is_found_before_java_is_looked_for(
    guarded: Guarded, tmp_path: Path
) -> None:
    uri = guarded.user()
    given = [f"uri={uri}", "collections=shop.orders", f"sink.path={tmp_path / 'lake'}"]
    [done] = call_without_java(["replicate", *(part for each in given for part in ("-o", each))])
    assert done.code == 1
    require_short(done.stderr, ["shop", "find", "Grant it"])
    assert not (tmp_path / "lake").exists()


def test_what_only_spark_reads_is_named_before_spark_starts(written: Written) -> None:
    """By a line, not by a minute of silence."""
    calls = [
        written.call("maintain", "table.mirror=main.{db}.{coll}"),
        written.call("repair-checkpoint", "sink.checkpoint=hdfs://nowhere/c"),
        written.call("replicate", "sink.path=abfss://c@a/lake"),
    ]
    says = ["a table is in a catalog", "hdfs://nowhere/c", "abfss://c@a/lake"]
    for done, reason in zip(
        call_without_java([*calls[0], "--dry-run"], *calls[1:]), says, strict=True
    ):
        assert done.code == 1
        first, second, *_ = done.stderr.splitlines()
        assert "Spark is needed: " in first
        assert reason in first
        assert second.endswith("starting Spark")
