"""What the source is spared: how fast it is read, by how many cursors, and for how long at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest
from pymongo.database import Database
from pymongo.monitoring import CommandListener, CommandStartedEvent

from cdc import options as declared
from cdc.demo import ReplicaSet
from cdc.demo.mongod import find_free_ports
from cdc.errors import BadOption
from cdc.model import ControlSplit, SnapshotSplit, Split, StreamSplit
from cdc.mongo.connection import Pace, client
from cdc.mongo.read import change_stream, range_scan
from cdc.mongo.topology import discover, end_cursors
from cdc.source.translation import Partition, make_partitions
from cdc.tasks import arrow_batches, task
from tests.kernel.arrow import schema
from tests.mongo.access import Guarded
from tests.mongo.capture import (
    Capture,
    Client,
    Document,
    contents,
    failing,
    filled,
    open_cursors,
)

Begin = Callable[..., Capture]
_MB = 2**20
_REPLY = 20
_DOCUMENT = {"pad": "x" * 10_000}


def limited(splits: list[Split], **limits: str) -> list[Partition]:
    """The tasks of a batch with these limits."""
    given = {name.replace("_", "."): value for name, value in limits.items()}
    return make_partitions(
        splits, declared.parse({"uri": "mongodb://h", "collections": "a.b", **given})
    )


def test_each_task_that_reads_has_an_equal_share_and_none_more_splits_than_another_but_one(
    capture: Begin, database: Database[Document]
) -> None:
    filled(database, "a", range(55))
    pipeline = capture("a", splits_per_batch=6)
    splits = pipeline.planner.splits(pipeline.offset, pipeline.plan(), control=True)
    reading = [split for split in splits if not isinstance(split, ControlSplit)]
    assert len(splits) == len(reading) + 1
    alone = limited(splits, max_mb_per_second="12", max_cursors="9")
    *first, last = reading
    assert [part.splits for part in alone] == [*([split] for split in first), [last, splits[-1]]]
    assert [part.bytes_per_second for part in alone] == [2 * _MB] * 6
    dealt = limited(splits, max_mb_per_second="12", max_cursors="4")
    assert [len(part.splits) for part in dealt] == [2, 2, 1, 1 + 1]
    assert [part.bytes_per_second for part in dealt] == [3 * _MB] * 4
    assert {id(split) for part in dealt for split in part.splits} == set(map(id, splits))
    assert [part.bytes_per_second for part in limited(splits)] == [None] * 6
    assert [part.splits for part in limited(splits[-1:])] == [splits[-1:]]
    assert limited([]) == limited([], max_cursors="3", max_mb_per_second="1") == []


def test_a_rate_without_a_number_of_tasks_that_share_it_is_refused() -> None:
    """Guards: of 160 splits of which 8 are read at once each would have a 160th of it."""
    with pytest.raises(BadOption, match=r"max\.cursors.*cores"):
        limited([], max_mb_per_second="12")
    limited([], max_cursors="4")


@pytest.fixture
def batch(
    capture: Begin, database: Database[Document], monkeypatch: pytest.MonkeyPatch
) -> tuple[Capture, list[Split]]:
    """Two splits of half a MB of documents and a slice of 1 MB of changes, in replies of 200 kB."""
    monkeypatch.setattr(range_scan, "_BATCH", _REPLY)
    monkeypatch.setattr(change_stream, "_BATCH", _REPLY)
    coll = filled(database, "a", [])
    coll.insert_many([{"_id": n, **_DOCUMENT} for n in range(300)])
    pipeline = capture("a", documents_per_split=50, splits_per_batch=2, images="off")
    pipeline.batch()
    coll.update_many({"_id": {"$lt": 100}}, {"$set": {"other": "y" * 10_000}})
    splits = pipeline.planner.splits(pipeline.offset, pipeline.plan(), control=False)
    return pipeline, splits


def read(pipeline: Capture, split: Split, pace: Pace) -> pa.Table:
    """Up to its last reply; what is to be waited for after that is left."""
    batches = task.record_batches(split, pipeline.options, schema("bson"), True, pace)
    return pa.Table.from_batches(batches, schema("bson"))


@pytest.mark.parametrize("kind", [SnapshotSplit, StreamSplit])
@pytest.mark.parametrize("fault", ["", "getMore", "too old"])
def test_documents_and_changes_come_no_faster_than_a_task_may_read(
    batch: tuple[Capture, list[Split]], mongo: Client, kind: type[Split], fault: str
) -> None:
    """Guards: also for a read that begins anew, and for one that is rewound."""
    pipeline, splits = batch
    split = next(each for each in splits if isinstance(each, kind))
    whole = read(pipeline, split, Pace(None))
    assert whole.num_rows == (50 if kind is SnapshotSplit else 100)
    code = 239 if (fault, kind) == ("too old", SnapshotSplit) else 262
    mode = {"times": 1} if fault else "off"
    pace, size = Pace(_MB), len(_DOCUMENT["pad"])
    began = time.monotonic()
    with failing(mongo, mode, failCommands=["getMore"], errorCode=code):
        paced = read(pipeline, split, pace)
    assert paced.sort_by("key") == whole.sort_by("key")
    assert time.monotonic() - began >= (whole.num_rows - _REPLY) * size / _MB
    pace.wait()
    assert time.monotonic() - began >= whole.num_rows * size / _MB


@pytest.mark.parametrize("kind", [SnapshotSplit, StreamSplit])
def test_a_read_that_is_cancelled_closes_its_cursor_at_once_however_slow_its_pace(
    batch: tuple[Capture, list[Split]],
    mongo: Client,
    kind: type[Split],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pipeline, splits = batch
    monkeypatch.setattr(arrow_batches, "_ROWS_PER_BATCH", _REPLY // 2)
    split = next(each for each in splits if isinstance(each, kind))
    before = open_cursors(mongo)
    reported = task.record_batches(split, pipeline.options, schema("bson"), True, Pace(2000.0))
    next(reported)
    assert open_cursors(mongo) == before + 1
    closing = threading.Thread(target=reported.close, daemon=True)  # type: ignore[attr-defined]
    closing.start()
    closing.join(30)
    assert not closing.is_alive()
    assert open_cursors(mongo) == before


# --- cursors -------------------------------------------------------------------------------------


class Cursors:
    """How many the server has open, as often as it says so until the block ends."""

    def __init__(self, mongo: Client) -> None:
        self._mongo, self._before = mongo, open_cursors(mongo)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.most = 0

    def _watch(self) -> None:
        # Without a pause it would take a whole core from what it watches.
        while not self._stop.wait(0.002):
            self.most = max(self.most, open_cursors(self._mongo) - self._before)

    def __enter__(self) -> Cursors:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def test_no_more_cursors_are_open_than_tasks_read(
    batch: tuple[Capture, list[Split]], mongo: Client
) -> None:
    """Guards: one for each of `max.cursors`, whatever many tasks run at once; without it, one for
    each split and slice."""
    pipeline, splits = batch
    found = {}
    for most in ("1", "2", "9"):
        parts = limited(splits, max_cursors=most, max_mb_per_second="2")
        with Cursors(mongo) as cursors, ThreadPoolExecutor(8) as cores:
            reported = list(cores.map(lambda part: rows(pipeline, part), parts))
        found[most] = cursors.most
        assert sum(reported) == 200
    assert found == {"1": 1, "2": 2, "9": 3}


def rows(pipeline: Capture, part: Partition) -> int:
    pace = Pace(part.bytes_per_second)
    reported = sum(read(pipeline, split, pace).num_rows for split in part.splits)
    pace.wait()
    return reported


# --- maxTimeMS -----------------------------------------------------------------------------------


class Commands(CommandListener):
    """All that is sent."""

    def __init__(self) -> None:
        self.sent = list[CommandStartedEvent]()

    def started(self, event: CommandStartedEvent) -> None:
        self.sent.append(event)

    def succeeded(self, event: Any) -> None: ...
    def failed(self, event: Any) -> None: ...


@contextmanager
def overheard(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[CommandStartedEvent]]:
    """The commands of clients that are made meanwhile."""
    settings, listener = client._settings, Commands()
    monkeypatch.setattr(
        client, "_settings", lambda ms: {**settings(ms), "event_listeners": [listener]}
    )
    yield listener.sent


def test_whatever_may_have_much_to_look_through_is_ended_by_the_server_in_the_end(
    mongod: ReplicaSet,
    database: Database[Document],
    capture: Begin,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All but reads of one document by its key or by chance, and a wait for changes."""
    coll = filled(database, "a", [])
    coll.insert_many([{"_id": n, **_DOCUMENT} for n in range(500)])
    with overheard(monkeypatch) as sent:
        pipeline = capture("a", uri=f"{mongod.uri}&maxPoolSize=77", documents_per_split=None)
        pipeline.batch()
        coll.update_many({}, {"$set": {"n": 1}})
        database.drop_collection("b")
        pipeline.run()
    assert pipeline.replayed(coll) == contents(coll)
    names = {event.command_name for event in sent}
    assert {"find", "aggregate", "getMore", "splitVector", "listCollections"} <= names
    long = [e for e in sent if e.command_name in names - {"getMore", *_QUICK} and not _is_one(e)]
    assert [e.command for e in long if not 0 < e.command.get("maxTimeMS", 0) <= 3_600_000] == []
    waits = [e.command for e in sent if e.command.get("collection") == "$cmd.aggregate"]
    assert waits
    assert all(command["maxTimeMS"] <= 500 for command in waits)


