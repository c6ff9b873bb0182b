"""The change streams of the stand-in for a router, in front of real servers."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from bson import Timestamp
from pymongo import MongoClient
from pymongo.errors import OperationFailure, PyMongoError

from cdc.model import resume_token
from tests.mongo.capture import Client, Document, until
from tests.mongo.cluster import HIGHEST, LOWEST, Cluster
from tests.mongo.stand_in import StandIn
from tests.mongo.trio import three_members

# A shard's token stands still until it writes something: with this, once a second.
NOOPS = ("--setParameter", "periodicNoopIntervalSecs=1")
PATIENCE_SECONDS = 30.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(NOOPS) as running:
        yield running


@pytest.fixture
def router(cluster: Cluster) -> Iterator[StandIn]:
    with StandIn.of_cluster(cluster) as running:
        yield running


@pytest.fixture
def client(router: StandIn) -> Iterator[Client]:
    with MongoClient[Document](router.uri) as connected:
        yield connected


class Reader:
    """A stream of a database (or of all), read by single commands as the connector reads it."""

    def __init__(self, client: Client, db: str, *stages: Document, **options: Any) -> None:
        self._client, self._session = client, client.start_session()
        is_all = {"allChangesForCluster": True} if db == "admin" else {}
        pipeline = [{"$changeStream": {**options, **is_all}}, *stages]
        opening = {"aggregate": 1, "pipeline": pipeline, "cursor": {"batchSize": 0}}
        self.cursor = client[db].command(opening, session=self._session)["cursor"]
        self.events: list[Document] = []
        self.tokens = [self.token]

    @property
    def token(self) -> str:
        return str(self.cursor["postBatchResumeToken"]["_data"])

    @property
    def time(self) -> Timestamp:
        return resume_token.time_of(self.token)

    def more(self, wait_ms: int = 100, **options: Any) -> list[Document]:
        db, _, coll = self.cursor["ns"].partition(".")
        more = {"getMore": self.cursor["id"], "collection": coll, "maxTimeMS": wait_ms, **options}
        self.cursor = self._client[db].command(more, session=self._session)["cursor"]
        batch: list[Document] = self.cursor["nextBatch"]
        self._check(batch)
        self.events += batch
        self.tokens.append(self.token)
        return batch

    def _check(self, batch: list[Document]) -> None:
        """Nothing comes at or before a token that was given out, and no token passes an event."""
        positions = [event["_id"]["_data"] for event in batch]
        assert positions == sorted(set(positions))
        if positions:
            assert self.tokens[-1] < positions[0]
            assert positions[-1] <= self.token
        assert self.tokens[-1] <= self.token

    def until(self, moment: Timestamp, **options: Any) -> list[Document]:
        """Read until the token is after a time; return all events up to that time."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.time <= moment:
            assert time.monotonic() < deadline, f"the token remains at {self.time}"
            self.more(**options)
        return [event for event in self.events if event["clusterTime"] <= moment]


def make(cluster: Cluster, db: str, cut: int = 50) -> str:
    """A collection sharded by `k`: below `cut` on `s1`, else on `s2`."""
    cluster.shard_collection(db, "orders", {"k": 1})
    cluster.move(db, "orders", {"k": cut}, "s2", {"k": HIGHEST})
    return "orders"


def insert(client: Client, db: str, number: int, k: int) -> Timestamp:
    reply = client[db].command({"insert": "orders", "documents": [{"_id": number, "k": k}]})
    assert not reply.get("writeErrors"), reply
    moment: Timestamp = reply["operationTime"]
    return moment


def numbers(events: list[Document]) -> list[Any]:
    return [e["documentKey"]["_id"] for e in events if e["operationType"] == "insert"]


def test_events_of_shards_come_in_the_order_of_their_times(
    cluster: Cluster, client: Client, db: str
) -> None:
    make(cluster, db)
    for database in (db, "admin"):
        reader = Reader(client, database)
        start = 1000 if database == "admin" else 0
        chance = random.Random(start)
        for number in range(start, start + 60):
            last = insert(client, db, number, chance.randrange(100))
        events = reader.until(last, batchSize=7)
        times = [event["clusterTime"] for event in events]
        assert times == sorted(times)
        mine = [event for event in events if event["ns"]["db"] == db]
        assert numbers(mine) == list(range(start, start + 60))


