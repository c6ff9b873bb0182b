"""A sharded cluster, its shards read directly: the same invariant, chunks on the move or not."""

from __future__ import annotations

import itertools
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

import bson
import bson.json_util
import pytest
from bson.timestamp import Timestamp
from pymongo.errors import OperationFailure
from pyspark.sql.datasource import GreaterThanOrEqual
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from cdc import options as declared
from cdc import source
from cdc.errors import ForeignOffset, HistoryLost, UnsuitableSource
from cdc.model import (
    NEVER,
    Copying,
    Namespace,
    Offset,
    key_of,
    merge_key,
    resume_token,
    timestamp,
)
from cdc.mongo.inspect import (
    FinishedBatches,
    ServerClock,
    Wanted,
    check,
    lag,
    metrics,
    server_clock,
)
from cdc.mongo.plan import Start
from cdc.mongo.topology import commit_point, sharded_cluster
from cdc.mongo.topology.sharded_cluster import discover
from cdc.source import inquiry
from tests.mongo.abilities import abilities_of_shards
from tests.mongo.capture import (
    Batch,
    Capture,
    Client,
    Contents,
    Document,
    contents,
    failing,
    id_of,
    repeated,
    until,
)
from tests.mongo.capture import replayed as all_replayed
from tests.mongo.cluster import HIGHEST, LOWEST, Cluster, Transaction
from tests.mongo.plan.test_change_window import window
from tests.mongo.plan.test_idle_watch import Reader
from tests.slow import slow_but


def capture(cluster: Cluster, *names: str, **settings: Any) -> Capture:
    return Capture(cluster.config.uri, ",".join(names), shards_direct="true", **settings)


class Orders:
    """A collection sharded by (region, number), half of it on each shard, with writes as a router
    sends them."""

    def __init__(self, cluster: Cluster, db: str, count: int = 100) -> None:
        self.cluster, self.db, self.name = cluster, db, "orders"
        self.full = f"{db}.{self.name}"
        cluster.shard_collection(db, self.name, {"region": 1, "number": 1})
        self.can = abilities_of_shards(cluster.clients["s1"])
        cluster.clients["s1"][db].command({"collMod": self.name, **self.can.recording})
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
        return self.cluster.routing(self.db, self.name).owner(region)

    def update(self, region: int) -> None:
        change = {"q": {"region": region}, "u": {"$inc": {"n": 1}}, "multi": True}
        self.run(self.owner(region), {"update": self.name, "updates": [change]})

    def delete(self, region: int) -> None:
        deletes = [{"q": {"region": region}, "limit": 1}]
        self.run(self.owner(region), {"delete": self.name, "deletes": deletes})

    def run(self, shard: str, command: Document) -> None:
        reply = self.cluster.run(shard, self.db, command)
        assert not reply.get("writeErrors"), reply

    def run_all(self, *commands: Document) -> None:
        """Commands that each shard applies to what it owns."""
        for command in commands:
            for shard in self.cluster.shards:
                self.cluster.run(shard, self.db, command)

    def happen(self, chance: random.Random) -> None:
        """A few writes, and in half of the calls a chunk that moves."""
        for _ in range(chance.randrange(4)):
            act = chance.choice([self.update, self.update, self.delete])
            act(chance.randrange(10))
        self.insert(chance.randrange(3))
        if chance.random() < 0.5:
            low = chance.randrange(9)
            self.move(low, "s2" if self.owner(low) == "s1" else "s1", low + 1)

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
        for raw in self.cluster.contents(self.db, self.name, at):
            key = merge_key(key_of(raw))
            assert key not in found, "two shards own a document"
            found[key] = raw
        return found


def same(pipeline: Capture, orders: Orders) -> None:
    held = replayed(pipeline, orders)
    assert held == orders.contents()
    emitted = [(row.position, row.coll, row.key) for row in pipeline.rows]
    assert len(set(emitted)) == len(emitted), "a row was emitted twice"


def replayed(pipeline: Capture, orders: Orders) -> Contents:
    return all_replayed([*pipeline.resyncs, *pipeline.rows], orders.db, orders.name)


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


@pytest.mark.parametrize("seed", slow_but([1], [1, 2], soak=[2]))
def test_under_writers_and_moving_chunks_every_batch_is_the_cluster_as_of_its_time(
    cluster: Cluster, db: str, seed: int
) -> None:
    orders, chance = Orders(cluster, db), random.Random(seed)
    pipeline = capture(cluster, orders.full, documents_per_split=8, splits_per_batch=2, seed=seed)

    happen = partial(orders.happen, chance)
    batches = 0
    while batches < 3:
        happen()
        offset = pipeline.read(pipeline.plan(), meanwhile=happen).end
        batches += offset.is_streaming
        assert_as_of_its_time(pipeline, orders)
    pipeline.run()
    same(pipeline, orders)


