"""Stepdown, failover, rollback and a broken network on three members, in every phase at once.

Each fault befalls a set of pipelines that stand still in the midst of what they do: planning at
three points, slices, scans at a time, rewinds, lookups, a watch for changes. Then all go on, and
what they reported is compared with the oplog and the documents of the members that survived.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple

import bson
import pytest
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from pymongo.collection import Collection
from pymongo.database import Database
from pymongo.errors import AutoReconnect, NotPrimaryError
from pymongo.write_concern import WriteConcern
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from cdc import source
from cdc.errors import TransientError
from cdc.model import Change, Namespace, Offset, Split, resume_token
from cdc.mongo.connection import Member, member
from cdc.mongo.read import change_stream, range_scan, rewind
from cdc.mongo.topology import replica_set
from cdc.mongo.topology.replica_set import ReplicaSet as ReplicaSetSource
from cdc.tasks import task
from tests.mongo.abilities import abilities
from tests.mongo.capture import (
    Batch,
    Capture,
    Document,
    contents,
    cut_every,
    document,
    filled,
    id_of,
    replayed,
    until,
)
from tests.mongo.trio import MAJORITY, Trio, three_members
from tests.slow import slow_but

# In every write that is to be rolled back.
DOOMED = -666
CHANGES = "$cmd.aggregate"
# Failovers take two seconds. Whoever waits for one that is gone waits for 30.
SOON_SECONDS = 20


@pytest.fixture(scope="module")
def trio() -> Iterator[Trio]:
    with three_members() as running:
        yield running


# --- faults --------------------------------------------------------------------------------------


class Fault:
    """What happens to the set: `at_risk` while its readers stand still for the first time, `strike`
    for the second; what `strike` yields to is that they go on. Then it is healed."""

    def __init__(self, trio: Trio, database: Database[Document]) -> None:
        self.trio, self.database = trio, database
        self.primary = trio.replica_set.wait_writable()

    # The connector's own: how long it takes to find out that nothing comes any more.
    server_timeout_ms = 30_000
    # Whether a reader cannot go on as if nothing were.
    interrupts = True

    def at_risk(self) -> None:
        """Nothing is."""

    def over(self) -> None:
        """When all readers are through: there is nothing to see of it."""

    @contextmanager
    def strike(self) -> Iterator[None]:
        yield


class Stepdown(Fault):
    """The primary becomes a secondary, and another one is elected, while its cursors stay open."""

    interrupts = False

    @contextmanager
    def strike(self) -> Iterator[None]:
        # The driver asks again after an interrupted answer, and may find that it has been done.
        with self.primary.client() as client, suppress(NotPrimaryError):
            client.admin.command("replSetStepDown", 5, secondaryCatchUpPeriodSecs=5)
        yield
        assert self.trio.replica_set.wait_writable() is not self.primary


class Failover(Fault):
    """The primary is killed; the readers go on before there is another one."""

    @contextmanager
    def strike(self) -> Iterator[None]:
        self.primary.kill()
        yield
        self.trio.replica_set.wait_writable()


class Rollback(Fault):
    """The primary takes writes that nobody replicates, answers reads meanwhile, and is killed;
    another one takes other writes. It comes back, and has to take the others' instead."""

    server_timeout_ms = 1000

    def at_risk(self) -> None:
        for other in self.trio.others(self.primary):
            self.trio.replicates(other, "alwaysOn")
        with self.primary.client() as client:
            self._rollbacks = client.admin.command("replSetGetRBID")["rbid"]
            quick = WriteConcern(1, j=True)
            database = client.get_database(self.database.name, write_concern=quick)
            self._until = write_doomed(database)
        assert self.primary.hello()["lastWrite"]["majorityOpTime"]["ts"] < self._until

    def _replace(self) -> None:
        """Another primary, whose own writes lie after those of the one before."""
        others = self.trio.others(self.primary)
        for other in others:
            self.trio.replicates(other)
        # The other one may lack what this one has, and would not be elected.
        chosen = max(others, key=lambda each: each.hello()["lastWrite"]["opTime"]["ts"])
        self.trio.lead(chosen)
        with chosen.client() as client:
            write(client.get_database(self.database.name, write_concern=MAJORITY), 3)
            assert client.admin.command("ping")["operationTime"] > self._until

    @contextmanager
    def strike(self) -> Iterator[None]:
        self.primary.kill()
        self._replace()
        self.primary.launch()
        yield

    def over(self) -> None:
        """It was one: what nobody had is not there any more."""
        self.trio.heal()
        with self.primary.client() as client:
            assert client.admin.command("replSetGetRBID")["rbid"] > self._rollbacks
            assert not client[self.database.name]["orders"].find_one({"n": DOOMED})


