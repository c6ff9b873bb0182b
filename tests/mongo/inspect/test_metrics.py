"""What a stream reports about itself at each trigger is true, cheap, and ends nothing."""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from unittest.mock import patch

import bson
import pytest
from pymongo.database import Database
from pyspark.sql.types import StructType

from cdc import options as declared
from cdc import source
from cdc.demo import ReplicaSet
from cdc.errors import SourceUnreachable
from cdc.model import Again, Copying, Namespace, Offset, Selection
from cdc.mongo.connection.privileges import required_needs
from cdc.mongo.inspect import Metrics, Rate, ServerClock, lag, metrics, server_clock
from cdc.mongo.inspect.copy_progress import draw_sample
from cdc.mongo.inspect.ttl_cache import value_or_none
from cdc.mongo.topology import Source, commit_point, discover, oplog_window
from tests.mongo.abilities import abilities
from tests.mongo.access import Guarded
from tests.mongo.capture import (
    TIMEOUT_MS,
    Client,
    Document,
    asked,
    failing,
    filled,
    last_write,
    until,
)


class Triggers:
    """A query as Spark drives it, without its tasks: an offset, then what is reported with it."""

    def __init__(self, uri: str, collections: str, **options: str) -> None:
        given = {name.replace("_", "."): value for name, value in options.items()}
        given = {"uri": uri, "collections": collections, "heartbeat.interval": "0", **given}
        self.reader = source.ChangeReader(declared.parse(given), StructType())
        self.offset = Offset.from_json(self.reader.initialOffset())

    def next(self) -> Metrics:
        start = self.offset.to_json()
        end = self.reader.latestOffset(start, self.reader.getDefaultReadLimit())
        self.reader.partitions(start, end)
        self.offset = Offset.from_json(end)
        return self.report()

    def report(self) -> Metrics:
        reported = json.loads(json.dumps(self.reader.reportLatestOffset()))
        parsed = Metrics.from_json(reported["metrics"])
        assert parsed.to_json() == reported["metrics"]
        return parsed