_QUICK = {"hello", "ping", "killCursors", "endSessions", "connectionStatus"}


def _is_one(event: CommandStartedEvent) -> bool:
    return bool(event.command.get("limit") == 1 and not event.command.get("filter"))


# --- what is left of a process that was killed ---------------------------------------------------


def test_a_user_ends_those_of_his_cursors_that_bear_the_comment_and_needs_no_privilege_for_it(
    guarded: Guarded,
) -> None:
    filled(guarded.client["ending"], "a", range(9))
    uris = [guarded.user(roles=[{"role": "read", "db": "ending"}]) for _ in range(2)]
    mine, others = (discover(uri, 5000) for uri in uris)
    for found, comment in ((mine, "one"), (mine, "two"), (others, "one")):
        found.open("").configure(comment).command("ending", {"find": "a", "batchSize": 1})
    assert _idle(guarded.client) == ["one", "one", "two"]
    end_cursors(lambda: mine, "one")
    assert _idle(guarded.client) == ["one", "two"]
    end_cursors(lambda: others, "one")
    end_cursors(lambda: mine, "two")
    assert _idle(guarded.client) == []


def test_a_stop_does_not_wait_long_for_a_source_that_is_down() -> None:
    """Guards: server.timeout.ms is half a minute, and SIGTERM may be followed by a kill."""
    port = find_free_ports(1)[0]
    began = time.monotonic()
    end_cursors(lambda: discover(f"mongodb://127.0.0.1:{port}/?replicaSet=rs0", 30_000), "one")
    assert time.monotonic() - began < 15


def _idle(root: Client) -> list[str]:
    stages = [
        {"$currentOp": {"idleCursors": True, "allUsers": True}},
        {"$match": {"type": "idleCursor", "ns": "ending.a"}},
    ]
    found = root.admin.aggregate(stages)
    return sorted(each["cursor"]["originatingCommand"]["comment"] for each in found)
