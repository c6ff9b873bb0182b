"""Where members fail in the midst of a slice, the oplog has the rows that a change stream gives."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import pytest
from pymongo.database import Database
from pymongo.errors import PyMongoError

from cdc.errors import TransientError
from cdc.mongo.read import oplog
from tests.mongo.capture import Capture, Document, contents, filled, until
from tests.mongo.random_writes import Writer
from tests.mongo.read import test_faults
from tests.mongo.read.test_faults import FAULTS, Reading, Stop, is_doomed, more_of, write
from tests.mongo.read.test_oplog import methods as methods_fixture
from tests.mongo.read.test_oplog import require_equal
from tests.mongo.trio import Trio, three_members
from tests.slow import slow_but
from tests.soak import choose_seed, soak

observed, methods = test_faults.observed, methods_fixture
# Before the first entries are asked for, and before those that follow.
STOPS = (Stop(lambda command: command.get("find") == "oplog.rs"), more_of("oplog.rs"))


@pytest.fixture(scope="module")
def trio() -> Iterator[Trio]:
    with three_members() as running:
        yield running


@pytest.fixture
def begin(trio: Trio, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Capture]:
    monkeypatch.setattr(oplog, "_BATCH", 50)
    return partial(Capture, trio.uri, mode="latest")


@pytest.mark.parametrize(
    "fault",
    slow_but(
        [], [name for name in FAULTS if "network" not in name], soak=["a stepdown", "a failover"]
    ),
)
def test_a_slice_that_a_fault_interrupts_has_the_same_rows_by_both_methods(
    trio: Trio, begin: Callable[..., Capture], methods: list[str], fault: str
) -> None:
    trio.heal()
    database = trio.fresh()
    for name in ("orders", "dropped", "capped", "bare", "bare_dropped", "random"):
        filled(database, name, range(60))
    befalls = FAULTS[fault](trio, database)
    settings = {"server_timeout_ms": str(befalls.server_timeout_ms)}
    names = f"{database.name}.orders,{database.name}.random"
    by_oplog = begin(names, **settings)
    by_stream = begin(names, read_by="change_stream", **settings)
    writer = Writer([database["random"]], seed=5)
    writer.write(300)
    write(database, 2)
    reading = Reading(by_oplog, by_oplog.plan(), STOPS)
    [held] = reading.held
    held.wait_held(0)
    befalls.at_risk()
    held.go(0)
    held.wait_held(1)
    with befalls.strike():
        held.go(1)
    held.join(60)
    assert not held.is_alive()
    befalls.over()
    trio.heal()
    reading.done()
    assert methods[0] == "oplog"
    writer.write(100)
    write(database, 4)
    for each in (by_oplog, by_stream):
        until(partial(test_faults._has_run, each))
    rows, others = (
        sorted(each.rows, key=lambda row: row.position) for each in (by_oplog, by_stream)
    )
    assert len(rows) > 400
    assert rows == others
    assert not any(map(is_doomed, rows))
    for name in ("orders", "random"):
        changed = by_oplog.replayed(database[name])
        assert changed.items() <= contents(database[name]).items()


@pytest.mark.slow
def test_elections_and_rollbacks_at_random_have_the_same_rows_by_all_methods(
    trio: Trio, begin: Callable[..., Capture]
) -> None:
    found = compare_under_faults(trio, begin, choose_seed(), lambda done: done.total() < 4)
    assert found.faults.total() == 4


@pytest.mark.soak
def test_elections_and_rollbacks_for_long_have_the_same_rows_by_all_methods(
    trio: Trio, begin: Callable[..., Capture]
) -> None:
    seed, seconds = soak()
    ends = time.monotonic() + seconds
    found = compare_under_faults(trio, begin, seed, lambda done: time.monotonic() < ends)
    print(f"{found.faults.total()} faults, {found.rows:,} rows: {found.faults}")


class Compared(NamedTuple):
    faults: Counter[str]
    rows: int


def compare_under_faults(
    trio: Trio, begin: Callable[..., Capture], seed: int, goes_on: Callable[[Counter[str]], bool]
) -> Compared:
    """Three pipelines read while one fault after the other befalls the members; then all is
    compared."""
    trio.heal()
    chance, is_over = random.Random(seed), threading.Event()
    database = trio.fresh()
    for name in ("orders", "dropped", "capped", "bare", "bare_dropped", "random"):
        filled(database, name, range(60))
    names = f"{database.name}.orders,{database.name}.random"
    pipelines = [
        begin(names, read_by=method, oplog_verify=verify, server_timeout_ms="1000")
        for method, verify in (("auto", "0"), ("oplog", "0.3"), ("change_stream", "0"))
    ]
    writes = Writes(Writer([database["random"]], chance.randrange(10**9)))

    def repeat(work: Callable[[], object]) -> None:
        while not is_over.wait(0.01):
            with suppress(TransientError, PyMongoError):  # the outcome of a write is unknown
                work()

    works = [writes.one, *(partial(_read_batch, pipeline) for pipeline in pipelines)]
    with ThreadPoolExecutor(len(works)) as threads:
        running = [threads.submit(repeat, work) for work in works]
        try:
            faults = _befall(trio, database, writes, chance, goes_on)
        finally:
            is_over.set()
    for each in running:
        each.result()
    trio.heal()
    for pipeline in pipelines:
        until(partial(test_faults._has_run, pipeline))
    by_auto, by_oplog, by_stream = (
        sorted(each.rows, key=lambda row: row.position) for each in pipelines
    )
    assert by_auto == by_oplog
    require_equal(by_oplog, by_stream)
    assert not any(map(is_doomed, by_oplog))
    for name in ("orders", "random"):
        changed = pipelines[0].replayed(database[name])
        assert changed.items() <= contents(database[name]).items()
    return Compared(faults, len(by_oplog))


class Writes:
    """Writes one after the other. `lock` waits for the last one; `pauses` begins no other."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self.lock, self.pauses = threading.Lock(), threading.Event()

    def one(self) -> None:
        with self.lock:
            if not self.pauses.is_set():
                self._writer.write(1)


def _read_batch(pipeline: Capture) -> None:
    pipeline.read(pipeline.plan_now())


def _befall(
    trio: Trio,
    database: Database[Document],
    writes: Writes,
    chance: random.Random,
    goes_on: Callable[[Counter[str]], bool],
) -> Counter[str]:
    done = Counter[str]()
    while goes_on(done):
        fault = chance.choice(list(FAULTS))
        with writes.lock:
            # A fault inserts the same documents each time.
            database["orders"].delete_many({"_id": {"$nin": list(range(60))}})
            trio.heal()  # both others have the same writes, so each may be elected
            befalls = FAULTS[fault](trio, database)
            befalls.at_risk()
        time.sleep(chance.uniform(0, 1))
        writes.pauses.set()  # whoever is to be elected must not lag
        with befalls.strike():
            writes.pauses.clear()
            time.sleep(chance.uniform(0, 2))
        befalls.over()
        done[fault] += 1
    return done
