"""A sharded cluster that is read through its routers: changes, copies, and where a batch ends.

The router is a stand-in (`tests.mongo.stand_in`): none of this has met a real mongos.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from unittest.mock import patch

import pytest
from bson.int64 import Int64
from bson.max_key import MaxKey
from bson.timestamp import Timestamp
from pymongo.errors import OperationFailure

from cdc.model import NEVER, StreamSplit
from cdc.mongo.query import event_filter
from cdc.mongo.read import range_scan
from cdc.mongo.read.shards import stream_order
from cdc.mongo.topology import discover
from tests.mongo.capture import TIMEOUT_MS, until
from tests.mongo.cluster import Cluster, Transaction
from tests.mongo.routed import (
    Oracle,
    Routed,
    assert_as_the_events_left_it,
    assert_unbroken,
    copied,
    documents,
    insert_twins,
    newest_time,
)
from tests.mongo.stand_in import StandIn
from tests.mongo.topology.test_sharded_cluster import Orders, same, touching_both
from tests.slow import slow_but

# --- changes -------------------------------------------------------------------------------------


def test_the_changes_of_all_shards_arrive_in_the_order_of_their_times(
    cluster: Cluster, db: str, router: StandIn
) -> None:
    orders = Orders(cluster, db)
    pipeline = Routed(cluster, router.uri, orders.full, mode="latest")
    for region in range(10):
        orders.update(region)
        orders.delete(region)
    orders.insert(10)
    pipeline.run()
    ops = [row.op for row in sorted(pipeline.rows, key=lambda row: row.position)]
    expected = [op for _ in range(10) for op in [*["update"] * 10, "delete"]] + ["insert"] * 10
    assert ops == expected


def test_a_slice_has_all_events_of_its_last_time_whatever_shard_they_are_of(
    cluster: Cluster, db: str, router: StandIn
) -> None:
    """Guards: the token of an empty reply is the earliest of the shards. Another shard may have an
    event at that very time, which waits until the first has passed it."""
    orders = Orders(cluster, db, 0)
    pipeline = Routed(cluster, router.uri, orders.full, mode="latest")
    after, routing = newest_time(cluster), cluster.routing(db, orders.name)
    at = Timestamp(after.time + 3, 2)
    for shard, region in (("s1", 1), ("s2", 6)):
        _set_clock(cluster, shard, Timestamp(at.time, 1))
        document = {"_id": region, "region": region, "number": 1}
        insert = {"insert": orders.name, "documents": [document]}
        versioned = {**insert, "shardVersion": routing.version(shard)}
        assert cluster.clients[shard][db].command(versioned)["operationTime"] == at
    stages = event_filter.pipeline([{"operationType": "insert"}])
    whole = StreamSplit(after, at, db, stages, collections=orders.full)
    with ThreadPoolExecutor() as pool:
        found = pool.submit(pipeline.rows_of, whole)
        time.sleep(1.5)
        assert not found.done(), "a shard may still have an event of the last time"
        for shard in cluster.shards:
            cluster.clients[shard].admin.command({"appendOplogNote": 1, "data": {}})
        rows = found.result(30)
    assert [(row.key, row.cluster_time, row.cluster_inc) for row in rows] == [
        (f'{key}\t{{"number":1,"region":{key}}}', at.time * 10**6, at.inc) for key in (1, 6)
    ]


def _set_clock(cluster: Cluster, shard: str, moment: Timestamp) -> None:
    """Let the next entry of a shard have the time after this one."""
    signature = {"hash": bytes(20), "keyId": Int64(0)}
    with cluster.clients[shard].start_session(causal_consistency=False) as session:
        session.advance_cluster_time({"clusterTime": moment, "signature": signature})
        cluster.clients[shard].admin.command("ping", session=session)


def test_the_live_edge_waits_for_the_slowest_shard(
    cluster: Cluster, db: str, router: StandIn
) -> None:
    """Guards: the opening reply of a stream has a token that no shard has reached yet."""
    orders = Orders(cluster, db, 10)
    source = discover(router.uri, TIMEOUT_MS)
    floor = source.live_edge(NEVER)
    router.faults.cold.add("s2")
    orders.insert(1)
    orders.update(1)
    known = newest_time(cluster)
    assert source.live_edge(floor) < known
    orders.update(6)
    assert source.live_edge(floor) < known
    router.faults.cold.clear()
    until(lambda: source.live_edge(floor) >= known)


def test_a_shard_without_a_majority_holds_the_live_edge_up(
    cluster: Cluster, db: str, router: StandIn
) -> None:
    orders = Orders(cluster, db, 10)
    source = discover(router.uri, TIMEOUT_MS)
    floor = source.live_edge(NEVER)
    admin = cluster.clients["s2"].admin
    admin.command({"configureFailPoint": "disableSnapshotting", "mode": "alwaysOn"})
    try:
        orders.update(6)
        orders.update(1)
        known = newest_time(cluster)
        assert floor <= source.live_edge(floor) < known
    finally:
        admin.command({"configureFailPoint": "disableSnapshotting", "mode": "off"})
    until(lambda: source.live_edge(floor) >= known)


def test_the_live_edge_is_never_before_the_floor(
    cluster: Cluster, db: str, router: StandIn
) -> None:
    source = discover(router.uri, TIMEOUT_MS)
    floor = Timestamp(newest_time(cluster).time, 7)
    assert source.live_edge(floor) >= floor  # a server may write just now
    floor = Timestamp(newest_time(cluster).time + 100, 7)
    assert source.live_edge(floor) == floor


# --- copies --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", slow_but([], [1, 2], soak=[2]))
def test_under_writers_and_moving_chunks_every_batch_is_what_the_events_left(
    cluster: Cluster, db: str, router: StandIn, seed: int
) -> None:
    oracle = Oracle(cluster, db, "orders")
    orders, chance = Orders(cluster, db), random.Random(seed)
    pipeline = Routed(
        cluster, router.uri, orders.full, documents_per_split=8, splits_per_batch=2, seed=seed
    )

    happen = partial(orders.happen, chance)
    batches = 0
    while batches < 3:
        happen()
        offset = pipeline.read(pipeline.plan(), meanwhile=happen).end
        batches += offset.is_streaming
        assert_as_the_events_left_it(pipeline, orders, oracle)
    pipeline.run()
    same(pipeline, orders)
    assert_unbroken(pipeline)


@pytest.mark.parametrize("first", ["s1", "s2"])
def test_a_copy_does_not_contain_a_transaction_whose_events_come_after_it(
    cluster: Cluster, db: str, router: StandIn, first: str
) -> None:
    """Guards: a read at T shows a transaction that was committed by T, and reported later."""
    oracle = Oracle(cluster, db, "orders")
    orders = Orders(cluster, db)
    pipeline = Routed(cluster, router.uri, orders.full, documents_per_split=None)
    transaction: Transaction = touching_both(cluster, db)
    orders.update(2)
    orders.update(7)
    end = pipeline.plan_copy()
    assert end.time > transaction.time
    second = {"s1": "s2", "s2": "s1"}[first]
    batch = pipeline.read(end, meanwhile=lambda: transaction.commit(first, second))
    assert len(batch.snapshot_splits) == 1
    assert_as_the_events_left_it(pipeline, orders, oracle)
    pipeline.run()
    assert sorted(row.op for row in pipeline.rows if row.txn) == sorted(
        ["delete", "update", "insert"] * 2
    )
    same(pipeline, orders)
    assert_unbroken(pipeline)


# --- documents with one _id ----------------------------------------------------------------------


@pytest.mark.parametrize("part", [1, 2000, 2**26])
def test_twins_are_copied_once_each_wherever_a_part_or_an_attempt_ends(
    cluster: Cluster, db: str, router: StandIn, part: int
) -> None:
    """Guards: a read that goes on after the last _id would lose the twin of that document."""
    orders = Orders(cluster, db, 30)
    insert_twins(orders, [*range(100, 120), "a", MaxKey()])
    pipeline = Routed(cluster, router.uri, orders.full, documents_per_split=None)
    end = pipeline.plan_copy()
    with patch.object(stream_order, "BYTES", part), patch.object(range_scan, "_BATCH", 5):
        router.faults.fail(43, "getMore", times=3)
        router.faults.fail(13388, "find", times=2)
        batch = pipeline.read(end)
    assert copied(batch.rows) == documents(cluster, orders)
    assert len(router.faults.refused) == 5


@pytest.mark.parametrize("part", [2000, 2**26])
def test_a_range_that_is_read_too_late_has_the_twins_of_its_time(
    cluster: Cluster, db: str, router: StandIn, part: int
) -> None:
    """Guards: by their _id alone, a change of one twin would undo the other."""
    orders = Orders(cluster, db, 30)
    insert_twins(orders, range(100, 120))
    pipeline = Routed(cluster, router.uri, orders.full, documents_per_split=None)
    end = pipeline.plan_copy()
    there = documents(cluster, orders)
    for number in range(100, 120):
        shard, region = [("s1", 1), ("s2", 6)][number % 2]
        query = {"_id": number, "region": region}
        if number % 3:
            update = {"q": query, "u": {"$inc": {"n": 1}}}
            orders.run(shard, {"update": orders.name, "updates": [update]})
        else:
            orders.run(shard, {"delete": orders.name, "deletes": [{"q": query, "limit": 1}]})
    insert_twins(orders, range(120, 130))
    orders.update(1)
    orders.delete(6)
    orders.move(2, "s2", 3)
    with forgetting(cluster, orders, end.time), patch.object(stream_order, "BYTES", part):
        batch = pipeline.read(end)
    assert copied(batch.rows) == there
    assert all(row.exact for row in batch.rows)


@contextmanager
def forgetting(cluster: Cluster, orders: Orders, at: Timestamp) -> Iterator[None]:
    """The shards do not know a time any more."""
    name = "minSnapshotHistoryWindowInSeconds"
    for shard in cluster.shards:
        cluster.clients[shard].admin.command({"setParameter": 1, name: 3})
    try:
        until(lambda: all(_is_forgotten(cluster, shard, orders, at) for shard in cluster.shards))
        yield
    finally:
        for shard in cluster.shards:
            cluster.clients[shard].admin.command({"setParameter": 1, name: 300})


def _is_forgotten(cluster: Cluster, shard: str, orders: Orders, at: Timestamp) -> bool:
    client = cluster.clients[shard]
    client["other"]["tick"].insert_one({})
    concern = {"level": "snapshot", "atClusterTime": at}
    try:
        client[orders.db].command({"find": "none", "limit": 1, "readConcern": concern})
    except OperationFailure as error:
        return error.code == 239
    return False
