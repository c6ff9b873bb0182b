"""A sharded cluster, its shards read directly: the same invariant, chunks on the move or not."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import bson
import pytest
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp

from cdc.model.key import merge_key
from cdc.model.selection import Namespace
from cdc.model.split import key_of
from tests.mongo.capture import RAW, Capture, Contents, Document
from tests.mongo.capture import replayed as replay
from tests.mongo.cluster import HIGHEST, LOWEST, Cluster

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
    told = [(row.position, row.key) for row in pipeline.rows]
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
