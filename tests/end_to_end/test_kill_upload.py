"""`kill -9` of the whole job while a task writes a data file."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pymongo.database import Database
from pyspark.sql import SparkSession

from cdc.model import Namespace
from cdc.pipeline import Config, verify
from tests.delta import delta_rs
from tests.delta.lakehouse import made
from tests.end_to_end.in_process import replicated
from tests.end_to_end.job import Job
from tests.mongo.capture import until

_DOCUMENTS, _PAD_BYTES = 20_000, 1_000
# Some seconds pass between the first row group of a file and its last one.
_SLOWLY = ("max.mb.per.second=4", "max.cursors=1", "split.size.mb=64")


def incomplete(lakehouse: Path) -> list[Path]:
    """Data files that have rows, and no end yet."""
    found = lakehouse.rglob("cdc-*.parquet")
    return [each for each in found if each.stat().st_size > 2**20 and not _has_end(each)]


def is_open(file: Path) -> bool:
    """Whether any process has the file open."""
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):  # the process has ended meanwhile
            if descriptor.readlink() == file:
                return True
    return False


def _has_end(file: Path) -> bool:
    return file.read_bytes().endswith(b"PAR1")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_job_killed_while_a_task_writes_a_file_loses_and_doubles_no_row(
    database: Database[dict[str, Any]],
    spark: SparkSession,
    pipeline: Callable[..., Config],
    tmp_path: Path,
) -> None:
    """Guards: a file without its end in a commit, and a replay that goes on in such a file."""
    chance, name = random.Random(22), Namespace(database.name, "orders")
    database["orders"].insert_many(
        {"_id": number, "pad": chance.randbytes(_PAD_BYTES)} for number in range(_DOCUMENTS)
    )
    config, lakehouse = pipeline(str(name), *_SLOWLY), tmp_path / "lakehouse"
    job = Job(config, tmp_path)
    try:
        until(lambda: incomplete(lakehouse), 120)
    finally:
        job.kill()
    halves = incomplete(lakehouse)
    assert halves
    # Spark's Python processes have a process group of their own, and end a moment later.
    until(lambda: not any(map(is_open, halves)), 60)
    sizes = [each.stat().st_size for each in halves]

    replicated(spark, config)
    assert verify(spark, config, name).is_equal
    for kind in ("changelog", "mirror"):
        # Raises if a key is there twice.
        rows = delta_rs.by_key(lakehouse / database.name / "orders" / kind, "key")
        assert len(rows) == _DOCUMENTS
    commits = "".join(each.file(lakehouse).read_text() for each in made(lakehouse))
    assert "cdc-" in commits
    assert not any(each.name in commits for each in halves)
    assert [each.stat().st_size for each in halves] == sizes