Begin = Callable[..., Triggers]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is no server that does not answer."""
    for module in (lag, metrics):
        monkeypatch.setattr(module, "PATIENCE_SECONDS", 30.0)


@pytest.fixture
def begin(mongod: ReplicaSet, database: Database[Document]) -> Iterator[Begin]:
    """`begin("a", …)`: a query over collections of `database`."""
    begun: list[Triggers] = []

    def query(*names: str, **options: str) -> Triggers:
        collections = ",".join(f"{database.name}.{name}" for name in names)
        begun.append(Triggers(mongod.uri, collections, **options))
        return begun[-1]

    yield query
    for each in begun:
        each.reader.stop()


def test_before_the_first_batch_nothing_is_reported(
    begin: Begin, database: Database[Document]
) -> None:
    filled(database, "a", [1])
    assert begin("a").reader.reportLatestOffset() is None


def test_lag_is_from_what_is_committed_to_the_live_edge_not_from_what_is_planned(
    begin: Begin, database: Database[Document]
) -> None:
    """Guards: the lag of a batch that takes long, which was 0: its end is the live edge."""
    filled(database, "a", [1])
    query = begin("a", heartbeat_interval="1000")
    first = query.next()
    assert first.time == query.offset.time
    assert first.live_edge is not None
    assert first.live_edge >= first.time
    assert first.lag_seconds is None, "nothing is committed"
    while not query.offset.is_streaming:
        query.next()
    committed = query.offset.time
    time.sleep(1.1)
    database.a.update_one({"_id": 1}, {"$inc": {"n": 1}})
    until(lambda: query.next().time != committed)  # it is planned, and takes a while
    time.sleep(1.1)
    database.foreign.insert_one({})  # no batch comes of it
    newest = database.client.admin.command("ping")["operationTime"]
    until(lambda: (query.report().live_edge or committed) >= newest)
    parsed = query.report()
    assert parsed.time == query.offset.time
    assert parsed.live_edge is not None
    assert parsed.lag_seconds == parsed.live_edge.time - committed.time >= 2


def test_a_run_that_copies_nothing_has_committed_its_start_after_its_first_batch(
    begin: Begin, database: Database[Document]
) -> None:
    """Guards: a lag of years before anything is committed, and none after that."""
    filled(database, "a", [1])
    query = begin("a", mode="latest")
    first = query.next()
    assert (first.time, first.lag_seconds) == (query.offset.time, None)
    committed, parsed = query.offset.time, query.next()
    assert parsed.live_edge is not None
    assert parsed.lag_seconds == parsed.live_edge.time - committed.time


def test_the_share_that_is_copied_is_reported_within_a_tenth(
    begin: Begin, database: Database[Document]
) -> None:
    """Guards: a random sample of a large collection, all keys of a small one; and a query that goes
    on from a checkpoint reports about the same."""
    # In no order: so many small documents, written just now, are on a few pages in the server's
    # cache, of which $sample prefers some.
    numbers = random.Random(7).sample(range(30_000), 30_000)
    database.a.insert_many({"_id": number, "pad": "x" * 150} for number in numbers)
    database.b.insert_many({"_id": str(number), "pad": "x" * 1500} for number in range(6_000))
    database.c.insert_many({"_id": number} for number in range(1000))
    options = {"split_size_mb": "1", "snapshot_splits_per_batch": "1"}
    query, parsed = begin("a", "b", "c", **options), list[float]()
    while not query.offset.is_streaming:
        percent = query.next().snapshot_percent
        assert percent is not None
        assert abs(percent - 100 * _copied(database, query.offset) / 37_000) < 10
        parsed.append(percent)
        if len(parsed) == 5:
            later = begin("a", "b", "c", **options)
            later.offset = query.offset
            percent = later.next().snapshot_percent
            assert percent is not None
            assert abs(percent - 100 * _copied(database, later.offset) / 37_000) < 10
    assert len(parsed) > 10
    assert [percent for percent in parsed if percent >= 100] == [100.0]


def _copied(database: Database[Document], at: Offset) -> int:
    if at.copying is None:
        names = [name for name in "abc" if at.passes_whole(Namespace(database.name, name))]
        return sum(database[name].count_documents({}) for name in names)
    below = bson.decode(at.copying.below)["_id"]
    coll = at.copying.namespace.coll
    waiting = Again(at.copying.namespace, at.time)
    done = _copied(database, replace(at, copying=None, again=(waiting,)))
    return done + int(database[coll].count_documents({"_id": {"$lt": below}}))


def test_a_copy_is_measured_without_reading_the_collection(
    begin: Begin, database: Database[Document]
) -> None:
    """Guards: a terabyte."""
    database.a.insert_many({"_id": number, "pad": "x" * 2000} for number in range(4000))
    query = begin("a", split_size_mb="1", snapshot_splits_per_batch="1")
    with asked(database) as operations:
        for _ in range(3):
            query.next()
    assert operations
    assert sum(each.get("docsExamined", 0) for each in operations) < 4000 / 20


def test_large_keys_end_no_query_and_the_share_is_reported(
    begin: Begin, database: Database[Document]
) -> None:
    """Guards: 300 keys of 70 KB are more than the 16 MiB of a command."""
    database.a.insert_many({"_id": f"{number:03}{'x' * 70_000}"} for number in range(300))
    query = begin("a", split_size_mb="1", snapshot_splits_per_batch="5")
    percent = query.next().snapshot_percent
    assert query.offset.copying is not None
    assert percent is not None
    assert abs(percent - 100 * _copied(database, query.offset) / 300) < 15


def test_what_cannot_be_asked_for_its_size_is_not_reported_and_ends_nothing(
    mongod: ReplicaSet, database: Database[Document]
) -> None:
    database.a.insert_one({"_id": "a" * 8_000_000})
    copying = Copying(Namespace(database.name, "a"), b"", None)
    sample = draw_sample(discover(mongod.uri, 30_000), copying)
    assert value_or_none(lambda: sample.share(bson.encode({"_id": "b"})), "a share") == 1
    assert (
        value_or_none(lambda: sample.share(bson.encode({"_id": "b" * 9_000_000})), "a share")
        is None
    )


def test_changes_per_second_are_those_of_the_batches_that_have_passed(
    begin: Begin, database: Database[Document]
) -> None:
    filled(database, "a", range(5))
    first, query = time.monotonic(), begin("a")
    while not query.offset.is_streaming:
        query.next()
    began = time.monotonic()
    for number in range(300):
        database.a.update_one({"_id": number % 5}, {"$inc": {"n": 1}})
    database.foreign.insert_many({} for _ in range(1000))
    reached = database.client.admin.command("ping")["operationTime"]
    while query.offset.time < reached:
        query.next()
    parsed = query.report().events_per_second  # the last batch has passed
    now = time.monotonic()
    if not abilities(database.client).before_images:  # 4.2, which does not measure entries either
        assert parsed is None
        return
    assert parsed is not None
    assert 300 / (now - first) - 1 < parsed < 300 / (now - began) + 1


def test_a_copy_that_waits_for_the_backlog_is_not_complete(
    begin: Begin, database: Database[Document]
) -> None:
    """Guards: 100 % for a collection, or for a field, that is captured from now on."""
    filled(database, "a", range(10))
    filled(database, "b", range(10))
    query = begin("a")
    while not query.offset.is_streaming:
        query.next()
    database.a.update_many({}, {"$inc": {"n": 1}})
    for names, options in ((["a", "b"], {}), (["a"], {"fields": "n"})):
        later, parsed = begin(*names, max_events_per_batch="3", **options), list[float | None]()
        later.offset = query.offset
        while not parsed or parsed[-1] != 100:
            is_old = later.offset.is_of(query.offset.selection, query.offset.capture_text)
            parsed.append(later.next().snapshot_percent)
            assert None not in parsed
        assert not is_old
        assert later.offset.is_streaming
        assert not later.offset.is_of(query.offset.selection, query.offset.capture_text)
        assert parsed[0] != 100


def test_the_live_edge_is_asked_for_seldom_and_is_never_before_the_batch(
    begin: Begin, database: Database[Document], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards: a cluster, where it takes questions to each shard."""
    monkeypatch.setattr(lag, "_EDGE_SECONDS", 600.0)
    filled(database, "a", [1])
    query = begin("a")
    first = query.next().live_edge
    assert first is not None
    database.a.update_one({"_id": 1}, {"$inc": {"n": 1}})
    database.foreign.insert_one({})
    while query.offset.time <= first:
        parsed = query.next()
    database.foreign.insert_one({})
    assert query.report().live_edge == parsed.live_edge == parsed.time


