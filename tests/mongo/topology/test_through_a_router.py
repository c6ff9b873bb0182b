"""Clusters whose metadata is read through a router, and what else a router is asked for.

The router is a stand-in (`tests.mongo.stand_in`): none of this has met a real mongos.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from cdc.mongo.topology import discover, end_cursors
from tests.mongo.capture import TIMEOUT_MS, Capture, Document
from tests.mongo.cluster import Cluster
from tests.mongo.stand_in import StandIn
from tests.mongo.topology.test_sharded_cluster import Orders, assert_as_of_its_time, same


@pytest.fixture
def routers(cluster: Cluster) -> Iterator[list[StandIn]]:
    """Two routers of the cluster, which serve its metadata only."""
    metadata = frozenset({"admin", "config"})
    with ExitStack() as stack:
        both = [StandIn.of_cluster(cluster, metadata) for _ in range(2)]
        yield [stack.enter_context(each) for each in both]


def uri_of(routers: list[StandIn]) -> str:
    return f"mongodb://{','.join(each.host for each in routers)}/"


def through(routers: list[StandIn], *names: str, **settings: Any) -> Capture:
    return Capture(uri_of(routers), ",".join(names), shards_direct="true", **settings)


def test_a_cluster_is_the_same_source_by_its_routers_and_by_its_config_servers(
    cluster: Cluster, routers: list[StandIn]
) -> None:
    by_router = discover(uri_of(routers), TIMEOUT_MS, shards_direct=True)
    by_servers = discover(cluster.config.uri, TIMEOUT_MS, shards_direct=True)
    assert by_router.name == by_servers.name
    assert by_router.shards == by_servers.shards
    assert by_router.topology_time == by_servers.topology_time
    assert by_router.refresh() is by_router


def test_shards_are_copied_and_followed_by_the_metadata_of_routers_of_which_one_is_killed(
    cluster: Cluster, routers: list[StandIn], db: str
) -> None:
    orders, chance = Orders(cluster, db), random.Random(26)
    pipeline = through(routers, orders.full, documents_per_split=20)
    for number in range(8):
        orders.update(chance.randrange(10))
        orders.delete(chance.randrange(10))
        orders.insert(3)
        low = number % 9
        orders.move(low, "s2" if orders.owner(low) == "s1" else "s1", low + 1)
        pipeline.batch()
        assert_as_of_its_time(pipeline, orders)
        if number == 3:
            routers[0].kill()
    pipeline.run()
    same(pipeline, orders)
    assert all("config" in each.asked for each in routers)


def test_a_run_that_began_by_a_router_goes_on_by_the_config_servers(
    cluster: Cluster, routers: list[StandIn], db: str
) -> None:
    orders = Orders(cluster, db)
    pipeline = through(routers, orders.full, documents_per_split=20)
    pipeline.batch()
    for each in routers:
        each.kill()
    direct = Capture(cluster.config.uri, orders.full, shards_direct="true")
    direct.offset, direct.batches = pipeline.offset, pipeline.batches
    orders.update(3)
    direct.run()
    same(direct, orders)


def test_cursors_are_ended_on_the_shards_and_not_on_the_router(
    cluster: Cluster, routers: list[StandIn], db: str
) -> None:
    orders = Orders(cluster, db)
    source = discover(uri_of(routers), TIMEOUT_MS, shards_direct=True)
    find = {"find": orders.name, "batchSize": 1}
    for shard in cluster.shards:
        member = source.open(shard).configure("of a run")
        assert member.command(db, find)["cursor"]["id"]
    assert idle_cursors(cluster, db) == ["of a run", "of a run"]
    end_cursors(lambda: source, "of a run")
    assert idle_cursors(cluster, db) == []


def idle_cursors(cluster: Cluster, db: str) -> list[str]:
    ours = {"ns": f"{db}.orders", "type": "idleCursor"}
    stages: list[Document] = [{"$currentOp": {"idleCursors": True}}, {"$match": ours}]
    return [
        found["cursor"]["originatingCommand"].get("comment", "")
        for shard in cluster.shards
        for found in cluster.clients[shard].admin.aggregate(stages)
    ]
