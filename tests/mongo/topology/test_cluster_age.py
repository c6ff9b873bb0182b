"""Clusters before 5.0 cannot be read shard by shard, and it is said at the start."""

from __future__ import annotations

import pytest

from cdc import options as declared
from cdc.errors import UnsuitableSource
from cdc.source import inquiry
from tests.mongo.abilities import abilities
from tests.mongo.cluster import Cluster
from tests.mongo.stand_in import StandIn


def test_a_cluster_is_taken_only_if_its_shards_can_be_read_at_a_time() -> None:
    """Guards: where documents move about, reads of several shards at different moments miss some,
    and find others twice."""
    with Cluster() as cluster:
        cluster.create_database("shop")
        cluster.clients["s1"].shop.orders.insert_one({"_id": 1})
        given = {
            "uri": cluster.config.uri,
            "collections": "shop.orders",
            "shards.direct": "true",
        }
        if abilities(cluster.clients["s1"]).reads_at_a_time:
            assert [str(found.namespace) for found in inquiry.preflight(declared.parse(given))] == [
                "shop.orders"
            ]
            assert not inquiry.plan(declared.parse(given)).problems
            return
        with pytest.raises(UnsuitableSource, match="Shard s1 is of a version before"):
            inquiry.preflight(declared.parse(given))
        assert "before 5.0" in str(inquiry.plan(declared.parse(given)).problems[0])


def test_a_cluster_is_copied_through_a_router_only_if_a_read_names_the_incarnation() -> None:
    """Guards: by its name alone, a collection that was dropped since would be read as empty."""
    with Cluster() as cluster:
        can = abilities(cluster.clients["s1"])
        if not can.reads_at_a_time:  # the stand-in does not imitate these
            return
        cluster.create_database("shop")
        cluster.clients["s1"].shop.orders.insert_one({"_id": 1})
        with StandIn.of_cluster(cluster) as router:
            given = {"uri": router.uri, "collections": "shop.orders"}
            assert inquiry.preflight(declared.parse({**given, "mode": "latest"}))
            if can.names_the_incarnation:
                assert inquiry.preflight(declared.parse(given))
                return
            with pytest.raises(UnsuitableSource, match=r"before 6\.0"):
                inquiry.preflight(declared.parse(given))
