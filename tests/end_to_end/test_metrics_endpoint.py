"""What monitoring sees of a running job, fetched and parsed as Prometheus does."""

from __future__ import annotations

import shlex
import socket
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.parser import text_string_to_metric_families
from pymongo.database import Database

from cdc.monitoring.prometheus import METRICS, PREFIX
from cdc.pipeline import Config
from tests.documents import code
from tests.end_to_end.job import IN_PYTHON, Job
from tests.security.leaks import listening

_PATIENCE_SECONDS = 120.0


@pytest.mark.slow
def test_prometheus_fetches_them_from_a_port_of_this_machine_alone(
    database: Database[dict[str, Any]], pipeline: Callable[..., Config], tmp_path: Path
) -> None:
    database.orders.insert_many({"_id": n} for n in range(50))
    config = pipeline(f"{database.name}.orders", "heartbeat.interval=1")
    port = _free_port()
    command = (*IN_PYTHON, "--metrics-port", str(port))
    job = Job(config, tmp_path, "sink.name=the shop", command=command)
    try:
        _until_copied(port, job)
        database.orders.update_one({"_id": 7}, {"$set": {"n": 1}})
        database.orders.delete_one({"_id": 8})
        found = _until_counted(port, job, "delete")
        addresses = set(listening(psutil.Process(job.process.pid)))
    finally:
        job.kill()
    own = {"pipeline": "the shop", "collection": f"{database.name}.orders"}
    assert {name.removeprefix(PREFIX) for name in _samples(found)} <= set(METRICS)
    assert _value(found, "rows_total", **own, op="read") == 50
    assert _value(found, "rows_total", **own, op="update") == 1
    assert _value(found, "rows_total", **own, op="insert") == 0
    assert _value(found, "lag_seconds", **own) >= 0
    assert _value(found, "copied_ratio", **own) == 1
    assert _value(found, "inexact_rows_total", **own) >= 0
    assert _value(found, "dead_letters_total", **own) == 0
    whole = {"pipeline": "the shop"}
    assert _value(found, "batch", **whole) >= 1
    assert _value(found, "snapshot_ratio", **whole) == 1
    assert _value(found, "oplog_left_ratio", **whole) == 1
    assert _value(found, "source_up", **whole) == 1
    assert ("127.0.0.1", port) in addresses
    assert {address for address, open_port in addresses if open_port == port} == {"127.0.0.1"}


@pytest.mark.soak
def test_spark_submit_serves_them_by_the_documented_command(
    database: Database[dict[str, Any]], pipeline: Callable[..., Config], tmp_path: Path
) -> None:
    database.orders.insert_many({"_id": n} for n in range(50))
    config = pipeline(f"{database.name}.orders", "heartbeat.interval=1")
    port = _free_port()
    [line] = code("Monitoring", "sh")
    program, *rest = shlex.split(line.replace("\\\n", " "))
    assert rest[-2] == "--metrics-port"
    submit = str(Path(sys.executable).with_name(program))
    job = Job(config, tmp_path, command=(submit, *rest[:-1], str(port)))
    try:
        found = _until_copied(port, job)
    finally:
        job.kill()
    assert {name.removeprefix(PREFIX) for name in _samples(found)} <= set(METRICS)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def _until_copied(port: int, job: Job) -> list[Family]:
    name = f"{PREFIX}snapshot_ratio"
    return _fetch_until(port, job, lambda found: _samples(found).get(name) == [1.0])


def _until_counted(port: int, job: Job, op: str) -> list[Family]:
    """Once rows of an operation were counted."""
    name = f"{PREFIX}rows_total"

    def is_counted(found: list[Family]) -> bool:
        samples = [sample for family in found for sample in family.samples]
        return any(s.name == name and s.labels["op"] == op and s.value for s in samples)

    return _fetch_until(port, job, is_counted)


def _fetch_until(port: int, job: Job, reached: Callable[[list[Family]], bool]) -> list[Family]:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        assert job.process.poll() is None, job.said()
        assert time.monotonic() < deadline, job.said()
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as reply:
                found = list(text_string_to_metric_families(reply.read().decode()))
        except OSError:
            found = []
        if reached(found):
            return found
        time.sleep(0.2)


def _samples(found: list[Family]) -> dict[str, list[float]]:
    samples: dict[str, list[float]] = {}
    for family in found:
        for sample in family.samples:
            samples.setdefault(sample.name, []).append(sample.value)
    return samples


def _value(found: list[Family], name: str, **labels: str) -> float:
    [value] = [
        sample.value
        for family in found
        for sample in family.samples
        if sample.name == PREFIX + name and sample.labels == labels
    ]
    return float(value)