def test_no_event_is_lost_or_doubled_while_chunks_move(
    cluster: Cluster, client: Client, db: str
) -> None:
    make(cluster, db)
    reader, writer = Reader(client, db), Writer(client, db)
    same = {"startAtOperationTime": reader.time}
    directly = {shard: Reader(cluster.clients[shard], db, **same) for shard in cluster.shards}
    with writer:
        for number in range(6):
            cluster.move(db, "orders", {"k": 30}, ("s2", "s1")[number % 2], {"k": 50})
            until(lambda: reader.more() != [])
    events = reader.until(writer.last)
    assert numbers(events) == list(range(writer.count))
    of_shards = [event for shard in directly.values() for event in shard.until(writer.last)]
    of_shards = [event for event in of_shards if "ns" in event]  # 5.0 shows some to routers only
    of_shards.sort(key=lambda event: event["_id"]["_data"])
    assert [event["_id"] for event in events] == [event["_id"] for event in of_shards]


class Writer:
    """Inserts documents with increasing `_id` all over the shards, one after the other."""

    def __init__(self, client: Client, db: str) -> None:
        self._client, self._db = client, db
        self._stops = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self.count, self.last = 0, Timestamp(0, 0)

    def _write(self) -> None:
        chance = random.Random(7)
        while not self._stops.is_set():
            self.last = insert(self._client, self._db, self.count, chance.randrange(100))
            self.count += 1
            time.sleep(0.002)

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stops.set()
        self._thread.join()


def test_the_first_token_may_be_later_than_what_any_shard_has(
    cluster: Cluster, client: Client, db: str
) -> None:
    def is_ahead() -> bool:
        client.admin.command("listDatabases")
        reader = Reader(client, db)
        hellos = [cluster.clients[shard].admin.command("hello") for shard in cluster.shards]
        return all(hello["lastWrite"]["opTime"]["ts"] < reader.time for hello in hellos)

    until(is_ahead)


@pytest.mark.slow
def test_a_cold_shard_delays_the_events_of_the_others(
    cluster: Cluster, router: StandIn, client: Client, db: str
) -> None:
    make(cluster, db)
    reader = Reader(client, db)
    reader.until(insert(client, db, 0, 0))
    router.faults.cold.add("s2")
    for number in range(1, 5):
        last = insert(client, db, number, number % 2 * 99)
    deadline = time.monotonic() + 5  # more than it takes all shards to write something
    while time.monotonic() < deadline:
        assert not numbers(reader.more(1000))
    assert reader.time < last
    router.faults.cold.clear()
    assert numbers(reader.until(last)) == list(range(5))


def test_an_error_ends_a_stream_on_all_shards_unless_it_is_the_router_s(
    cluster: Cluster, router: StandIn, client: Client, db: str
) -> None:
    make(cluster, db)
    reader = Reader(client, db)
    router.faults.fail(50, "getMore")
    assert code_of(reader) == 50
    reader.until(insert(client, db, 1, 99))
    fail = {"failCommands": ["getMore"], "errorCode": 11601, "namespace": f"{db}.$cmd.aggregate"}
    shard = cluster.clients["s2"].admin
    shard.command({"configureFailPoint": "failCommand", "mode": {"times": 1}, "data": fail})
    assert code_of(reader) == 11601
    assert code_of(reader) == 43
    idle: list[Document] = [
        {"$currentOp": {"idleCursors": True}},
        {"$match": {"ns": reader.cursor["ns"]}},
    ]
    assert not list(client.admin.aggregate(idle))


def test_a_cursor_that_is_killed_while_it_waits_ends_on_all_shards(
    cluster: Cluster, client: Client, db: str
) -> None:
    make(cluster, db)
    reader, ended = Reader(client, db), list[Any]()

    def wait() -> None:
        with pytest.raises(OperationFailure) as refused:
            reader.more(60_000)
        ended.append(refused.value.code)

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.3)
    kill = {"killCursors": "$cmd.aggregate", "cursors": [reader.cursor["id"]]}
    assert client[db].command(kill)["cursorsKilled"] == [reader.cursor["id"]]
    waiting.join(10)
    assert ended == [237]
    assert code_of(reader) == 43
    behind: list[Document] = [
        {"$currentOp": {"idleCursors": True}},
        {"$match": {"ns": reader.cursor["ns"]}},
    ]
    until(lambda: not list(client.admin.aggregate(behind)))


def code_of(reader: Reader) -> int | None:
    """Returns the code of the first getMore that fails, of those within three seconds."""
    for _ in range(3):
        try:
            reader.more(1000)
        except OperationFailure as error:
            return error.code
    return None