def test_what_is_left_of_the_oplog_is_reported() -> None:
    """Guards: of one that has thrown nothing away yet nothing is lost soon. The server is the
    test's own: other tests fill the oplog of the shared one until it throws away."""
    with ReplicaSet() as server, server.client() as client:
        client.shop.a.insert_one({"_id": 1})
        query = Triggers(server.uri, "shop.a", mode="earliest")
        [first] = client.local["oplog.rs"].find().sort("$natural", 1).limit(1)
        for _ in range(2):
            start, parsed = query.offset, query.next().oplog_left
            assert parsed is not None
            assert parsed.percent == 100
            assert parsed.hours == round((start.time.time - first["ts"].time) / 3600, 2)
        query.reader.stop()


def test_an_oplog_that_is_cut_while_it_is_read_is_read_again(
    mongo: Client, mongod: ReplicaSet
) -> None:
    """Guards: the server's answer then is what lost history is to a change stream."""
    source = discover(mongod.uri, TIMEOUT_MS)
    written = last_write(mongo)
    with failing(mongo, {"times": 3}, failCommands=["find"], errorCode=136):
        assert oplog_window(source.client).origin == "local.oplog.rs"
    with failing(mongo, {"times": 2}, failCommands=["find"], errorCode=136):
        assert commit_point.late_times({"s": source}, written) == ()