def test_a_change_of_more_than_16_mib_is_reported_by_its_shard(cluster: Cluster, db: str) -> None:
    """Guards: whole where the shard can split it, and looked up where it has no images."""
    orders = Orders(cluster, db, 20)
    large = {"_id": "large", "region": 1, "number": -1, "pad": "x" * 9 * 2**20}
    orders.run(orders.owner(1), {"insert": orders.name, "documents": [large]})
    pipeline = capture(cluster, orders.full, mode="latest", read_by="change_stream")
    for region in (1, 7):
        orders.update(region)
    pipeline.run()
    rows = {id_of(row): row for row in pipeline.rows}
    assert len(pipeline.rows) == len(rows) == 5
    whole = orders.can.splits_events and orders.can.before_images
    assert (rows["large"].before is not None) == rows["large"].exact == whole
    assert len(rows.pop("large").after or b"") > 9 * 2**20  # type: ignore[arg-type]
    assert all(row.exact == orders.can.after_images for row in rows.values())


def test_an_unsharded_collection_is_read_from_its_primary_shard(cluster: Cluster, db: str) -> None:
    coll = cluster.clients["s1"][db]["plain"]
    coll.insert_many({"_id": i} for i in range(30))
    pipeline = capture(cluster, f"{db}.plain")
    pipeline.run()
    coll.update_one({"_id": 3}, {"$set": {"n": 1}})
    pipeline.run()
    assert len(pipeline.rows) == 31
    assert {split.shard for batch in pipeline.batches for split in batch.snapshot_splits} == {"s1"}


def test_a_drop_that_every_shard_reports_is_reported_once(cluster: Cluster, db: str) -> None:
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


def test_two_documents_with_one_id_on_two_shards_are_one_to_a_mirror(
    cluster: Cluster, db: str
) -> None:
    """Documented: MongoDB does not forbid them. All their rows are reported."""
    orders = Orders(cluster, db, 0)
    pipeline = capture(cluster, orders.full)
    for shard, region in (("s1", 0), ("s2", 9)):
        twin = {"_id": "twin", "region": region, "number": 1}
        orders.run(shard, {"insert": "orders", "documents": [twin]})
    pipeline.run()
    orders.update(0)
    pipeline.run()
    assert Counter(row.op for row in pipeline.rows if row.key) == {"read": 2, "update": 1}
    assert len(replayed(pipeline, orders)) == 1
    assert len(list(cluster.contents(db, "orders"))) == 2


@pytest.mark.slow
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


def test_a_chunk_that_moves_while_the_config_servers_lag_is_read_where_it_went(
    cluster: Cluster, db: str
) -> None:
    """Guards: shards may go by a change of the metadata, and a batch end after it, before a
    majority read of the metadata shows it."""
    cluster.shard_collection(db, "all", {"k": 1})
    documents = [{"_id": k, "k": k} for k in range(20)]
    cluster.run("s1", db, {"insert": "all", "documents": documents})
    pipeline = capture(cluster, f"{db}.all", documents_per_split=None)
    donor, config = cluster.clients["s1"].admin, cluster.clients["cfg"].admin
    committing, confirming = "moveChunkHangAtStep5", "disableSnapshotting"
    entered = donor.command(failing_at(committing, "alwaysOn"))["count"] + 1
    moving = threading.Thread(target=cluster.move, args=(db, "all", {"k": LOWEST}, "s2"))
    moving.start()
    donor.command({"waitForFailPoint": committing, "timesEntered": entered, "maxTimeMS": 20_000})
    config.command(failing_at(confirming, "alwaysOn"))
    donor.command(failing_at(committing, "off"))
    try:
        until(lambda: {chunk["shard"] for chunk in cluster.chunks(db, "all")} == {"s2"})
        known = config.command("ping")["$clusterTime"]
        for shard in cluster.shards:  # a router passes it on with whatever it asks next
            client = cluster.clients[shard]
            with client.start_session(causal_consistency=False) as session:
                session.advance_cluster_time(known)
                client.admin.command({"appendOplogNote": 1, "data": {}}, session=session)
        threading.Timer(2, config.command, [failing_at(confirming, "off")]).start()
        pipeline.batch()
    finally:
        config.command(failing_at(confirming, "off"))
        moving.join()
    pipeline.run()
    assert len(pipeline.rows) == 20