class RollbackOfOneThatStoodStill(Rollback):
    """It was frozen meanwhile, takes itself for the primary still, and its connections stand."""

    interrupts = False

    @contextmanager
    def strike(self) -> Iterator[None]:
        self.primary.freeze()
        self._replace()
        self.primary.thaw()
        yield


class Cut(Fault):
    """All connections end, and new ones do so too, for a while."""

    server_timeout_ms = 1000

    @contextmanager
    def strike(self) -> Iterator[None]:
        self.trio.network.cut()
        yield
        self.trio.network.restore()


class Silence(Fault):
    """All connections stand, and new ones can be made, but nothing is answered, for a while."""

    server_timeout_ms = 1000

    @contextmanager
    def strike(self) -> Iterator[None]:
        self.trio.network.silence()
        yield
        self.trio.network.restore()


FAULTS: dict[str, type[Fault]] = {
    "a stepdown": Stepdown,
    "a failover": Failover,
    "a rollback": Rollback,
    "a rollback of a primary that stood still": RollbackOfOneThatStoodStill,
    "a network that is cut": Cut,
    "a network that is silent": Silence,
}


# --- readers that stand still --------------------------------------------------------------------


class Stop(NamedTuple):
    """Before the `count`th command from here on that `matches`."""

    matches: Callable[[Mapping[str, Any]], bool]
    count: int = 1


def more_of(*colls: str, count: int = 1) -> Stop:
    return Stop(lambda command: command.get("collection") in colls, count)


def more_changes(count: int = 1) -> Stop:
    return more_of(CHANGES, count=count)


def asked(name: str) -> Stop:
    return Stop(lambda command: name in command)


def a_lookup(count: int) -> Stop:
    def is_lookup(command: Mapping[str, Any]) -> bool:
        return "find" in command and "_id" in command.get("filter", {})

    return Stop(is_lookup, count)


