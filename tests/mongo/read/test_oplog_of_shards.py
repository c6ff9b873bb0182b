"""The oplogs of shards have the rows that the change streams of these shards give."""

from __future__ import annotations

import random

import pytest

from cdc.kernel import oplog_reply
from cdc.model import Change
from tests.mongo.capture import Capture
from tests.mongo.cluster import Cluster
from tests.mongo.read.test_oplog import roads as roads_fixture
from tests.mongo.topology.test_sharded_cluster import Orders, capture, update

roads = roads_fixture


def rows_of(pipeline: Capture) -> list[Change]:
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


@pytest.mark.parametrize("worth", [0, 2**62], ids=["compiled", "plain Python"])
def test_writes_and_moving_chunks_have_the_same_rows_by_both_roads(
    cluster: Cluster, db: str, roads: list[str], monkeypatch: pytest.MonkeyPatch, worth: int
) -> None:
    monkeypatch.setattr(oplog_reply, "WORTH", worth)
    orders, chance = Orders(cluster, db), random.Random(1)
    by_oplog = capture(cluster, orders.full, mode="latest")
    by_stream = capture(cluster, orders.full, mode="latest", read_by="change_stream")
    for step in range(6):
        for _ in range(10):
            write(orders, chance)
        if step in (2, 4):
            orders.move(3, "s2" if step == 2 else "s1", up_to=4)
        by_oplog.batch()
    rows = rows_of(by_oplog)
    assert roads.count("oplog") >= 2
    assert rows == rows_of(by_stream)
    assert {row.op for row in rows} >= {"insert", "update", "delete"}


def test_a_transaction_across_shards_is_read_by_change_streams(
    cluster: Cluster, db: str, roads: list[str]
) -> None:
    """It is prepared, and its entries do not say when it commits."""
    orders = Orders(cluster, db)
    by_oplog = capture(cluster, orders.full, mode="latest")
    by_stream = capture(cluster, orders.full, mode="latest", read_by="change_stream")
    cluster.transaction(db, s1=[update(4, n=-2)], s2=[update(9, n=-2)]).commit()
    rows = rows_of(by_oplog)
    assert "change stream" in roads
    assert len(rows) == 2
    assert rows == rows_of(by_stream)
