"""The documented spark-submit line, as it stands there."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet
from pymongo.database import Database

from cdc.demo import ReplicaSet
from cdc.model import Namespace
from cdc.pipeline import config as configuration
from tests.documents import ROOT, code
from tests.jvm import SHORT_LIVED


@pytest.mark.slow
def test_spark_submit_replicates_what_is_there_and_ends(
    mongod: ReplicaSet, database: Database[dict[str, Any]], tmp_path: Path
) -> None:
    database.orders.insert_many({"_id": number} for number in range(100))
    file = tmp_path / "pipeline.toml"
    file.write_text(
        f'[source]\nuri = "env:SOURCE_URI"\ncollections = ["{database.name}.orders"]\n'
        f'[sink]\npath = "{tmp_path / "lakehouse"}"\n'
    )
    done = submitted(mongod.uri, str(file), "--available-now")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    config = configuration.load(str(file), ["uri=mongodb://h"])
    table = config.table("mirror", Namespace(database.name, "orders"))
    assert table is not None
    mirror = Path(table.target.address)
    assert sum(parquet.read_metadata(file).num_rows for file in committed(mirror)) == 100


@pytest.mark.slow
def test_spark_submit_ends_with_the_code_of_the_program() -> None:
    done = submitted("", "no.toml")
    assert done.returncode == 2
    assert "error: There is no configuration file no.toml." in done.stdout


def submitted(uri: str, file: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """With that configuration file for the one that stands there, and more arguments."""
    [line] = code("With spark-submit", "sh")
    program, *rest = shlex.split(line.replace("conf/local.toml", file).replace("\\\n", " "))
    return subprocess.run(
        [str(Path(sys.executable).with_name(program)), *rest, *arguments],
        cwd=ROOT,
        env={
            **os.environ,
            "SOURCE_URI": uri,
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(ROOT),
            **SHORT_LIVED,
        },
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def committed(table: Path) -> list[Path]:
    """The files of a Delta table that none was removed from, read without a JVM."""
    log = [path.read_text() for path in table.glob("_delta_log/*.json")]
    actions = [json.loads(line) for text in log for line in text.splitlines()]
    assert not any("remove" in action for action in actions)
    return [table / action["add"]["path"] for action in actions if "add" in action]