class Held(threading.Thread):
    """Work that stands still before the fault, where a stop is given for that; and in it."""

    def __init__(
        self, name: str, work: Callable[[], Any], at_risk: Stop | None, struck: Stop | None
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._work = work
        self._gates = [_Gate(stop) for stop in (at_risk, struck)]
        self._failure: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._found = self._work()
        except BaseException as error:
            self._failure = error
        for gate in self._gates:
            gate.reached.set()

    def before(self, command: Mapping[str, Any]) -> None:
        for gate in self._gates:
            if not gate.reached.is_set():
                gate.met(command)
                return

    def wait_held(self, stage: int) -> None:
        gate = self._gates[stage]
        assert gate.reached.wait(20), f"{self.name} came to no stop"
        ended = not self.is_alive() and gate.stop is not None
        assert not ended, f"{self.name} ended before its stop: {self._failure!r}"

    @property
    def has_struck_stop(self) -> bool:
        return self._gates[1].stop is not None

    def go(self, stage: int) -> None:
        self._gates[stage].opened.set()

    def result(self) -> Any:
        if self._failure is not None:
            raise AssertionError(f"{self.name} failed") from self._failure
        return self._found


class _Gate:
    def __init__(self, stop: Stop | None) -> None:
        self.stop, self.reached, self.opened = stop, threading.Event(), threading.Event()
        self._left = stop.count if stop else 0
        if stop is None:
            self.reached.set()

    def met(self, command: Mapping[str, Any]) -> None:
        assert self.stop is not None
        self._left -= self.stop.matches(command)
        if not self._left:
            self.reached.set()
            self.opened.wait()


@pytest.fixture(autouse=True)
def observed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Held threads learn of each command that they are about to send, and of each question to the
    replica set. Batches are small."""
    monkeypatch.setattr(range_scan, "_BATCH", 7)
    monkeypatch.setattr(change_stream, "_BATCH", 7)
    monkeypatch.setattr(rewind, "BYTES", 4000)
    monkeypatch.setattr(replica_set, "ranges", partial(cut_every, 40))
    send = Member.command

    def command(reader: Member, db: str, what: Mapping[str, Any]) -> RawBSONDocument:
        _announce(what)
        return send(reader, db, what)

    monkeypatch.setattr(Member, "command", command)
    for name in ("list_collections", "confirm", "live_edge"):
        ask = getattr(ReplicaSetSource, name)

        def asking(*arguments: Any, ask: Any = ask, name: str = name) -> Any:
            _announce({name: 1})
            return ask(*arguments)

        monkeypatch.setattr(ReplicaSetSource, name, asking)


@pytest.fixture
def failed() -> Iterator[set[str | None]]:
    """The names of the threads in which a read has failed, and was tried again."""
    names: set[str | None] = set()
    handler = logging.Handler()
    handler.emit = lambda record: names.add(record.threadName)  # type: ignore[method-assign]
    logger = logging.getLogger("cdc.mongo.connection.retry")
    logger.addHandler(handler)
    yield names
    logger.removeHandler(handler)


def _announce(command: Mapping[str, Any]) -> None:
    thread = threading.current_thread()
    if isinstance(thread, Held):
        thread.before(command)


# --- pipelines -----------------------------------------------------------------------------------

Stops = tuple[Stop | None, Stop | None]


class Reading:
    """A batch whose splits are read by tasks that stand still."""

    def __init__(self, pipeline: Capture, end: Offset, *stops: Stops) -> None:
        self._pipeline, self._end = pipeline, end
        self._splits = pipeline.planner.splits(pipeline.offset, end, control=False)
        self.held = [
            Held(f"the read of {split}", partial(self._read, split), *stop)
            for split, stop in zip(self._splits, stops, strict=True)
        ]

    def _read(self, split: Split) -> list[Change]:
        return list(task.read_split(split, self._pipeline.options, True))

    def done(self) -> None:
        rows = [row for held in self.held for row in held.result()]
        self._pipeline.done(self._end, self._splits, rows)


class Planning:
    """The next batch, planned by the source as Spark asks for it."""

    def __init__(self, pipeline: Capture, at_risk: Stop | None, struck: Stop | None) -> None:
        self._pipeline = pipeline
        self._reader = source.ChangeReader(pipeline.options, StructType())
        self.held = [Held("the plan of a batch", self._plan, at_risk, struck)]

    def _plan(self) -> Offset:
        start = self._pipeline.offset.to_json()
        while (end := self._reader.latestOffset(start, ReadAllAvailable())) == start:
            pass
        return Offset.from_json(end)

    def done(self) -> None:
        self._pipeline.read(self.held[0].result())
        self._reader.stop()


class Watching:
    """The driver's cursor waits for a change; there is none until the fault is over."""

    def __init__(self, pipeline: Capture) -> None:
        self._pipeline = pipeline
        self._reader = source.ChangeReader(pipeline.options, StructType())
        self.held: list[Held] = []
        while self.asks():
            pass

    def asks(self) -> bool:
        start = self._pipeline.offset.to_json()
        end = self._reader.latestOffset(start, ReadAllAvailable())
        if end != start:
            self._pipeline.read(Offset.from_json(end))
        return bool(end != start)

    def done(self) -> None:
        until(self.asks)
        self._reader.stop()


class Scene:
    """Everything that can go on, and the pipelines that it belongs to, by what is going on."""

    def __init__(self, trio: Trio, database: Database[Document], server_timeout_ms: int) -> None:
        self._uri, self._database = trio.uri, database
        self._server_timeout_ms = str(server_timeout_ms)
        for name in ("orders", "dropped"):
            filled(database, name, range(120))
        filled(database, "capped", range(60), capped=True, size=200_000)
        for name in ("bare", "bare_dropped"):
            filled(database, name, range(20), images=False)
        self.pipelines: dict[str, Capture] = {}
        self.parts: list[Reading | Planning | Watching] = []
        self._copies()
        self._streams()

    def _over(self, name: str, coll: str, documents: int = 40, **settings: Any) -> Capture:
        self.pipelines[name] = Capture(
            self._uri,
            f"{self._database.name}.{coll}",
            documents_per_split=documents,
            server_timeout_ms=self._server_timeout_ms,
            # Each stop is in a change stream; `test_oplog_of_members` interrupts the other method.
            **{"splits_per_batch": 1, "read_by": "change_stream", **settings},
        )
        return self.pipelines[name]

    def _copies(self) -> None:
        copied = self._over("copied", "orders")
        dropped = self._over("copied, and dropped for a while", "dropped")
        rewound = self._over("rewound", "capped", 25, splits_per_batch=3)
        plans: dict[str, Stops] = {
            "planned at its listing": (None, asked("list_collections")),
            "planned after its listing": (asked("list_collections"), asked("confirm")),
            "planned in its survey": (None, more_changes()),
        }
        planned = [self._over(name, "orders") for name in plans]
        for pipeline in (copied, *planned):
            pipeline.batch()
        ends = dropped.plan(), rewound.plan()
        write(self._database, 1)
        self.parts += [
            Reading(dropped, ends[0], (more_of("dropped"), None)),
            Reading(rewound, ends[1], *_REWINDS),
            Reading(
                copied,
                copied.plan(),
                (more_changes(2), more_changes(2)),
                # Where there are no reads at a time, the second may be for changes.
                (more_of("orders", count=2), more_of("orders", CHANGES)),
            ),
            *(Planning(p, *stops) for p, stops in zip(planned, plans.values(), strict=True)),
        ]

    def _streams(self) -> None:
        latest = {"mode": "latest", "heartbeat_interval": "1000"}
        looked_up = self._over("looked up", "bare", **latest)
        dropped = self._over("looked up, and dropped for a while", "bare_dropped", **latest)
        planned = [
            self._over("planned before the fault", "orders", **latest),
            self._over("planned in the fault", "orders", **latest),
        ]
        write(self._database, 2)
        self.parts += [
            Reading(looked_up, looked_up.plan(), (a_lookup(3), a_lookup(9))),
            Reading(dropped, dropped.plan(), (a_lookup(3), None)),
            Planning(planned[0], asked("live_edge"), None),
            Planning(planned[1], None, asked("live_edge")),
            Watching(self._over("watched", "orders", **latest)),
        ]

    @property
    def held(self) -> Iterator[Held]:
        return (held for part in self.parts for held in part.held)

    @property
    def interruptible(self) -> set[str]:
        """Who has something to read of a member, when it is struck."""
        readings = [part for part in self.parts if isinstance(part, Reading)]
        return {held.name for part in readings for held in part.held if held.has_struck_stop}


_REWINDS = (
    (more_of("capped"), more_changes()),
    (asked("ping"), more_changes()),
    (None, more_of("capped")),
)


def write(database: Database[Document], number: int) -> None:
    """Every kind of change, each round with an `n` of its own."""
    for name in ("orders", "dropped", "capped", "bare", "bare_dropped"):
        database[name].update_many({}, {"$set": {"n": number}})
    orders = database["orders"]
    with database.client.start_session() as session, session.start_transaction():
        for key in range(10):
            orders.update_one({"_id": key}, {"$inc": {"n": 100}}, session=session)
        orders.insert_many([{"_id": -number}, {"_id": 200 + number}], session=session)
    orders.delete_one({"_id": 10 + number})
    orders.replace_one({"_id": 20 + number}, {"new": number})
    orders.insert_one({"_id": 10 + number, "n": number})


def write_doomed(database: Database[Document]) -> Timestamp:
    """The time of the last write."""
    for name in ("orders", "capped", "bare"):
        database[name].update_many({"_id": {"$lt": 55}}, {"$set": {"n": DOOMED}})
    database["orders"].insert_many([{"_id": n, "n": DOOMED} for n in (-1000, 50.5, 1000)])
    database["orders"].delete_many({"_id": {"$in": [5, 45, 110]}})
    for name in ("dropped", "bare_dropped"):
        database[name].drop()
    return database.command("ping")["operationTime"]


# --- what has to be true -------------------------------------------------------------------------


def _has_run(pipeline: Capture) -> bool:
    """To its end; whoever was elected last may step down once more meanwhile."""
    with suppress(TransientError):
        pipeline.run()
        return True
    return False


@pytest.mark.parametrize(
    "fault",
    slow_but(
        ["a rollback"],
        FAULTS,
        soak=["a stepdown", "a network that is silent"],
    ),
)
def test_nothing_is_lost_nothing_reported_twice_and_nothing_reported_that_was_rolled_back(
    trio: Trio, failed: set[str | None], fault: str
) -> None:
    trio.heal()
    database = trio.fresh()
    befalls = FAULTS[fault](trio, database)
    scene = Scene(trio, database, befalls.server_timeout_ms)
    for held in scene.held:
        held.wait_held(0)
    befalls.at_risk()
    for held in scene.held:
        held.go(0)
    for held in scene.held:
        held.wait_held(1)
    with befalls.strike():
        for held in scene.held:
            held.go(1)
        if befalls.interrupts:
            until(lambda: scene.interruptible <= failed)
    # Who is down stays down until all have gone on.
    for held in scene.held:
        held.join(SOON_SECONDS)
        assert not held.is_alive(), f"{held.name} does not end"
    befalls.over()
    trio.heal()
    write(database, 4)
    for part in scene.parts:
        part.done()
    for name, pipeline in scene.pipelines.items():
        until(partial(_has_run, pipeline))
        problems = list(wrong(pipeline, database[pipeline.planner.selection.names[0].coll]))
        assert not problems, f"{name}: {problems[:5]}"


def wrong(pipeline: Capture, coll: Collection[Document]) -> Iterator[str]:
    reported = [(row.position, row.key) for row in pipeline.rows]
    if len(set(reported)) < len(reported):
        yield "a row is emitted twice"
    if any(is_doomed(row) for row in pipeline.rows):
        yield "a write that was rolled back is emitted"
    if pipeline.replayed(coll) != contents(coll):
        yield "the end is not what there is"
    if coll.name.startswith("bare") and any(row.after is None for row in pipeline.rows):
        yield "a document was not found"
    for number, batch in enumerate(pipeline.batches):
        found, there = changes_reported(batch), changes_made(batch, coll)
        if found != there:
            yield f"batch {number}: emitted {found - there}, not emitted {there - found}"
    yield from not_as_of_its_time(pipeline, coll)


def is_doomed(row: Change) -> bool:
    images = (document(row.before), document(row.after))
    return any(image is not None and image.get("n") == DOOMED for image in images)


Reported = Counter[tuple[Timestamp, str, Any]]
_OPS = {"insert": "i", "update": "u", "replace": "u", "delete": "d"}


def changes_reported(batch: Batch) -> Reported:
    return Counter(
        (resume_token.time_of(row.position), _OPS[row.op], id_of(row))
        for row in batch.rows
        if row.op in _OPS
    )


def changes_made(batch: Batch, coll: Collection[Document]) -> Reported:
    """What the oplog has of the time of the batch, of the keys that had been copied before."""
    query = {"ts": {"$gt": batch.start.time, "$lte": batch.end.time}, "op": {"$ne": "n"}}
    below = frontier(batch.start, Namespace(coll.database.name, coll.name))
    return Counter(
        (entry["ts"], each["op"], key)
        for entry in coll.database.client.local["oplog.rs"].find(query)
        for each in entry["o"].get("applyOps", [entry])
        if each["ns"] == f"{coll.database.name}.{coll.name}" and each["op"] in _OPS.values()
        if (key := (each.get("o2") or each["o"])["_id"]) < below
    )


def frontier(offset: Offset, namespace: Namespace) -> float:
    if offset.copying is not None:
        return bson.decode(offset.copying.below)["_id"]
    return float("inf") if offset.passes_whole(namespace) else float("-inf")


def not_as_of_its_time(pipeline: Capture, coll: Collection[Document]) -> Iterator[str]:
    """Of a copy whose changes come with their documents, if the server reports what was there at a
    time: it does not of a capped collection."""
    if not abilities(coll.database.client).after_images or coll.name.startswith("bare"):
        return
    if not all(row.exact for row in pipeline.rows):
        yield "rows are not exact"
    if coll.name == "capped" or pipeline.batches[0].start.is_streaming:
        return
    rows: list[Change] = []
    for number, batch in enumerate(pipeline.batches):
        rows += batch.rows
        below = frontier(batch.end, Namespace(coll.database.name, coll.name))
        there = contents(coll, batch.end.time).items()
        there_below = {key: raw for key, raw in there if bson.decode(raw)["_id"] < below}
        if replayed(rows, coll.database.name, coll.name) != there_below:
            yield f"batch {number} is not as of its time"


# --- what is no batch ----------------------------------------------------------------------------


def test_progress_that_cannot_be_reported_ends_nothing(trio: Trio) -> None:
    database = trio.fresh()
    filled(database, "a", range(3))
    pipeline = Capture(trio.uri, f"{database.name}.a", server_timeout_ms="500")
    reader = source.ChangeReader(pipeline.options, StructType())
    end = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    reported = reader.reportLatestOffset() or {}
    assert reported["metrics"]["liveEdge"]
    trio.network.cut()
    until(lambda: (reader.reportLatestOffset() or {})["metrics"]["liveEdge"] is None)
    reported = reader.reportLatestOffset() or {}
    trio.network.restore()
    assert reported["time"] == end["time"]


def test_a_member_that_recovered_is_read_though_it_was_asked_before(trio: Trio) -> None:
    """Guards: a connection that was made meanwhile takes no sessions as long as it is open."""
    recovering = trio.others(trio.replica_set.wait_writable())[0]
    uri = f"mongodb://{recovering.host}/?directConnection=true&readPreference=nearest"
    with recovering.client() as client:
        client.admin.command("replSetMaintenance", 1)
        asked_too_soon = member(uri, 1000)
        with pytest.raises(AutoReconnect):
            asked_too_soon.command("admin", {"ping": 1})
        client.admin.command("replSetMaintenance", 0)
    until(recovering.is_data_bearing)
    assert member(uri, 1000).command("admin", {"ping": 1})["ok"]
