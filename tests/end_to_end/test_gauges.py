"""What monitoring sees of a running job, fetched as Prometheus fetches it."""

from __future__ import annotations

import json
import math
import re
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
from pymongo.database import Database

from cdc.monitoring.spark_gauges import GAUGES, values
from cdc.pipeline import Config, Status
from tests.documents import README, ROOT, code
from tests.end_to_end.job import IN_PYTHON, Job

_SHOWN = re.compile(r"metrics_mongodb_cdc_driver_AccumulatorSource_mongodb_cdc_(\w+)_Value")
_PATIENCE_SECONDS = 120.0


def test_each_gauge_has_a_value_or_is_not_known_and_is_in_the_readme_and_on_the_dashboard() -> None:
    assert set(values(Status(None, None, None, {}))) == set(GAUGES)
    assert all(f"| `{name}` | {meaning} |" in README for name, meaning in GAUGES.items())
    dashboard = json.loads((ROOT / "conf" / "grafana.json").read_text())
    drawn = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert {found[1] for expr in drawn if (found := _SHOWN.fullmatch(expr))} == set(GAUGES)


@pytest.mark.slow
def test_prometheus_fetches_them_from_a_port_of_this_machine_alone_and_only_if_asked(
    database: Database[dict[str, Any]], pipeline: Callable[..., Config], tmp_path: Path
) -> None:
    database.orders.insert_many({"_id": n} for n in range(50))
    config = pipeline(f"{database.name}.orders", "heartbeat.interval=1")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    # As on a machine where nobody has said to which address Spark binds.
    command, unset = (*IN_PYTHON, "--metrics-port", str(port)), {"SPARK_LOCAL_IP": ""}
    job = Job(config, tmp_path, command=command, environment=unset)
    try:
        found = _until_known(f"http://127.0.0.1:{port}/metrics/prometheus", job)
        listening = _listening(job)
    finally:
        job.kill()
    assert set(found) == set(GAUGES)
    assert found["batch"] >= 0
    assert found["snapshot_percent"] == 100
    assert found["oplog_percent_left"] == 100
    assert found["inexact_rows"] == 0
    assert not math.isnan(found["lag_seconds"])
    assert ("127.0.0.1", port) in listening
    assert {address for address, _ in listening} == {"127.0.0.1"}


@pytest.mark.slow
def test_spark_submit_serves_them_by_the_settings_of_the_readme(
    database: Database[dict[str, Any]], pipeline: Callable[..., Config], tmp_path: Path
) -> None:
    database.orders.insert_many({"_id": n} for n in range(50))
    config = pipeline(f"{database.name}.orders", "heartbeat.interval=1")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    [line] = code("Monitoring", "sh")
    program, *rest = shlex.split(line.replace("\\\n", " "))
    submit = str(Path(sys.executable).with_name(program))
    job = Job(config, tmp_path, command=(submit, "--conf", f"spark.ui.port={port}", *rest))
    try:
        found = _until_known(f"http://127.0.0.1:{port}/metrics/prometheus", job)
    finally:
        job.kill()
    assert set(found) == set(GAUGES)


def _until_known(url: str, job: Job) -> dict[str, float]:
    """The gauges, once all that is reported of a pipeline without changes is known."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        assert job.process.poll() is None, job.said()
        assert time.monotonic() < deadline, job.said()
        try:
            with urllib.request.urlopen(url, timeout=10) as reply:
                text = reply.read().decode()
        except OSError:
            text = ""
        found = {
            shown[1]: float(line.split()[-1])
            for line in text.splitlines()
            if (shown := _SHOWN.match(line))
        }
        if found.get("snapshot_percent") == 100:
            return found
        time.sleep(0.2)


def _listening(job: Job) -> set[tuple[str, int]]:
    main = psutil.Process(job.process.pid)
    return {
        (str(each.laddr.ip).removeprefix("::ffff:"), each.laddr.port)
        for process in [main, *main.children(recursive=True)]
        for each in process.net_connections("tcp")
        if each.status == psutil.CONN_LISTEN
    }