def test_a_stream_goes_on_after_an_event_of_either_shard(
    cluster: Cluster, client: Client, db: str
) -> None:
    make(cluster, db)
    first = Reader(client, db)
    for number in range(20):
        last = insert(client, db, number, number % 2 * 99)
    events = [e for e in first.until(last) if e["operationType"] == "insert"]
    for place in (3, 4):
        for start in ("resumeAfter", "startAfter"):
            reader = Reader(client, db, **{start: events[place]["_id"]})
            assert numbers(reader.until(last)) == list(range(place + 1, 20))


def test_a_looked_up_document_is_that_of_its_owner_by_then(
    cluster: Cluster, client: Client, db: str
) -> None:
    make(cluster, db)
    insert(client, db, 1, 10)
    only = [{"$match": {"operationType": "update"}}, {"$project": {"fullDocument": 1}}]
    reader = Reader(client, db, *only, fullDocument="updateLookup")
    for value in (1, 2):
        client[db]["orders"].update_one({"k": 10}, {"$set": {"value": value}})
    cluster.move(db, "orders", {"k": LOWEST}, "s2", {"k": 50})
    until(lambda: not cluster.clients["s1"][db]["orders"].count_documents({}))
    until(lambda: reader.more() is not None and len(reader.events) == 2)
    found = {"_id": 1, "k": 10, "value": 2}
    assert [event["fullDocument"] for event in reader.events] == [found, found]


@pytest.mark.slow
def test_a_shard_that_joins_is_followed_from_its_first_document() -> None:
    with (
        Cluster(NOOPS) as cluster,
        StandIn.of_cluster(cluster) as router,
        MongoClient[Document](router.uri) as client,
    ):
        cluster.create_database("shop")
        make(cluster, "shop")
        reader = Reader(client, "shop")
        with cluster.start("s3"):
            cluster.add("s3")
            cluster.move("shop", "orders", {"k": 50}, "s3", {"k": HIGHEST})
            for number in range(20):
                insert(client, "shop", number, number * 5)
            assert cluster.clients["s3"]["shop"]["orders"].count_documents({}) == 10
            until(lambda: reader.more() is not None and len(numbers(reader.events)) == 20)
            assert numbers(reader.events) == list(range(20))


@pytest.mark.slow
def test_a_stream_outlives_a_router_and_a_primary_by_its_token() -> None:
    with three_members() as trio, MongoClient[Document](trio.replica_set.uri) as directly:
        coll = directly["shop"]["orders"]
        with (
            StandIn.of_replica_set(trio.replica_set.uri) as router,
            MongoClient[Document](router.uri) as client,
        ):
            reader = Reader(client, "shop")
            coll.insert_one({"_id": 0, "k": 0})
            until(lambda: reader.more() is not None and numbers(reader.events) == [0])
            trio.replica_set.primary().kill()
            with pytest.raises(PyMongoError) as failed:
                reader.more()
            assert failed.value.has_error_label("ResumableChangeStreamError")
            for number in range(1, 5):
                coll.insert_one({"_id": number, "k": 0})
            again = Reader(client, "shop", startAfter=reader.cursor["postBatchResumeToken"])
            until(lambda: again.more(batchSize=1) is not None and 2 in numbers(again.events))
            router.kill()
        coll.insert_one({"_id": 5, "k": 0})
        with (
            StandIn.of_replica_set(trio.replica_set.uri) as router,
            MongoClient[Document](router.uri) as client,
        ):
            last = Reader(client, "shop", startAfter=again.cursor["postBatchResumeToken"])
            until(lambda: last.more() is not None and 5 in numbers(last.events))
        assert numbers(again.events) + numbers(last.events) == [1, 2, 3, 4, 5]


def test_a_dropped_database_ends_its_stream_and_another_begins_after_it(mongod: Any) -> None:
    with (
        StandIn.of_replica_set(mongod.uri) as router,
        MongoClient[Document](router.uri) as client,
    ):
        reader = Reader(client, "dropped")
        insert(client, "dropped", 1, 1)
        client.drop_database("dropped")
        until(lambda: not reader.cursor["id"] or reader.more() is None)
        assert [e["operationType"] for e in reader.events[-2:]] == ["dropDatabase", "invalidate"]
        again = Reader(client, "dropped", startAfter=reader.events[-1]["_id"])
        insert(client, "dropped", 2, 2)
        until(lambda: again.more() is not None and numbers(again.events) == [2])
        client.drop_database("dropped")
