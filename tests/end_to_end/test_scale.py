"""A collection of very many documents, and a changelog of very many commits.

`DOCUMENTS=100000000 COMMITS=10000 make scale`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pymongo import MongoClient
from pyspark.sql import SparkSession

from cdc.demo import ReplicaSet, load_orders
from cdc.model import Namespace
from cdc.pipeline import Config
from tests.bench.processes import WORKERS, most_held
from tests.end_to_end.job import IN_PYTHON, ROOT, Job, arguments, program_environment
from tests.end_to_end.sustained.judged import judged
from tests.end_to_end.sustained.writers import Steady

_DOCUMENTS = int(os.environ.get("DOCUMENTS", "1000000"))
_COMMITS = int(os.environ.get("COMMITS", "300"))
_MOST_BYTES = 400e6
_ORDERS = Namespace("scale", "orders")
# So small bulks that each batch has some: the commits come as fast as the job can make them.
_FEW, _RATE, _BULK = 2_000, 200, 10
# Between two runs of `maintain` beside the job, and until the first start is measured.
_MAINTAINED_COMMITS, _FIRST_COMMITS = 1_000, 50
_STALL_SECONDS = 600


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_a_huge_collection_is_copied_once_in_bounded_memory(
    pipeline: Callable[..., Config], tmp_path: Path
) -> None:
    """Guards: memory of a task, of the driver or of an offset that grows with the collection.

    The job has Java's own settings: those of the other tests are for short programs.
    """
    name = Namespace("scale", "numbers")
    with ReplicaSet(cache_gigabytes=4.0, oplog_megabytes=4096) as server, server.client() as client:
        began = time.monotonic()
        _count_up(client, name, _DOCUMENTS)
        print(f"{_DOCUMENTS:,} documents after {time.monotonic() - began:,.0f} s", flush=True)
        by_default = "document.format=variant", "split.size.mb=64", "snapshot.splits.per.batch=8"
        config = pipeline(str(name), f"uri={server.uri}", *by_default)
        began = time.monotonic()
        command = [*IN_PYTHON, "--available-now"]
        with most_held() as most:
            job = Job(config, tmp_path, command=command, environment={"JAVA_TOOL_OPTIONS": ""})
            try:
                code, said = job.ended(None)
            finally:
                job.kill()
        seconds = time.monotonic() - began
    assert code == 0, said
    print(f"copied in {seconds:,.0f} s, {_DOCUMENTS / seconds:,.0f} documents/s; RSS {dict(most)}")
    for kind in ("changelog", "mirror"):
        table = config.table(kind, name)
        assert table is not None
        assert _are_there_once(table.target.address, _DOCUMENTS), kind
    assert 0 < most[WORKERS] <= _MOST_BYTES, most


def _are_there_once(address: str, count: int) -> bool:
    """Whether the keys of a table's rows are the numbers below `count`, each once."""
    found, rows = np.zeros(count, bool), 0
    for path in DeltaTable(address).file_uris():
        for batch in pq.ParquetFile(path).iter_batches(columns=["key"]):
            keys = batch.column(0).drop_null().cast(pa.int64()).to_numpy()
            found[keys] = True
            rows += len(keys)
    return rows == count and bool(found.all())


def _count_up(client: MongoClient[dict[str, Any]], name: Namespace, count: int) -> None:
    """Let the server make the documents {_id: n, n: n} below that number."""
    inner = min(count, 10_000)
    assert count % inner == 0, "it is made of ranges of 10,000"
    number = {"$add": [{"$multiply": ["$outer", inner]}, "$inner"]}
    client[name.db].aggregate(
        [
            {"$documents": [{}]},
            {"$set": {"outer": {"$range": [0, count // inner]}}},
            {"$unwind": "$outer"},
            {"$set": {"inner": {"$range": [0, inner]}}},
            {"$unwind": "$inner"},
            {"$project": {"_id": number, "n": number}},
            {"$out": name.coll},
        ]
    )


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_a_changelog_of_many_commits_starts_and_plans_as_fast_as_one_of_few(
    spark: SparkSession, pipeline: Callable[..., Config], tmp_path: Path
) -> None:
    """Guards: whatever reads all commits, all batches or all files at a start or in a batch. Also
    `maintain` runs beside the job."""
    with ReplicaSet(cache_gigabytes=1.0, oplog_megabytes=4096) as server:
        load_orders(server.uri, _ORDERS, _FEW, must_be_new=True)
        config = pipeline(str(_ORDERS), f"uri={server.uri}", "split.size.mb=64")
        table = config.table("changelog", _ORDERS)
        assert table is not None
        folder, seconds = Path(table.target.address), dict[int, dict[str, float]]()
        with Steady(server.uri, _ORDERS, _RATE, _FEW, _BULK):
            for commits in (_FIRST_COMMITS, _COMMITS):
                job = Job(config, tmp_path)
                try:
                    began = time.monotonic()
                    _write_until(config, job, folder, commits)
                    print(f"{commits:,} commits after {time.monotonic() - began:,.0f} s")
                    # A batch that a kill leaves incomplete is merged by Spark at the next start,
                    # which takes as long as all else of the start.
                    job.process.send_signal(signal.SIGTERM)
                    code, said = job.ended(_STALL_SECONDS)
                    assert code == 0, said
                finally:
                    job.kill()
                seconds[commits] = _starts(config)
                print(f"seconds to {json.dumps(seconds[commits])}", flush=True)
        _starts(config)  # has the last writes
        with server.client() as client:
            last = client.admin.command("hello")["lastWrite"]["opTime"]["ts"]
            changes, wrong = judged(spark, client, config, _ORDERS, last, tmp_path)
    print(f"{changes:,} changes; the log has {_megabytes(folder / '_delta_log'):,.1f} MB")
    assert wrong == []
    few, many = seconds[_FIRST_COMMITS], seconds[_COMMITS]
    assert all(many[program] <= 2 * few[program] for program in few), seconds


def _write_until(config: Config, job: Job, folder: Path, commits: int) -> None:
    """Until the changelog has so many; with `maintain` from time to time."""
    version, changed = -1, time.monotonic()
    maintained = _newest_version(folder)
    while version < commits:
        assert job.process.poll() is None, job.said()
        if (now := _newest_version(folder)) > version:
            version, changed = now, time.monotonic()
        assert time.monotonic() < changed + _STALL_SECONDS, job.said()
        if version >= maintained + _MAINTAINED_COMMITS:
            maintained = version
            # Not in this process: its Java is made for short tests.
            seconds = _seconds([sys.executable, "-m", "cdc.cli.maintain", *arguments(config)])
            print(f"maintained at {version:,} in {seconds:,.1f} s", flush=True)
        time.sleep(0.5)


def _newest_version(folder: Path) -> int:
    return max((int(path.stem) for path in (folder / "_delta_log").glob("[0-9]*.json")), default=-1)


def _starts(config: Config) -> dict[str, float]:
    """How long programs take, by name: each starts a process of its own."""
    programs = {
        "replicate --available-now": [*IN_PYTHON, *arguments(config), "--available-now"],
        "plan": [sys.executable, "-m", "cdc.cli.plan", *arguments(config)],
        "status": [sys.executable, "-m", "cdc.cli.status", *arguments(config)],
    }
    return {name: _seconds(command) for name, command in programs.items()}


def _seconds(command: list[str]) -> float:
    began = time.monotonic()
    done = subprocess.run(
        command, cwd=ROOT, env=program_environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return round(time.monotonic() - began, 1)


def _megabytes(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file()) / 1e6
