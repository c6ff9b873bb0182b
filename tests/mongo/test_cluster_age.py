"""Clusters before 6.0 cannot be read shard by shard, and it is said at the start."""

from __future__ import annotations

import pytest

from cdc import source
from cdc.errors import UnsuitableSource
from tests.mongo.abilities import abilities
from tests.mongo.cluster import Cluster


def test_a_cluster_is_taken_only_if_its_shards_can_be_asked_for_an_incarnation() -> None:
    """Guards: before 6.0 a versioned read cannot name the incarnation that it means, and a chunk's
    history does not either: ranges would be void without a word."""
    with Cluster() as cluster:
        cluster.create_database("shop")
        cluster.clients["s1"].shop.orders.insert_one({"_id": 1})
        given = {
            "uri": cluster.config.uri,
            "collections": "shop.orders",
            "shards.direct": "true",
        }
        if abilities(cluster.clients["s1"]).names_the_incarnation:
            assert [str(found.namespace) for found in source.preflight(given)] == ["shop.orders"]
            assert not source.plan(given).problems
            return
        with pytest.raises(UnsuitableSource, match="Shard s1 is of a version before"):
            source.preflight(given)
        assert "before 6.0" in str(source.plan(given).problems[0])
