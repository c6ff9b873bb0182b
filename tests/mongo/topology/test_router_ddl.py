"""DDL of a sharded cluster that is read through its routers.

The router is a stand-in (`tests.mongo.stand_in`): none of this has met a real mongos.
"""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest

from cdc.errors import HistoryLost
from cdc.mongo.read.shards import stream_order
from cdc.mongo.topology import discover, router_metadata
from tests.mongo.capture import TIMEOUT_MS, contents
from tests.mongo.cluster import Cluster
from tests.mongo.routed import Routed, copied, documents
from tests.mongo.stand_in import StandIn
from tests.mongo.topology.test_sharded_cluster import Orders, same
from tests.slow import slow_but


def test_a_collection_that_moves_with_its_database_is_copied_again(
    cluster: Cluster, db: str, router: StandIn
) -> None:
    """Guards: the shard that it leaves reports a drop, and the other reports nothing."""
    coll = cluster.clients["s1"][db]["plain"]
    coll.insert_many({"_id": i} for i in range(30))
    pipeline = Routed(cluster, router.uri, f"{db}.plain")
    pipeline.run()
    cluster.move_primary(db, "s2")
    moved = cluster.clients["s2"][db]["plain"]
    moved.insert_one({"_id": 31})
    moved.update_one({"_id": 3}, {"$set": {"n": 1}})
    pipeline.run()
    assert pipeline.replayed(moved) == contents(moved)
    assert len(contents(moved)) == 31


@pytest.mark.parametrize("is_copied", slow_but([], [False, True], soak=[True]))
def test_a_collection_that_is_resharded_remains_whole(
    cluster: Cluster, db: str, router: StandIn, is_copied: bool
) -> None:
    """By the same fields, in another order: the document keys remain."""
    orders = Orders(cluster, db)
    pipeline = Routed(cluster, router.uri, orders.full, documents_per_split=20, splits_per_batch=1)
    pipeline.read(pipeline.plan_copy())
    if is_copied:
        pipeline.run()
    cluster.reshard(db, orders.name, {"number": 1, "region": 1})
    shard = cluster.routing(db, orders.name).owner(500)
    document = {"_id": 500, "region": 5, "number": 500}
    orders.run(shard, {"insert": orders.name, "documents": [document]})
    pipeline.run()
    same(pipeline, orders)
    resyncs = [row.coll for row in pipeline.resyncs]
    assert resyncs == ([] if is_copied else [orders.name])


def test_a_copy_does_not_undo_the_changes_of_a_collection_that_got_its_name(
    cluster: Cluster, db: str, router: StandIn
) -> None:
    """Guards: a document of the new collection may have the _id of one that was copied."""
    orders = Orders(cluster, db, 20)
    there = documents(cluster, orders)
    pipeline = Routed(cluster, router.uri, orders.full, documents_per_split=None)
    end = pipeline.plan_copy()
    scan = stream_order._scan

    def scan_and_replace(*arguments: Any) -> Any:
        result = scan(*arguments)
        if not replaced:
            replaced.append(True)
            cluster.drop_collection(db, "orders")
            cluster.shard_collection(db, "orders", {"region": 1, "number": 1})
            orders.move(5, "s2", up_to=10)
            new = [{"_id": i, "region": i, "number": i} for i in (1, 6)]
            inserts = [[{"insert": "orders", "documents": [each]}] for each in new]
            cluster.transaction(db, s1=inserts[0], s2=inserts[1]).commit()
            pipeline.now()  # the router hears of it, so the events are read
        return result

    replaced: list[bool] = []
    with patch.object(stream_order, "_scan", scan_and_replace):
        batch = pipeline.read(end)
    assert replaced
    assert copied(batch.rows) == there
    pipeline.run()
    same(pipeline, orders)


# --- shards that join and leave ------------------------------------------------------------------


@pytest.mark.slow
def test_a_shard_that_joins_is_read_and_one_that_leaves_ends_the_run() -> None:
    """Guards: a router returns nothing of a shard that has left."""
    with Cluster() as cluster, StandIn.of_cluster(cluster) as router:
        cluster.create_database("shop")
        orders = Orders(cluster, "shop", 10)
        pipeline = Routed(cluster, router.uri, orders.full)
        pipeline.run()
        cluster.start("s3")
        cluster.add("s3")
        orders.update(1)
        pipeline.run()
        assert pipeline.source.known.names == {"s1", "s2", "s3"}
        same(pipeline, orders)
        again = Routed(cluster, router.uri, orders.full)
        again.offset, again.batches = pipeline.offset, pipeline.batches
        again.run()
        cluster.remove("s3")
        orders.update(1)
        with pytest.raises(HistoryLost, match="left the cluster"):
            pipeline.run()


def test_metadata_that_does_not_fit_into_one_reply_is_read_whole(
    cluster: Cluster, router: StandIn
) -> None:
    """Guards: a collection that is left out would be taken for one that is not sharded."""
    with patch.object(router_metadata, "_BATCH", 1):
        source = discover(router.uri, TIMEOUT_MS)
    assert source.known.names == set(cluster.shards)
