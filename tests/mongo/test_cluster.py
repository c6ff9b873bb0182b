"""A sharded cluster, its shards read directly: the same invariant, chunks on the move or not."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import bson
import pytest
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp

from cdc.model.key import merge_key
from cdc.model.offset import Offset
from cdc.model.selection import Namespace
from cdc.model.split import key_of
from cdc.mongo import settled
from tests.mongo.capture import RAW, Batch, Capture, Contents, Document
from tests.mongo.capture import replayed as replay
from tests.mongo.cluster import HIGHEST, LOWEST, Cluster, Transaction

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as running:
        yield running


@pytest.fixture
def db(cluster: Cluster) -> str:
    name = f"shop{next(_numbers)}"
    cluster.create_database(name)
    return name


def capture(cluster: Cluster, *names: str, **settings: Any) -> Capture:
    return Capture(cluster.config.uri, ",".join(names), shards_direct="true", **settings)


class Orders:
    """A collection sharded by (region, number), half of it on each shard, with writes as a router
    sends them."""

    def __init__(self, cluster: Cluster, db: str, count: int = 100) -> None:
        self.cluster, self.db, self.name = cluster, db, "orders"
        self.full = f"{db}.{self.name}"
        cluster.shard_collection(db, self.name, {"region": 1, "number": 1})
        images = {"enabled": True}
        command = {"collMod": self.name, "changeStreamPreAndPostImages": images}
        cluster.clients["s1"][db].command(command)
        self.ids = itertools.count()
        self.insert(count)
        self.move(5, "s2", up_to=10)

    def insert(self, count: int) -> None:
        documents = [
            {"_id": i, "region": i % 10, "number": i, "n": 0, "pad": "x" * 300}
            for i in itertools.islice(self.ids, count)
        ]
        for shard in self.cluster.shards:
            owned = [d for d in documents if self.owner(d["region"]) == shard]
            if owned:
                self.run(shard, {"insert": self.name, "documents": owned})

    def owner(self, region: int) -> str:
        for chunk in self.cluster.chunks(self.db, self.name):
            low, high = chunk["min"]["region"], chunk["max"]["region"]
            if (low == LOWEST or low <= region) and (high == HIGHEST or region < high):
                return str(chunk["shard"])
        raise AssertionError(f"nobody owns region {region}")

    def update(self, region: int) -> None:
        change = {"q": {"region": region}, "u": {"$inc": {"n": 1}}, "multi": True}
        self.run(self.owner(region), {"update": self.name, "updates": [change]})

    def delete(self, region: int) -> None:
        deletes = [{"q": {"region": region}, "limit": 1}]
        self.run(self.owner(region), {"delete": self.name, "deletes": deletes})

    def run(self, shard: str, command: Document) -> None:
        reply = self.cluster.run(shard, self.db, command)
        assert not reply.get("writeErrors"), reply

    def move(self, region: int, to: str, up_to: int) -> None:
        edge = HIGHEST if up_to == 10 else up_to
        low = LOWEST if region == 0 else region
        bounds = [{"region": r, "number": LOWEST} for r in (low, edge)]
        if up_to == 10:
            bounds[1]["number"] = HIGHEST
        self.cluster.move(self.db, self.name, bounds[0], to, bounds[1])

    def contents(self, at: Timestamp | None = None) -> Contents:
        """What each shard owns now, or owned at a time, as a router would find it."""
        found: Contents = {}
        find: Document = {"find": self.name, "batchSize": 100_000}
        if at is not None:
            find["readConcern"] = {"level": "snapshot", "atClusterTime": at}
        for shard in self.cluster.shards:
            reply = self.cluster.run(shard, self.db, find, codec_options=RAW)
            for document in reply["cursor"]["firstBatch"]:
                assert isinstance(document, RawBSONDocument)
                raw = bytes(document.raw)
                key = merge_key(key_of(raw))
                assert key not in found, "two shards own a document"
                found[key] = raw
        return found


def same(pipeline: Capture, orders: Orders) -> None:
    held = replayed(pipeline, orders)
    assert held == orders.contents()
    told = [(row.position, row.coll, row.key) for row in pipeline.rows]
    assert len(set(told)) == len(told), "a row was told twice"


def replayed(pipeline: Capture, orders: Orders) -> Contents:
    return replay([*pipeline.resyncs, *pipeline.rows], orders.db, orders.name)


def test_a_snapshot_is_what_each_shard_owns_whatever_orphans_lie_about(
    cluster: Cluster, db: str
) -> None:
    with cluster.keeping_orphans():
        orders = Orders(cluster, db)
        pipeline = capture(cluster, orders.full, documents_per_split=20)
        pipeline.run()
        assert cluster.clients["s1"][db].orders.count_documents({}) == 100
        same(pipeline, orders)
    assert len(pipeline.rows) == 100
    assert len(pipeline.batches) >= 3


def test_the_changes_of_all_shards_arrive_in_the_order_of_their_times(
    cluster: Cluster, db: str
) -> None:
    orders = Orders(cluster, db)
    pipeline = capture(cluster, orders.full, mode="latest")
    for region in range(10):
        orders.update(region)
        orders.delete(region)
    orders.insert(10)
    pipeline.run()
    ops = [row.op for row in sorted(pipeline.rows, key=lambda row: row.position)]
    assert len(ops) == 100 + 10 + 10
    expected = [op for _ in range(10) for op in [*["update"] * 10, "delete"]] + ["insert"] * 10
    assert ops == expected


@pytest.mark.parametrize("seed", [1, 2])
def test_under_writers_and_moving_chunks_every_batch_is_the_cluster_as_of_its_time(
    cluster: Cluster, db: str, seed: int
) -> None:
    orders, chance = Orders(cluster, db), random.Random(seed)
    pipeline = capture(cluster, orders.full, documents_per_split=8, splits_per_batch=2, seed=seed)

    def happen() -> None:
        for _ in range(chance.randrange(4)):
            act = chance.choice([orders.update, orders.update, orders.delete])
            act(chance.randrange(10))
        orders.insert(chance.randrange(3))
        if chance.random() < 0.5:
            low = chance.randrange(9)
            orders.move(low, "s2" if orders.owner(low) == "s1" else "s1", low + 1)

    batches = 0
    while batches < 3:
        happen()
        offset = pipeline.read(pipeline.plan(), meanwhile=happen).end
        batches += offset.is_streaming
        held = orders.contents(offset.time)
        below = 10**9 if offset.passes_whole(Namespace(db, "orders")) else -1
        if offset.copying:
            below = bson.decode(offset.copying.below)["_id"]
        expected = {key: doc for key, doc in held.items() if bson.decode(doc)["_id"] < below}
        assert replayed(pipeline, orders) == expected
    pipeline.run()
    same(pipeline, orders)


def test_an_unsharded_collection_is_read_from_its_primary_shard(cluster: Cluster, db: str) -> None:
    coll = cluster.clients["s1"][db]["plain"]
    coll.insert_many({"_id": i} for i in range(30))
    pipeline = capture(cluster, f"{db}.plain")
    pipeline.run()
    coll.update_one({"_id": 3}, {"$set": {"n": 1}})
    pipeline.run()
    assert len(pipeline.rows) == 31
    assert {split.shard for batch in pipeline.batches for split in batch.snapshot_splits} == {"s1"}


def test_a_drop_that_every_shard_reports_is_told_once(cluster: Cluster, db: str) -> None:
    orders = Orders(cluster, db)
    pipeline = capture(cluster, orders.full)
    pipeline.run()
    orders.update(1)
    cluster.drop_collection(db, "orders")
    cluster.shard_collection(db, "orders", {"region": 1, "number": 1})
    orders.insert(7)
    pipeline.run()
    assert [row.op for row in pipeline.rows].count("drop") == 1
    same(pipeline, orders)


def test_a_hashed_collection_is_read_like_any_other(cluster: Cluster, db: str) -> None:
    cluster.shard_collection(db, "hashed", {"h": "hashed"})
    for shard in cluster.shards:
        for i in range(60):
            cluster.clients[shard][db].command({"find": "hashed", "limit": 1})
            document = {"_id": f"{shard}-{i}", "h": i}
            if cluster.owner_of_hash(db, "hashed", i) == shard:
                cluster.run(shard, db, {"insert": "hashed", "documents": [document]})
    pipeline = capture(cluster, f"{db}.hashed", documents_per_split=7)
    pipeline.run()
    assert len(pipeline.rows) == 60
    assert len({bson.decode(bytes(row.after))["h"] for row in pipeline.rows}) == 60  # type: ignore[arg-type]


# --- transactions across shards -----------------------------------------------------------------


def insert(*documents: Document) -> Document:
    return {"insert": "orders", "documents": list(documents)}


def update(_id: int, **changed: Any) -> Document:
    return {"update": "orders", "updates": [{"q": {"_id": _id}, "u": {"$set": changed}}]}


def delete(_id: int) -> Document:
    return {"delete": "orders", "deletes": [{"q": {"_id": _id}, "limit": 1}]}


def touching_both(cluster: Cluster, db: str) -> Transaction:
    """A transaction that changes, removes and inserts a document on each shard."""
    new = [{"_id": 1000 + region, "region": region, "number": 1000} for region in (1, 6)]
    return cluster.transaction(
        db,
        s1=[update(1, n=-1), delete(11), insert(new[0])],
        s2=[update(6, n=-1), delete(16), insert(new[1])],
    )


@pytest.mark.parametrize("first", ["s1", "s2"])
def test_a_transaction_across_shards_is_whole_in_one_batch_wherever_a_batch_ends(
    cluster: Cluster, db: str, first: str
) -> None:
    """Guards: a read sees it from its commit timestamp on, the shards tell of it later, each at a
    time of its own."""
    orders = Orders(cluster, db)
    pipeline = capture(cluster, orders.full)
    pipeline.run()
    transaction = touching_both(cluster, db)
    orders.update(2)
    orders.update(7)
    undecided = settled_batch(pipeline)
    assert undecided.end.time < transaction.time
    assert not transactional(undecided)
    second = {"s1": "s2", "s2": "s1"}[first]
    transaction.commit(first)
    assert not transactional(settled_batch(pipeline)), "half a transaction"
    orders.update(3)
    transaction.commit(second)
    later = cluster.transaction(db, s1=[update(4, n=-2)], s2=[update(9, n=-2)])
    later.commit()
    inside = pipeline.read(ending(pipeline, lambda: transaction.time))
    assert sorted(transactional(inside)) == sorted(["delete", "update", "insert"] * 2)
    assert dict(inside.end.late).keys() == {"s1", "s2"}, "both shards tell of it behind the batch"
    assert_as_of_its_time(pipeline, orders)
    again = capture(cluster, orders.full)
    again.offset = inside.start
    assert sorted(again.read(inside.end).rows) == sorted(inside.rows), "a replay tells the same"
    orders.update(1)
    rest = [row for batch in pipeline.run() for row in batch.rows]
    assert sorted(row.key for row in rest if row.txn) == ["4", "9"], "the later one, and no more"
    same(pipeline, orders)


def test_a_transaction_that_a_copy_has_read_is_not_told_by_the_stream(
    cluster: Cluster, db: str
) -> None:
    """Guards: the copy ends at a time at which the transaction is in doubt; of what was below the
    frontier the stream tells, of the rest it does not."""
    orders = Orders(cluster, db)
    pipeline = capture(cluster, orders.full, documents_per_split=8, splits_per_batch=1)
    pipeline.batch()
    assert pipeline.offset.copying
    below = bson.decode(pipeline.offset.copying.below)["_id"]
    assert 11 < below <= 16

    def happen() -> Timestamp:
        transaction = touching_both(cluster, db)
        transaction.commit()
        return transaction.time

    inside = pipeline.read(ending(pipeline, happen))
    assert inside.snapshot_splits
    assert inside.end.late
    assert sorted(transactional(inside)) == ["delete", "update", "update"], "11, 1 and 6"
    assert 16 not in inside.ids("read"), "deleted by the transaction before it was read"
    assert_as_of_its_time(pipeline, orders)
    rest = [row for batch in pipeline.run() for row in batch.rows]
    assert not [row for row in rest if row.txn]
    same(pipeline, orders)


def test_a_collection_born_in_doubt_is_not_taken_for_copied(cluster: Cluster, db: str) -> None:
    """Guards: the survey of a batch asks for what is told late as well."""
    orders = Orders(cluster, db, count=10)
    cluster.shard_collection(db, "zebras", {"region": 1})
    cluster.drop_collection(db, "zebras")
    pipeline = capture(cluster, f"{db}\\..*")

    def happen() -> Timestamp:
        cluster.shard_collection(db, "zebras", {"region": 1})
        cluster.move(db, "zebras", {"region": 5}, "s2", {"region": HIGHEST})
        born = [{"insert": "zebras", "documents": [{"_id": r, "region": r}]} for r in (1, 6)]
        transaction = cluster.transaction(db, s1=[born[0]], s2=[born[1]])
        transaction.commit()
        return transaction.time

    first = pipeline.read(ending(pipeline, happen))
    assert first.end.late
    pipeline.run()
    told = [(row.op, row.key) for row in pipeline.rows if row.coll == "zebras" and row.key]
    assert sorted(told) in ([("insert", "1"), ("insert", "6")], [("read", "1"), ("read", "6")])
    same(pipeline, orders)


def test_an_aborted_transaction_is_not_waited_for(cluster: Cluster, db: str) -> None:
    orders = Orders(cluster, db)
    pipeline = capture(cluster, orders.full)
    pipeline.run()
    transaction = touching_both(cluster, db)
    transaction.abort()
    orders.update(1)
    pipeline.run()
    assert not [row for row in pipeline.rows if row.txn]
    same(pipeline, orders)


def ending(pipeline: Capture, happen: Callable[[], Timestamp]) -> Offset:
    """The end of a batch at the time that `happen` gives when the live edge is asked for."""
    with patch.object(settled, "edge", lambda parts, at_least=None: happen()):
        return pipeline.plan_now()


def settled_batch(pipeline: Capture) -> Batch:
    """A batch up to the live edge, while a transaction is undecided."""
    return pipeline.read(pipeline.plan_now())


def transactional(batch: Batch) -> list[str]:
    return [row.op for row in batch.rows if row.txn]


def assert_as_of_its_time(pipeline: Capture, orders: Orders) -> None:
    offset = pipeline.offset
    below = 10**9
    if offset.copying:
        below = bson.decode(offset.copying.below)["_id"]
    held = orders.contents(offset.time)
    expected = {key: doc for key, doc in held.items() if bson.decode(doc)["_id"] < below}
    assert replayed(pipeline, orders) == expected
