"""The oplogs of shards have the rows that the change streams of these shards give."""

from __future__ import annotations

import random
import time
from collections import Counter

import pytest

from cdc.model import Change
from tests.mongo.capture import Capture
from tests.mongo.cluster import Cluster
from tests.mongo.random_writes import Writer
from tests.mongo.read.test_oplog import RECORDING
from tests.mongo.read.test_oplog import encoders as encoders_fixture
from tests.mongo.read.test_oplog import methods as methods_fixture
from tests.mongo.read.test_oplog_filter import copied, rows_of
from tests.mongo.topology.test_sharded_cluster import Orders, capture, update
from tests.soak import soak

encoders, methods = encoders_fixture, methods_fixture


def sorted_rows(pipeline: Capture) -> list[Change]:
    pipeline.run()
    return sorted(pipeline.rows, key=lambda row: (row.position, row.key or ""))


def write(orders: Orders, chance: random.Random) -> None:
    """One write as a router sends it."""
    region = chance.randrange(10)
    kind = chance.randrange(4)
    if kind == 0:
        orders.insert(3)
    elif kind == 1:
        orders.delete(region)
    else:
        orders.update(region)


def test_writes_and_moving_chunks_have_the_same_rows_by_both_methods(
    cluster: Cluster, db: str, encoders: None, methods: list[str]
) -> None:
    orders, chance = Orders(cluster, db), random.Random(1)
    by_oplog = capture(cluster, orders.full, mode="latest")
    by_stream = capture(cluster, orders.full, mode="latest", read_by="change_stream")
    verified = capture(cluster, orders.full, mode="latest", oplog_verify="1")
    for step in range(6):
        for _ in range(10):
            write(orders, chance)
        if step in (2, 4):
            orders.move(3, "s2" if step == 2 else "s1", up_to=4)
        by_oplog.batch()
    rows = sorted_rows(by_oplog)
    assert methods.count("oplog") >= 2
    assert rows == sorted_rows(by_stream)
    assert rows == sorted_rows(verified)
    assert {row.op for row in rows} >= {"insert", "update", "delete"}


@pytest.mark.soak
def test_random_writes_and_moving_chunks_for_long_have_the_same_rows_by_both_methods(
    cluster: Cluster, db: str, methods: list[str]
) -> None:
    """As a router writes to a sharded collection, and writes of all kinds to others of `s1`."""
    seed, seconds = soak()
    chance, ends = random.Random(seed), time.monotonic() + seconds
    orders, database = Orders(cluster, db), cluster.clients["s1"][db]
    others = [database.create_collection(name, **RECORDING) for name in ("a", "b")]
    writer = Writer(others, chance.randrange(10**9))
    names = (orders.full, *(str(each.full_name) for each in others))
    pipelines = [
        capture(cluster, *names, mode="latest", read_by=method)
        for method in ("auto", "change_stream")
    ]
    made = rows = moves = 0
    while time.monotonic() < ends:
        for _ in range(chance.randint(1, 20)):
            write(orders, chance)
        made += writer.write(chance.randint(1, 3000))
        if chance.random() < 0.3:
            orders.move(3, orders.owner(9) if orders.owner(3) == "s1" else "s1", up_to=4)
            moves += 1
        by_oplog, by_stream = map(sorted_rows, pipelines)
        assert by_oplog == by_stream
        rows += len(by_oplog)
        for each in pipelines:
            each.batches.clear()
    print(f"{made:,} writes of all kinds, {moves} moves, {rows:,} rows, {Counter(methods)}")
    assert methods.count("oplog") > moves


def test_a_transaction_across_shards_is_read_by_change_streams(
    cluster: Cluster, db: str, methods: list[str]
) -> None:
    """It is prepared, and its entries do not say when it commits."""
    orders = Orders(cluster, db)
    by_oplog = capture(cluster, orders.full, mode="latest")
    by_stream = capture(cluster, orders.full, mode="latest", read_by="change_stream")
    cluster.transaction(db, s1=[update(4, n=-2)], s2=[update(9, n=-2)]).commit()
    rows = sorted_rows(by_oplog)
    assert "change stream" in methods
    assert len(rows) == 2
    assert rows == sorted_rows(by_stream)


def test_changes_during_a_filtered_copy_have_the_same_rows_by_both_methods(
    cluster: Cluster, db: str, methods: list[str]
) -> None:
    """Chunks move meanwhile: slices with the entries of a move are read by change streams."""
    orders, chance = Orders(cluster, db), random.Random(2)
    captured = {"filter": '{"n": {"$lt": 3}}', "fields": "-pad"}
    pipeline = capture(cluster, orders.full, documents_per_split=8, splits_per_batch=2, **captured)

    def happen() -> None:
        for _ in range(5):
            write(orders, chance)
        if chance.random() < 0.3:
            low = chance.randrange(9)
            orders.move(low, "s2" if orders.owner(low) == "s1" else "s1", low + 1)

    rows = 0
    for batch in copied(pipeline, happen):
        for split in batch.stream_splits:
            own = rows_of(split, pipeline, "auto")
            assert own == rows_of(split, pipeline, "change_stream")
            rows += len(own)
    assert rows > 100
    assert methods.count("oplog") - methods.count("change stream") > 5