def failing_at(point: str, mode: str) -> Document:
    return {"configureFailPoint": point, "mode": mode}


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
    """Guards: a read sees it from its commit timestamp on, the shards report it later, each at a
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
    assert dict(inside.end.late).keys() == {"s1", "s2"}, "both shards report it after the batch"
    assert_as_of_its_time(pipeline, orders)
    again = capture(cluster, orders.full)
    again.offset = inside.start
    replay = repeated(again.read(inside.end).rows, orders.can)
    assert replay == repeated(inside.rows, orders.can), "a replay emits the same"
    orders.update(1)
    rest = [row for batch in pipeline.run() for row in batch.rows]
    assert sorted(row.key for row in rest if row.txn) == ["4", "9"], "the later one, and no more"
    same(pipeline, orders)


def test_a_transaction_that_a_copy_has_read_is_not_reported_by_the_stream(
    cluster: Cluster, db: str
) -> None:
    """Guards: the copy ends at a time at which the transaction is in doubt; of what was below the
    frontier the stream reports, of the rest it does not."""
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
    """Guards: the survey of a batch asks for what is reported late as well."""
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
    emitted = [(row.op, row.key) for row in pipeline.rows if row.coll == "zebras" and row.key]
    assert sorted(emitted) in ([("insert", "1"), ("insert", "6")], [("read", "1"), ("read", "6")])
    same(pipeline, orders)


@pytest.mark.parametrize("first", ["s1", "s2"])
def test_a_document_that_moves_by_a_change_of_its_shard_key_is_reported_in_one_batch(
    cluster: Cluster, db: str, first: str
) -> None:
    """Guards: its delete on the one shard is never a batch's last word on it."""
    orders = Orders(cluster, db, count=20)
    pipeline = capture(cluster, orders.full)
    pipeline.run()
    moved = insert({"_id": 1, "region": 7, "number": 1, "n": 5})
    transaction = cluster.transaction(db, s1=[delete(1)], s2=[moved])
    transaction.commit(first)
    if first == "s2":  # reported in the order insert, update, delete
        orders.run("s2", update(1, n=6))
    pipeline.read(pipeline.plan_now())
    transaction.commit({"s1": "s2", "s2": "s1"}[first])
    for end in (lambda: ending(pipeline, lambda: transaction.time), pipeline.plan):
        batch = pipeline.read(end())
        assert sorted(transactional(batch)) in ([], ["delete", "insert"])
        assert_as_of_its_time(pipeline, orders)
    assert len(pipeline.rows) == 20 + (3 if first == "s2" else 2)
    keys = [bson.json_util.loads(row.document_key or "") for row in pipeline.rows if row.txn]
    regions = {key.get("region") for key in keys}
    # Before 6.0 the oplog has no shard key beside a document that was inserted.
    assert regions == ({1, 7} if orders.can.after_images else {1, None})
    same(pipeline, orders)


def test_windows_that_adjoin_hold_a_transaction_across_shards_once(
    cluster: Cluster, db: str
) -> None:
    """Guards: it belongs to its commit timestamp, whenever its shards report it."""
    orders = Orders(cluster, db)
    pipeline = capture(cluster, orders.full, mode="latest")
    start = timestamp.after(pipeline.now())
    transaction = touching_both(cluster, db)
    transaction.commit("s1")
    orders.update(2)
    transaction.commit("s2")
    orders.update(7)
    middle, end = timestamp.after(transaction.time), timestamp.after(pipeline.now())
    bounds = {"shards_direct": "true", "uri": cluster.config.uri, "collections": orders.full}
    whole = window(**bounds, from_=start, to=end)
    first, second = (
        window(**bounds, from_=low, to=high) for low, high in ((start, middle), (middle, end))
    )
    assert sorted(row.op for row in first) == sorted(["delete", "update", "insert"] * 2)
    assert sorted([*first, *second]) == sorted(whole)
    assert len(whole) == len(first) + 20
    # A query for its last rows only: they belong to a time before that of its filter.
    for position in sorted({row.position for row in whole if row.txn}):
        filters = [GreaterThanOrEqual(("position",), position)]
        narrowed = window(**bounds, from_=start, to=end, filters=filters)
        expected = [row for row in whole if row.position >= position]
        assert sorted(row for row in narrowed if row.position >= position) == sorted(expected)


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


def test_a_start_that_waits_for_an_undecided_transaction_in_vain_says_so(
    cluster: Cluster, db: str
) -> None:
    orders = Orders(cluster, db, count=10)
    transaction = cluster.transaction(db, s1=[update(1, n=-1)], s2=[update(6, n=-1)])
    orders.update(2)
    given = {"uri": cluster.config.uri, "collections": orders.full, "shards.direct": "true"}
    reader = source.ChangeReader(declared.parse(given), StructType())
    with (
        patch("cdc.mongo.plan.start_position._START_SECONDS", 0.3),
        pytest.raises(UnsuitableSource, match="across shards remains undecided"),
    ):
        reader.initialOffset()
    transaction.commit()
    assert reader.initialOffset()["shards"] == ["s1", "s2"]


def test_a_checkpoint_of_another_source_is_refused_by_the_names_of_both(
    cluster: Cluster, db: str
) -> None:
    orders = Orders(cluster, db, count=10)
    given = {"uri": cluster.config.uri, "collections": orders.full, "shards.direct": "true"}
    reader = source.ChangeReader(declared.parse(given), StructType())
    foreign = {**reader.initialOffset(), "source": "rs0"}
    name = capture(cluster, orders.full).source.name
    with pytest.raises(ForeignOffset, match=f"for 'rs0', but 'uri' names '{name}'"):
        reader.partitions(foreign, foreign)


def ending(pipeline: Capture, happen: Callable[[], Timestamp]) -> Offset:
    """The end of a batch at the time that `happen` gives when the live edge is asked for."""
    with patch.object(commit_point, "edge", lambda parts, **how: happen()):
        return pipeline.plan_now()


def settled_batch(pipeline: Capture) -> Batch:
    """A batch up to the live edge, while a transaction is undecided."""
    return pipeline.read(pipeline.plan_now())


def transactional(batch: Batch) -> list[str]:
    return [row.op for row in batch.rows if row.txn]


