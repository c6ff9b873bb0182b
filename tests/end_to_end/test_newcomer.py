"""Quick start as a newcomer follows it: its own commands and programs, in their order, on a server
that has a collection `shop.orders` and an application that writes to it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from pymongo.collection import Collection

from cdc.demo import ReplicaSet, Writers, load_orders
from cdc.model import Namespace
from tests.documents import code
from tests.end_to_end.in_process import WRITERS_PAUSE
from tests.end_to_end.standalone import outside
from tests.shell import run_in_shell

_ORDERS = Namespace("shop", "orders")
_DOCUMENTS = 2_000
_URI = "mongodb://user:password@host:27017/?replicaSet=rs0"
_NOON = "2026-01-31T12:00:00Z"
_PATIENCE_SECONDS = 180
_REST_SECONDS = 3  # who asks all the time slows down what he waits for
# What reads as a reader does who has the documented tables, and prints what each part of it found.
_PROGRAM = """
import json
from cdc.pipeline.spark.spark_session import session
spark = session("newcomer")
{source}
{hour}
{point_in_time}
{history}
{live}
found = [spark.sql(each).count() for each in {queries}]
counts = {{"snapshot": snapshot.count(), "streams": changes.isStreaming, "hour": hour.count()}}
counts |= {{"orders": orders.count(), "states": states.count(), "now": orders_now.count()}}
print("found", json.dumps({{**counts, "queries": found}}))
"""


class Newcomer:
    """In a folder that has an environment with the project, whose programs the shell knows."""

    def __init__(self, folder: Path, uri: str) -> None:
        self.folder, self._uri = folder, uri
        self._environment = {**outside(folder), "MONGODB_URI": uri, "TARGET_URI": uri}
        programs = folder / ".venv" / "bin"
        self._environment["PATH"] = f"{programs}:{os.environ['PATH']}"
        (folder / ".venv").symlink_to(sys.prefix)

    def run(self, block: str, *more: str) -> str:
        """What it prints; with more words after the last command."""
        done = subprocess.run(
            self._shell(block, *more),
            env=self._environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=_PATIENCE_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    @contextmanager
    def running(self, block: str) -> Iterator[subprocess.Popen[bytes]]:
        """Until the end of the block at the latest, with all that it has started."""
        with (self.folder / "log").open("ab") as log:
            shell = subprocess.Popen(
                self._shell(block),
                env=self._environment,
                cwd=self.folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            yield shell
        finally:
            with suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
            shell.wait()

    def _shell(self, block: str, *more: str) -> list[str]:
        return ["bash", "-euc", " ".join([block.replace(_URI, self._uri).rstrip(), *more])]

    def said(self) -> str:
        return (self.folder / "log").read_text()[-3000:]


@contextmanager
def shop() -> Iterator[tuple[str, Collection[dict[str, Any]]]]:
    """Its connection string and its collection, which records no images yet."""
    with ReplicaSet() as server, server.client() as client:
        load_orders(server.uri, _ORDERS, _DOCUMENTS, must_be_new=True)
        off = {"enabled": False}
        client.shop.command("collMod", "orders", changeStreamPreAndPostImages=off)
        yield server.uri, client.shop.orders


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_who_follows_the_quick_start_has_the_collection_in_delta_and_all_that_is_reported_of_it(
    tmp_path: Path,
) -> None:
    with shop() as (uri, orders):
        here = Newcomer(tmp_path, uri)
        [images] = code("Quick start", "js")
        [pipeline] = code("Quick start", "toml")
        plan, replicate, status, verify = code("Quick start", "sh")
        run_in_shell(orders.database.client, images)
        (tmp_path / "pipeline.toml").write_text(pipeline)
        assert "shop.orders" in here.run(plan)
        for is_second in (False, True):
            with here.running(replicate) as job, Writers(uri, _ORDERS, 1, pause=WRITERS_PAUSE):
                until_it_streams(here, status, job)
                # Once is enough: the tables still contain what the first run wrote.
                if is_second:
                    assert "equal" in here.run(verify)
                os.killpg(job.pid, signal.SIGINT)
                assert job.wait(_PATIENCE_SECONDS) == 0, here.said()
        use(here, replicate, orders)


def until_it_streams(here: Newcomer, status: str, job: subprocess.Popen[bytes]) -> None:
    ends = time.monotonic() + _PATIENCE_SECONDS
    while "streaming" not in (said := here.run(status)):
        assert job.poll() is None, here.said()
        assert time.monotonic() < ends, said
        time.sleep(_REST_SECONDS)


def use(here: Newcomer, replicate: str, orders: Collection[dict[str, Any]]) -> None:
    """The tables, a history that begins late, and the collection as it was at a time."""
    orders.update_one({"_id": 7}, {"$set": {"state": "begun"}}, upsert=True)
    began = next_second(orders)
    first = {"_id": {"$lt": _DOCUMENTS // 2}}
    changed = orders.update_many(first, {"$set": {"state": "then"}}).modified_count
    noon = next_second(orders)
    orders.update_many(first, {"$set": {"state": "now"}})
    here.run(replicate, "--available-now", "-o", "'table.history={db}/{coll}/history'")
    [replay] = code("Dead letters", "sh")
    assert "0" in here.run(replay)
    [restore] = code("Point in time", "sh")
    here.run(restore.replace(_NOON, noon))
    restored, documents = orders.database.orders_restored, orders.count_documents({})
    assert restored.count_documents({}) == documents
    assert restored.distinct("state", first) == ["then"]
    found = read(here, began, noon)
    mirrored, as_at_noon, of_the_seventh = found["queries"]
    assert found["snapshot"] == found["orders"] == found["now"] == mirrored == documents
    assert found["streams"] is True
    assert found["hour"] == changed
    assert as_at_noon >= changed
    assert of_the_seventh >= 2
    assert found["states"] >= documents + 2 * changed


def next_second(orders: Collection[dict[str, Any]]) -> str:
    """Which has begun by now, after all that was written before."""
    time.sleep(1.1)
    reported = orders.database.client.admin.command("hello")["localTime"]
    return f"{reported:%Y-%m-%dT%H:%M:%SZ}"


def read(here: Newcomer, began: str, noon: str) -> dict[str, Any]:
    """By the documented programs and queries, with times that this server knows."""
    source, hour = code("Use the data source in Spark", "python")
    [point_in_time] = code("Point in time", "python")
    [history] = code("History", "python")
    live = "".join(code("Live view", "python")).replace("/home/me", str(here.folder))
    [versions] = code("History", "sql")
    queries = [*code("First queries", "sql"), *versions.split(";")[:2]]
    at = noon.rstrip("Z").replace("T", " ")
    text = _PROGRAM.format(
        source=source,
        hour=hour.replace("2026-01-31T11:00:00Z", began).replace(_NOON, noon),
        point_in_time=point_in_time.replace(_NOON, noon),
        history=history,
        live=live,
        queries=[
            each.replace("2026-01-31 12:00:00", at).replace("/home/me", str(here.folder))
            for each in queries
        ],
    )
    (here.folder / "program.py").write_text(text)
    said = here.run(".venv/bin/python program.py")
    return dict(json.loads(said.partition("found ")[2]))