def test_what_the_user_may_not_know_is_not_reported_and_ends_nothing(guarded: Guarded) -> None:
    orders = guarded.client["metered"]["orders"]
    orders.insert_one({"_id": 1})
    user = guarded.user(required_needs(Selection.parse("metered.orders")), guarded.by_uuid)
    query = Triggers(user, "metered.orders")
    for number in range(2, 5):
        parsed = query.next()
        orders.insert_one({"_id": number})
    assert (parsed.oplog_left, parsed.events_per_second) == (None, None)
    assert parsed.lag_seconds is not None
    assert parsed.snapshot_percent is not None
    query.reader.stop()


def test_a_server_that_does_not_answer_ends_nothing_and_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Guards: a query that ends for a number about it; the next batch knows what to do."""
    monkeypatch.setattr(server_clock, "_PATIENCE_SECONDS", 0.3)
    for module in (lag, metrics):
        monkeypatch.setattr(module, "PATIENCE_SECONDS", 0.3)
    for name in ("_EDGE_SECONDS", "_EDGE_COST_FACTOR"):
        monkeypatch.setattr(lag, name, 0.0)
    with ReplicaSet() as server:
        with server.client() as client:
            client.shop.orders.insert_one({"_id": 1})
        query = Triggers(server.uri, "shop.orders")
        known, open_source = query.next(), partial(discover, server.uri, 30_000)
        ours = ServerClock(open_source)
        assert ours.now() is not None
        server.members[0].kill()
        began = time.monotonic()
        parsed = query.report()
        assert parsed.time == known.time
        assert (parsed.live_edge, parsed.lag_seconds) == (None, None), "nothing is committed"
        assert ours.now() is not None, "it is known from before"
        assert ServerClock(open_source).now() is None
        assert time.monotonic() - began < 15, "each would have waited for 30 seconds"
        query.reader.stop()


def test_the_clock_is_the_servers(mongod: ReplicaSet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards: a driver whose own clock is wrong."""
    right = time.time
    monkeypatch.setattr(time, "time", lambda: right() - 1000)
    now = ServerClock(partial(discover, mongod.uri, 3000)).now()
    assert now is not None
    assert abs(now - right()) < 10


def test_the_time_that_asking_takes_makes_nothing_look_older(
    mongod: ReplicaSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine the answer itself takes a while.
    monkeypatch.setattr(server_clock, "_PATIENCE_SECONDS", 30.0)

    def open_slowly() -> Source:
        time.sleep(1.0)
        return discover(mongod.uri, 3000)

    ours, began = ServerClock(open_slowly), time.time()
    now = ours.now()
    assert now is not None
    assert abs(now - began) < 0.5


def test_the_clock_is_asked_for_seldom(mongod: ReplicaSet, database: Database[Document]) -> None:
    """Guards: a batch that waits for a server which does not answer, each time."""
    opened = 0

    def open_in_vain() -> Source:
        nonlocal opened
        opened += 1
        raise SourceUnreachable("It is down.", "Start it.")

    ours = ServerClock(open_in_vain)
    assert [ours.now() for _ in range(5)] == [None] * 5
    assert opened == 1


def test_a_rate_is_that_of_the_last_seconds_or_of_the_last_batch() -> None:
    """Guards: one long batch shows as many per second as it took in, not as many at once."""
    rate, now = Rate(seconds=10.0), [100.0]
    with patch.object(metrics.time, "monotonic", lambda: now[0]):
        for moment, count, parsed in (
            (100, 5, 0.0),  # before that nobody counted
            (102, 20, 10.0),
            (104, 40, 15.0),
            (140, 360, 10.0),  # 36 seconds
            (145, 0, 360 / 41),
            (149, 90, 10.0),
            (153, 0, 90 / 13),
        ):
            now[0] = moment
            rate.count(count)
            assert math.isclose(rate.per_second, parsed), moment
        now[0] = 200
        assert rate.per_second == 0


def test_a_rate_that_nobody_asks_for_grows_no_larger_than_its_seconds() -> None:
    """Guards: a query of months whose metrics nobody reads."""
    rate, now = Rate(seconds=10.0), [0.0]
    with patch.object(metrics.time, "monotonic", lambda: now[0]):
        for moment in range(1000):
            now[0] = float(moment)
            rate.count(1)
    assert len(rate._reports) <= 12