def assert_as_of_its_time(pipeline: Capture, orders: Orders, there: Contents | None = None) -> None:
    """What a sink holds is what was there at the offset's time, below its frontier. `there` is that
    of a rewound range, where a server without before-images misses what was deleted since."""
    offset, held = pipeline.offset, there or orders.contents(pipeline.offset.time)
    below = 10**9 if offset.passes_whole(Namespace(orders.db, "orders")) else -1
    if offset.copying:
        below = bson.decode(offset.copying.below)["_id"]
    expected = {key: doc for key, doc in held.items() if bson.decode(doc)["_id"] < below}
    found = replayed(pipeline, orders)
    if orders.can.after_images:
        assert found == expected
    inexact = {row.key for row in pipeline.rows if not row.exact}
    assert {key: d for key, d in found.items() if key not in inexact}.items() <= expected.items()
    assert found.keys() <= expected.keys() if there else found.keys() == expected.keys()


def test_an_idle_stream_does_not_look_through_the_sessions_of_its_shards(
    cluster: Cluster, db: str
) -> None:
    orders = Orders(cluster, db, count=20)
    pipeline = capture(cluster, orders.full)
    for _ in range(2):
        orders.update(1)
        pipeline.run()

    def plan() -> bool:  # the servers let time pass every 10 s
        asked: list[str] = []
        note = lambda shard, *_: asked.append(shard) or commit_point.NEVER  # noqa: E731
        with patch.object(commit_point, "_before_undecided", note):
            assert pipeline.plan_now() == pipeline.offset
        return not asked

    assert any(plan() for _ in range(3))


def test_a_document_is_not_taken_for_the_end_of_a_transaction(cluster: Cluster, db: str) -> None:
    """Guards: the oplog holds a document inserted where it holds the commit of a transaction."""
    orders = Orders(cluster, db, count=20)
    pipeline = capture(cluster, orders.full)
    for _ in range(2):
        orders.update(1)
        pipeline.run()
    orders.update(2)
    time = pipeline.now()
    early = Timestamp(5, 5)
    orders.run("s1", insert({"_id": 50, "region": 1, "number": 50, "commitTimestamp": early}))
    pipeline.now()
    batch = pipeline.read(ending(pipeline, lambda: time))
    assert set(batch.ids("update")) == {2, 12}
    assert not batch.end.late
    assert_as_of_its_time(pipeline, orders)
    pipeline.run()
    same(pipeline, orders)


# --- shards that hold the others up ---------------------------------------------------------------


def test_a_shard_that_nobody_writes_to_does_not_hold_the_others_up(
    cluster: Cluster, db: str
) -> None:
    """Guards: left alone it would let time pass every 10 s only."""
    orders = Orders(cluster, db)
    pipeline = capture(cluster, orders.full)
    pipeline.run()
    began = time.monotonic()
    for _ in range(3):
        orders.update(1)  # on s1
        until(lambda: pipeline.read(pipeline.plan_now()).rows)
    assert time.monotonic() - began < 8
    same(pipeline, orders)


def test_a_change_on_any_shard_makes_a_batch_at_once(cluster: Cluster, db: str) -> None:
    orders = Orders(cluster, db, count=20)
    changes = Reader(capture(cluster, orders.full, mode="latest", heartbeat_interval="1000"))
    assert not changes.asks()
    for region in (1, 6, 1):  # on s1, s2, s1
        orders.update(region)
        assert changes.asks()
        assert not changes.asks()
    changes.stop()


def test_an_idle_cluster_has_nothing_new_all_the_time(cluster: Cluster, db: str) -> None:
    """Guards: a shard that is asked to let time pass makes no other one late."""
    orders = Orders(cluster, db)
    pipeline = capture(cluster, orders.full)
    pipeline.run()
    ends = [pipeline.read(pipeline.plan_now()).end.time for _ in range(20)]
    assert len(set(ends)) < 5


