"""A pipeline that reads a sharded cluster through its routers: all programs.

The router is a stand-in (`tests.mongo.stand_in`): none of this has met a real mongos.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bson
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from cdc import Pipeline
from cdc.delta.sink import BatchReport
from cdc.errors import UnsuitableSource
from tests.end_to_end.in_process import STALL_SECONDS
from tests.mongo.cluster import Cluster
from tests.mongo.stand_in import StandIn
from tests.mongo.topology.test_sharded_cluster import Orders

DB = "shop"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as running:
        running.create_database(DB)
        yield running


@pytest.fixture
def router(cluster: Cluster) -> Iterator[StandIn]:
    with StandIn.of_cluster(cluster) as running:
        yield running


class Parcels:
    """A collection sharded by the hash of `_id`: its documents do not move by a change."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        cluster.shard_collection(DB, "parcels", {"_id": "hashed"})
        images = {"changeStreamPreAndPostImages": {"enabled": True}}
        for shard in cluster.shards:
            cluster.clients[shard][DB].command({"collMod": "parcels", **images})
        self.insert(range(60))

    def insert(self, ids: Any) -> None:
        for each in ids:
            self._run(each, {"insert": "parcels", "documents": [{"_id": each, "n": 0}]})

    def update(self, each: int) -> None:
        change = {"q": {"_id": each}, "u": {"$inc": {"n": 1}}}
        self._run(each, {"update": "parcels", "updates": [change]})

    def delete(self, each: int) -> None:
        self._run(each, {"delete": "parcels", "deletes": [{"q": {"_id": each}, "limit": 1}]})

    def _run(self, each: int, command: dict[str, Any]) -> None:
        shard = self.cluster.owner_of_hash(DB, "parcels", each)
        assert not self.cluster.run(shard, DB, command).get("writeErrors")


def made(uri: str, collections: str, folder: Path, spark: SparkSession, **more: str) -> Pipeline:
    options = {
        "uri": uri,
        "collections": collections,
        "sink.path": str(folder),
        "document.format": "bson",
        "sink.mirror.interval": "0",
        **more,
    }
    return Pipeline.from_options(options, spark)


def run(pipeline: Pipeline) -> list[BatchReport]:
    reports = list[BatchReport]()
    with pipeline.run(available_now=True, on_batch=reports.append) as replication:
        replication.wait(2 * STALL_SECONDS)
    return reports


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_mirror_is_copied_followed_verified_restored_and_repaired(
    cluster: Cluster, router: StandIn, spark: SparkSession, tmp_path: Path
) -> None:
    parcels, name = Parcels(cluster), f"{DB}.parcels"
    pipeline = made(router.uri, name, tmp_path / "tables", spark)
    assert pipeline.plan().problems == []
    assert sum(each.copied for each in run(pipeline)) == 60
    copied_until = pipeline.mirrored_until(name)
    assert copied_until is not None
    for each in range(5):
        parcels.update(each)
        parcels.delete(each + 10)
    parcels.insert(range(100, 110))
    assert sum(each.changes for each in run(pipeline)) == 20
    (verdict,) = pipeline.verify(name)
    assert (verdict.is_equal, verdict.documents) == (True, 65)
    status = pipeline.status()
    assert status.metrics.time is not None
    assert status.metrics.oplog_left is None
    assert pipeline.live(name).count() == 65
    assert pipeline.as_of(name, copied_until).count() == 60
    done = pipeline.backfill(name, into=["mirror"], repair=True)
    assert done is not None
    (verdict,) = pipeline.verify(name)
    assert verdict.is_equal


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_documents_that_may_move_have_a_changelog_only_and_its_states_are_right(
    cluster: Cluster, router: StandIn, spark: SparkSession, tmp_path: Path
) -> None:
    """Guards: a router may report the insert of a moved document before its delete."""
    orders = Orders(cluster, DB, 20)
    with pytest.raises(UnsuitableSource, match="sharded by other fields"):
        run(made(router.uri, orders.full, tmp_path / "refused", spark))
    only_log = {"table.mirror": ""}
    pipeline = made(router.uri, orders.full, tmp_path / "tables", spark, **only_log)
    run(pipeline)
    moved = {"_id": 1, "region": 6, "number": 1, "n": 7}
    delete = {"delete": "orders", "deletes": [{"q": {"_id": 1, "region": 1}, "limit": 1}]}
    transaction = cluster.transaction(
        DB, s1=[delete], s2=[{"insert": "orders", "documents": [moved]}]
    )
    transaction.commit("s2")
    transaction.commit("s1")
    orders.update(2)
    reports = run(pipeline)
    last = max(each.watermark for each in reports if each.watermark is not None)
    rows = pipeline.as_of(orders.full, last).collect()
    found = {bson.decode(bytes(row["document"]))["_id"]: row for row in rows}
    assert len(rows) == len(found) == 20
    assert bson.decode(bytes(found[1]["document"])) == moved


@pytest.mark.timeout(600)
def test_a_mirror_ends_before_the_first_batch_in_which_documents_may_move(
    cluster: Cluster, router: StandIn, spark: SparkSession, tmp_path: Path
) -> None:
    coll = cluster.clients["s1"][DB]["later"]
    coll.create_index([("region", 1)])
    coll.insert_one({"_id": 1, "region": 1})
    pipeline = made(router.uri, f"{DB}.later", tmp_path / "tables", spark)
    assert sum(each.copied for each in run(pipeline)) == 1
    before = pipeline.mirrored_until(f"{DB}.later")
    refused = pytest.raises(StreamingQueryException, match="sharded by other fields")
    with refused, pipeline.run() as replication:
        cluster.shard_collection(DB, "later", {"region": 1})
        change = {"q": {"_id": 1, "region": 1}, "u": {"$inc": {"n": 1}}}
        cluster.run("s1", DB, {"update": "later", "updates": [change]})
        replication.wait(STALL_SECONDS)
    assert pipeline.mirrored_until(f"{DB}.later") == before