def test_it_is_reported_which_shard_all_changes_wait_for(
    cluster: Cluster, db: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(commit_point, "_WARNING_SECONDS", 1)
    orders = Orders(cluster, db)
    pipeline = capture(cluster, orders.full)
    pipeline.run()
    transaction = touching_both(cluster, db)
    transaction.commit("s1")

    def emitted() -> bool:
        orders.update(2)
        pipeline.read(pipeline.plan_now())
        return "shard 's2' has not decided a transaction across shards for" in caplog.text

    until(emitted)
    assert "shard 's1'" not in caplog.text
    transaction.commit("s2")
    pipeline.run()
    same(pipeline, orders)


# --- times that cannot be read any more ---------------------------------------------------------


@pytest.mark.parametrize(
    "forgotten_by", slow_but(["all of them"], ["s1", "s2", "all of them"], soak=["s2"])
)
def test_a_range_that_a_shard_cannot_read_any_more_is_rewound_over_all_of_them(
    cluster: Cluster, db: str, forgotten_by: str
) -> None:
    """Guards: documents have changed, and changed their shards, by moves of chunks and by changes
    of the shard key; all shards' events are undone in order; an orphan is no document; and what
    one shard has given before another refused is not reported again."""
    orders = Orders(cluster, db)
    orphans = {"region": {"$gte": 5}}
    until(lambda: not cluster.clients["s1"][db].orders.count_documents(orphans))
    pipeline = capture(cluster, orders.full, documents_per_split=30)

    def happen() -> Timestamp:
        transaction = touching_both(cluster, db)
        transaction.commit()
        return transaction.time

    with cluster.keeping_orphans():
        orders.move(4, "s2", up_to=5)
        orders.delete(4)  # and its orphan stays
        end = ending(pipeline, happen)
        there = orders.contents()
        change_everything(cluster, orders)
        with forgetting(cluster, forgotten_by, orders, end.time):
            batch = pipeline.read(end)
    assert len(batch.snapshot_splits) > 1
    assert_as_of_its_time(pipeline, orders, there)
    assert all(row.exact for row in batch.rows) or not orders.can.before_images
    pipeline.run()
    same(pipeline, orders)


def test_a_document_that_a_transaction_made_rekeyed_and_removed_is_not_rewound_to(
    cluster: Cluster, db: str
) -> None:
    """Guards: a change of the shard key that stays on its shard looks like half of a move."""
    orders = Orders(cluster, db, count=20)
    pipeline = capture(cluster, orders.full, documents_per_split=30)
    end = pipeline.plan()
    there = orders.contents()
    made = insert({"_id": 50, "region": 1, "number": 50})
    at = {"_id": 50, "region": 1, "number": 50}
    rekeyed = {"update": "orders", "updates": [{"q": at, "u": {"$set": {"region": 2}}}]}
    transaction = cluster.transaction(db, s1=[made, rekeyed, delete(50)], s2=[update(6, n=1)])
    transaction.commit()
    with forgetting(cluster, "s1", orders, end.time):
        pipeline.read(end)
    assert_as_of_its_time(pipeline, orders, there)


def test_a_filter_holds_across_shards_also_where_a_range_is_rewound(
    cluster: Cluster, db: str
) -> None:
    """Guards: a document that leaves the filter may leave its shard with that."""
    orders = Orders(cluster, db)
    asked = {"filter": '{"region": {"$lt": 5}, "n": {"$lt": 2}}', "fields": "region, n"}
    pipeline = capture(cluster, orders.full, documents_per_split=30, **asked)
    end = pipeline.plan()
    there = _excerpt(orders)
    change_everything(cluster, orders)
    with forgetting(cluster, "all of them", orders, end.time):
        batch = pipeline.read(end)
    below = {key for key in there if int(key) in range(bson.decode(end.copying.below)["_id"])}
    found = replayed(pipeline, orders)
    if orders.can.before_images:
        assert found == {key: document for key, document in there.items() if key in below}
        assert all(row.exact for row in batch.rows)
    orders.update(1)
    orders.update(8)
    orders.delete(1)
    orders.move(4, "s2", up_to=5)
    orders.update(4)
    pipeline.run()
    assert replayed(pipeline, orders) == _excerpt(orders)


def _excerpt(orders: Orders) -> Contents:
    found = {key: bson.decode(document) for key, document in orders.contents().items()}
    return {
        key: bson.encode({name: each[name] for name in ("_id", "region", "n") if name in each})
        for key, each in found.items()
        if each["region"] < 5 and each.get("n", -1) < 2
    }


def change_everything(cluster: Cluster, orders: Orders) -> None:
    orders.update(0)
    orders.update(6)
    orders.delete(0)
    orders.delete(6)
    orders.insert(10)
    orders.update(3)
    orders.move(3, "s2", up_to=4)
    orders.update(3)
    orders.delete(3)
    away, back = {"_id": 2, "region": 8, "number": 2}, {"_id": 7, "region": 1, "number": 7}
    transaction = cluster.transaction(
        orders.db, s1=[delete(2), insert(back)], s2=[delete(7), insert(away)]
    )
    transaction.commit("s2")
    orders.run("s2", update(2, n=9))
    transaction.commit("s1")
    orders.update(8)
    orders.move(8, "s1", up_to=9)
    orders.update(8)
    orders.update(1)


@contextmanager
def forgetting(cluster: Cluster, shard: str, orders: Orders, at: Timestamp) -> Iterator[None]:
    """One shard refuses to be read at a time, once, and the others to be cut for it, once; or all
    have really forgotten it."""
    if shard in cluster.shards:
        with ExitStack() as refusals:
            for name, client in cluster.clients.items():
                refused = ("find", 239) if name == shard else ("splitVector", 262)
                data = {"failCommands": [refused[0]], "errorCode": refused[1]}
                refusals.enter_context(failing(client, {"times": 1}, **data))
            yield
        return
    window = "minSnapshotHistoryWindowInSeconds"
    for shard in cluster.shards:
        client = cluster.clients[shard]
        client.admin.command({"setParameter": 1, window: 0})
        find = {"find": "orders", "readConcern": {"level": "snapshot", "atClusterTime": at}}

        def forgotten(client: Client = client, shard: str = shard, find: Document = find) -> bool:
            client.other.tick.insert_one({})
            try:
                cluster.run(shard, orders.db, find)
            except OperationFailure as error:
                return error.code == 239
            return False

        until(forgotten)
        client.admin.command({"setParameter": 1, window: 300})
    yield


# --- collections that are distributed anew ------------------------------------------------------


@pytest.mark.parametrize("copied", slow_but([50], [30, 50, 100], soak=[30]))
def test_a_collection_that_is_resharded_in_the_midst_of_its_copy_is_copied_anew(
    cluster: Cluster, db: str, copied: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Guards: no event reports it, and what was to be read of the old incarnation is void: also of
    the last part of the copy."""
    orders = Orders(cluster, db)
    pipeline = capture(
        cluster, orders.full, documents_per_split=copied // 2, splits_per_batch=copied // 25
    )
    for _ in range(100 // copied):
        end = pipeline.plan()
        if copied == 100 or pipeline.offset.copying:
            break
        pipeline.read(end)
    cluster.reshard(db, orders.name, {"number": 1})
    orders.run_all(update(1, n=5), update(97, n=6))
    before = pipeline.read(end)
    assert not before.rows, "of the incarnation that is gone nothing can be read"
    pipeline.run()
    orders.run_all(update(1, n=7))
    pipeline.run()
    assert [row.coll for row in pipeline.resyncs] == ["orders"]
    assert "was replaced without an event: copying it again" in caplog.text
    same(pipeline, orders)


def test_a_collection_that_is_resharded_while_its_changes_are_read_goes_on(
    cluster: Cluster, db: str
) -> None:
    orders = Orders(cluster, db)
    pipeline = capture(cluster, orders.full)
    pipeline.run()
    orders.update(1)
    pipeline.run()
    cluster.reshard(db, orders.name, {"number": 1})
    orders.run_all(update(1, n=5), update(97, n=6))
    pipeline.run()
    assert not pipeline.resyncs
    assert [row.op for row in pipeline.rows].count("update") == 12
    same(pipeline, orders)


@pytest.mark.slow
def test_a_refined_shard_key_changes_nothing_for_a_copy_under_way(
    cluster: Cluster, db: str
) -> None:
    orders = Orders(cluster, db)
    pipeline = capture(cluster, orders.full, documents_per_split=20, splits_per_batch=1)
    pipeline.batch()
    end = pipeline.plan()
    cluster.refine(db, orders.name, {"region": 1, "number": 1, "_id": 1})
    orders.update(1)
    pipeline.read(end)
    orders.update(6)
    orders.move(5, "s1", up_to=6)
    pipeline.run()
    assert not pipeline.resyncs
    same(pipeline, orders)


def test_a_collection_dropped_and_made_anew_in_the_midst_of_its_copy_is_copied_again(
    cluster: Cluster, db: str
) -> None:
    orders = Orders(cluster, db)
    pipeline = capture(cluster, orders.full, documents_per_split=20, splits_per_batch=1)
    pipeline.batch()
    end = pipeline.plan()
    cluster.drop_collection(db, "orders")
    cluster.shard_collection(db, "orders", {"number": 1})
    orders.run("s1", insert({"_id": 5, "number": 5}, {"_id": 3, "number": 3}))
    pipeline.read(end)
    pipeline.run()
    assert [row.op for row in pipeline.rows].count("drop") == 1
    same(pipeline, orders)


@pytest.mark.parametrize("when", slow_but(["while"], ["before", "while", "after"], soak=["before"]))
def test_an_unsharded_collection_may_move_with_its_database(
    cluster: Cluster, db: str, when: str
) -> None:
    coll = cluster.clients["s1"][db]["plain"]
    coll.insert_many({"_id": i} for i in range(60))
    pipeline = capture(cluster, f"{db}.plain", documents_per_split=20, splits_per_batch=1)
    if when != "before":
        pipeline.batch()
    end = pipeline.plan()
    if when == "after":
        pipeline.run()
        coll.update_one({"_id": 1}, {"$set": {"n": 1}})
        pipeline.run()
        end = pipeline.offset
    cluster.move_primary(db, "s2")
    coll = cluster.clients["s2"][db]["plain"]
    coll.update_one({"_id": 2}, {"$set": {"n": 2}})
    if end != pipeline.offset:
        pipeline.read(end)
    pipeline.run()
    coll.delete_one({"_id": 3})
    pipeline.run()
    assert pipeline.replayed(coll) == contents(coll)


# --- images -------------------------------------------------------------------------------------


@pytest.mark.parametrize("images", ["auto", "update_lookup"])
def test_a_document_to_be_looked_up_is_found_where_it_has_moved(
    cluster: Cluster, db: str, images: str
) -> None:
    """Guards: the shard that reports the change does not have the document any more."""
    orders = Orders(cluster, db, count=20)
    off = {each: {"enabled": False} for each in orders.can.recording}
    for shard in cluster.shards:
        cluster.clients[shard][db].command({"collMod": "orders", **off})
    pipeline = capture(cluster, orders.full, images=images)
    pipeline.run()
    orders.update(6)
    orders.update(7)
    orders.delete(7)
    orders.move(5, "s1", up_to=10)
    until(lambda: not cluster.clients["s2"][db].orders.count_documents({}))
    pipeline.run()
    found = {
        row.key: (row.after is not None, row.exact) for row in pipeline.rows if row.op == "update"
    }
    assert found["6"] == found["16"] == (True, False)
    assert (False, False) in found.values(), "deleted, wherever it was"
    same(pipeline, orders)


@pytest.mark.parametrize("is_dropped", [False, True])
def test_what_is_found_on_no_shard_was_gone_at_a_time_that_its_row_states(
    cluster: Cluster, db: str, is_dropped: bool
) -> None:
    """Guards: a time before the delete or the drop, at which a mirror still lacks the update; and a
    live edge that is asked for again for each document of a collection that is not sharded."""
    plain = cluster.clients["s1"][db].plain
    plain.insert_many({"_id": number} for number in range(3))
    pipeline = capture(cluster, f"{db}.plain", images="update_lookup")
    pipeline.run()
    plain.update_many({}, {"$set": {"n": 1}})
    if is_dropped:
        plain.drop()
    else:
        plain.delete_many({})
    present = sharded_cluster.Cluster.present
    with patch.object(sharded_cluster.Cluster, "present", autospec=True) as edge:
        edge.side_effect = present
        pipeline.run()
    updates = [row for row in pipeline.rows if row.op == "update"]
    last = max(row.position for row in pipeline.rows if row.op in ("delete", "drop"))
    stated = [json.loads(row.description or "{}").get("exactFrom") for row in updates]
    assert [row.after for row in updates] == [None] * 3
    assert all(timestamp.parse(each) >= resume_token.time_of(last) for each in stated)
    assert edge.call_count == 1


# --- what is reported at each trigger ---


def test_metrics_of_a_cluster_are_those_of_all_its_shards(
    cluster: Cluster, db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards: the share of a copy by what each shard holds; the oplog that reaches back least."""
    for module in (lag, metrics):
        monkeypatch.setattr(module, "PATIENCE_SECONDS", 30.0)
    orders = Orders(cluster, db, count=600)
    documents = [{"_id": n, "region": 0, "number": n, "pad": "x" * 9000} for n in range(600, 1200)]
    cluster.clients["s1"][db].orders.insert_many(documents)
    options = {"split.size.mb": "1", "snapshot.splits.per.batch": "1", "heartbeat.interval": "0"}
    given = {"uri": cluster.config.uri, "collections": orders.full, "shards.direct": "true"}
    reader = source.ChangeReader(declared.parse({**given, **options}), StructType())
    offset, emitted = reader.initialOffset(), list[dict[str, Any]]()
    while not emitted or emitted[-1]["snapshotPercent"] < 100:
        offset = reader.latestOffset(offset, ReadAllAvailable())
        reported = reader.reportLatestOffset()
        assert reported is not None
        emitted.append(reported["metrics"])
        copying = Offset.from_json(offset).copying
        if copying is not None:
            below = bson.decode(copying.below)["_id"]
            assert abs(emitted[-1]["snapshotPercent"] - 100 * below / 1200) < 15
    assert len(emitted) > 4
    assert emitted[-1]["time"] == offset["time"]
    assert timestamp.parse(emitted[-1]["liveEdge"]) >= timestamp.parse(offset["time"])
    assert emitted[0]["lagSeconds"] is None, "nothing is committed"
    assert emitted[-1]["lagSeconds"] is not None
    firsts = {
        shard: client.local["oplog.rs"].find().sort("$natural", 1).limit(1)[0]["ts"].time
        for shard, client in cluster.clients.items()
        if shard in cluster.shards
    }
    assert emitted[-1]["oplogWindow"]["shard"] in firsts
    least = Offset.from_json(offset).time.time - max(firsts.values())
    assert abs(emitted[-1]["oplogWindow"]["hoursLeft"] - least / 3600) < 0.02
    reader.stop()
    found = inquiry.query_status(
        declared.parse({**given, **options}), Offset.from_json(offset), None
    )
    assert [(each.phase, each.copied) for each in found.collections] == [("streaming", 1.0)]
    assert found.metrics.oplog_left is not None
    assert found.metrics.oplog_left.shard in firsts
    assert timestamp.text(found.metrics.time or NEVER) == offset["time"]


# --- shards that do not answer -------------------------------------------------------------------


@pytest.mark.slow
def test_a_shard_that_changes_its_primary_while_a_batch_is_planned_ends_nothing(
    cluster: Cluster, db: str
) -> None:
    orders = Orders(cluster, db, count=20)
    pipeline = capture(cluster, orders.full)
    for _ in range(2):
        orders.update(1)
        pipeline.run()
    reader = source.ChangeReader(pipeline.options, StructType())
    start = pipeline.offset.to_json()
    stepping_down = {"failCommands": ["find"], "errorCode": 11602}
    with failing(cluster.clients["s1"], {"times": 1}, **stepping_down):
        orders.update(1)
        until(lambda: reader.latestOffset(start, ReadAllAvailable()) != start)


# --- shards that come and go ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def growing() -> Iterator[Cluster]:
    """Another cluster, whose shards are not the same in every test."""
    with Cluster() as running:
        yield running


@pytest.mark.slow
def test_a_shard_that_joins_is_read_from_then_on_and_one_that_was_emptied_may_go(
    growing: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    growing.create_database("joined")
    orders = Orders(growing, "joined")
    pipeline = capture(growing, orders.full)
    pipeline.run()
    growing.start("s3")
    growing.add("s3")
    pipeline.batch()
    orders.move(8, "s3", up_to=10)
    orders.update(8)
    orders.delete(9)
    pipeline.run()
    assert pipeline.offset.shards == ("s1", "s2", "s3")
    assert not pipeline.resyncs
    same(pipeline, orders)
    orders.update(9)
    orders.move(8, "s1", up_to=10)
    pipeline.run()
    before, known = pipeline.offset, discover(growing.config.uri, 30_000)
    growing.remove("s3")
    orders.update(8)
    pipeline.run()
    assert pipeline.offset.shards == ("s1", "s2")
    same(pipeline, orders)
    given = {"uri": growing.config.uri, "collections": orders.full, "shards.direct": "true"}
    held = Copying(Namespace("joined", "orders"), b"", None, shard="s3")
    for at in (before, replace(before, copying=held)):
        found = inquiry.query_status(
            declared.parse(given), at, FinishedBatches(before, before, 1.0)
        )
        assert found.metrics.events_per_second == 0
    assert [each.copied for each in found.collections] == [None]
    monkeypatch.setattr(server_clock, "_PATIENCE_SECONDS", 5.0)
    with failing(
        growing.clients["s3"], "alwaysOn", failCommands=["hello", "isMaster"], errorCode=1
    ):
        assert ServerClock(lambda: known).now() is not None, "a shard that was removed is not asked"


@pytest.mark.slow
def test_what_happened_on_a_new_shard_while_nothing_ran_is_not_lost(growing: Cluster) -> None:
    """Guards: the shards of the offset are those that have been read, whatever is found at the
    start."""
    growing.create_database("later")
    orders = Orders(growing, "later")
    pipeline = capture(growing, orders.full)
    pipeline.run()
    growing.start("s4")
    growing.add("s4")
    orders.move(8, "s4", up_to=10)
    orders.update(9)
    orders.delete(9)
    again = pipeline.restarted(orders.full, shards_direct="true")
    again.run()
    same(again, orders)
    orders.update(8)
    again.run()
    same(again, orders)
    orders.update(8)
    orders.move(8, "s2", up_to=10)
    growing.remove("s4")
    for job in (again, again.restarted(orders.full, shards_direct="true")):
        with pytest.raises(HistoryLost, match="s4 was removed"):
            job.plan()


@pytest.mark.slow
def test_what_happened_meanwhile_on_a_shard_that_had_been_empty_is_not_lost_in_silence(
    growing: Cluster,
) -> None:
    """Guards: at the offset's time it owned nothing, but between that and its removal it did."""
    growing.create_database("passing")
    orders = Orders(growing, "passing", count=30)
    growing.start("s6")
    growing.add("s6")
    pipeline = capture(growing, orders.full)
    pipeline.run()
    assert "s6" in pipeline.offset.shards
    orders.move(8, "s6", up_to=10)
    orders.update(8)
    orders.move(8, "s2", up_to=10)
    growing.remove("s6")
    with pytest.raises(HistoryLost, match="s6 was removed"):
        pipeline.run()


@pytest.mark.slow
def test_a_shard_that_came_and_went_while_nothing_ran_is_not_lost_in_silence(
    growing: Cluster,
) -> None:
    """Guards: neither the offset nor the cluster knows of it; only the time of it is left."""
    growing.create_database("between")
    orders = Orders(growing, "between", count=30)
    pipeline = capture(growing, orders.full)
    pipeline.run()
    growing.start("s7")
    growing.add("s7")
    orders.move(8, "s7", up_to=10)
    orders.update(8)
    orders.move(8, "s2", up_to=10)
    growing.remove("s7")
    for job in (pipeline, pipeline.restarted(orders.full, shards_direct="true")):
        with pytest.raises(HistoryLost, match="had joined since the checkpoint was removed"):
            job.plan()
    anew = capture(growing, orders.full)
    anew.run()
    same(anew, orders)


@pytest.mark.slow
def test_a_run_does_not_start_before_shards_joined_or_left(growing: Cluster) -> None:
    """Guards: what a shard had to report that is gone would be missing."""
    growing.create_database("early")
    orders = Orders(growing, "early", count=30)
    pipeline = capture(growing, orders.full, mode="latest")
    changed = max(pipeline.source.changed_at.values())
    for start, is_refused in ((changed, True), (Timestamp(changed.time, changed.inc + 1), False)):
        wanted = Wanted(pipeline.selection, start=Start(False, timestamp.before(start)))
        with pytest.raises(HistoryLost, match="shard joined") if is_refused else nullcontext():
            check(pipeline.source, wanted)


@pytest.mark.slow
def test_what_a_shard_brings_along_is_copied(growing: Cluster) -> None:
    """Guards: no event reports what was there before it joined."""
    growing.create_database("stays")
    orders = Orders(growing, "stays", count=10)
    client = growing.start("s5")
    with growing.in_order("s5") as session:  # or the pipeline might begin before it
        client.brought.boxes.insert_many([{"_id": n} for n in range(5)], session=session)
    client.elsewhere.boxes.insert_one({})
    orders.update(1)
    pipeline = capture(growing, "stays.orders,brought.*")
    pipeline.run()
    growing.add("s5")
    orders.update(1)
    pipeline.run()
    client.brought.boxes.update_one({"_id": 2}, {"$set": {"n": 1}})
    pipeline.run()
    [anew] = pipeline.resyncs
    assert (anew.db, anew.coll) == ("brought", "boxes")
    boxes = [row for row in pipeline.rows if row.db == "brought" and row.position >= anew.position]
    emitted = sorted((row.op, row.key) for row in boxes)
    assert emitted == [*(("read", str(n)) for n in range(5)), ("update", "2")]
    same(pipeline, orders)
