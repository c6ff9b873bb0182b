"""A pipeline that reads a sharded cluster through its routers: all programs.

The router is a stand-in (`tests.mongo.stand_in`): none of this has met a real mongos.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bson
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import EqualTo

from cdc import Pipeline
from cdc.delta.sink import BatchReport
from cdc.model import Namespace
from tests.end_to_end.in_process import STALL_SECONDS
from tests.mongo.cluster import Cluster
from tests.mongo.plan.test_change_window import window
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
    cluster.create_database("restored")
    pipeline.restore(name, copied_until, router.uri, "restored.parcels")
    restored = cluster.clients["s1"]["restored"]["parcels"].find(sort=[("_id", 1)])
    assert list(restored) == [{"_id": each, "n": 0} for each in range(60)]
    done = pipeline.backfill(name, into=["mirror"], repair=True)
    assert done is not None
    (verdict,) = pipeline.verify(name)
    assert verdict.is_equal


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_documents_that_move_between_shards_are_mirrored_whichever_half_comes_first(
    cluster: Cluster, router: StandIn, spark: SparkSession, tmp_path: Path
) -> None:
    """Guards: the delete of a document that has moved, in a later batch than its insert; a changed
    shard key on one shard; two documents with one `_id`; a shard key that a document lacks."""
    orders = Orders(cluster, DB, 20)
    options = {"table.history": "{db}/{coll}/history"}
    pipeline = made(router.uri, orders.full, tmp_path / "tables", spark, **options)
    assert pipeline.plan().problems == []
    copied_twin = {"_id": 4, "region": 6, "number": 4, "n": 0}
    orders.run("s2", {"insert": "orders", "documents": [copied_twin]})
    copied = pipeline.mirrored_until(orders.full) if run(pipeline) else None
    assert copied is not None
    moved = {"_id": 1, "region": 6, "number": 1, "n": 7}
    delete = {"delete": "orders", "deletes": [{"q": {"_id": 1, "region": 1}, "limit": 1}]}
    transaction = cluster.transaction(
        DB, s1=[delete], s2=[{"insert": "orders", "documents": [moved]}]
    )
    transaction.commit("s2")
    run(pipeline)  # has the insert, and not the delete
    transaction.commit("s1")
    orders.update(2)
    twin = {"_id": 2, "region": 6, "number": 2, "n": 1}
    orders.run("s2", {"insert": "orders", "documents": [twin]})
    orders.run("s1", {"insert": "orders", "documents": [{"_id": 90, "n": 2}]})
    again = {"q": {"_id": 3, "region": 3, "number": 3}, "u": {"$set": {"number": 33}}}
    change = {"update": "orders", "updates": [again]}
    cluster.transaction(DB, **{orders.owner(3): [change]}).commit()
    reports = run(pipeline)
    last = max(each.watermark for each in reports if each.watermark is not None)
    expected = Counter(cluster.contents(DB, "orders"))
    assert expected.total() == 23
    (verdict,) = pipeline.verify(orders.full)
    assert (verdict.is_equal, verdict.documents) == (True, 23)
    for rows in (pipeline.as_of(orders.full, last), pipeline.live(orders.full)):
        assert Counter(bytes(row["document"]) for row in rows.collect()) == expected
    table = pipeline.config.table("changelog", Namespace(DB, "orders"))
    assert table is not None
    rekeyed = table.target.read(spark).where("description LIKE '%rekeyed%'").orderBy("op").collect()
    assert [row["op"] for row in rekeyed] == ["delete", "insert"]
    assert rekeyed[0]["position"] == rekeyed[1]["position"]
    assert bson.decode(bytes(rekeyed[0]["before"]))["number"] == 3
    assert bson.decode(bytes(rekeyed[1]["after"]))["number"] == 33
    assert rekeyed[1]["key"] == '3\t{"number":33,"region":3}'
    everything = window(router.uri, orders.full, from_=copied)
    for op in ("delete", "insert"):
        narrowed = window(router.uri, orders.full, [EqualTo(("op",), op)], from_=copied)
        assert [row for row in narrowed if row.op == op] == [
            row for row in everything if row.op == op
        ], "the server left out an update that changes the key"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_collection_that_is_sharded_while_a_pipeline_runs_is_copied_again(
    cluster: Cluster, router: StandIn, spark: SparkSession, tmp_path: Path
) -> None:
    recording = {"changeStreamPreAndPostImages": {"enabled": True}}
    coll = cluster.clients["s1"][DB].create_collection("later", **recording)
    coll.create_index([("region", 1)])
    coll.insert_many([{"_id": 1, "region": 1}, {"_id": 2, "region": 2}])
    options = {"table.history": "{db}/{coll}/history"}
    pipeline = made(router.uri, f"{DB}.later", tmp_path / "tables", spark, **options)
    assert sum(each.copied for each in run(pipeline)) == 2
    cluster.shard_collection(DB, "later", {"region": 1})
    change = {"q": {"_id": 1, "region": 1}, "u": {"$inc": {"n": 1}}}
    cluster.run("s1", DB, {"update": "later", "updates": [change]})
    delete = {"q": {"_id": 2, "region": 2}, "limit": 1}
    cluster.run("s1", DB, {"delete": "later", "deletes": [delete]})
    run(pipeline)
    (verdict,) = pipeline.verify(f"{DB}.later")
    assert (verdict.is_equal, verdict.documents) == (True, 1)
    expected = Counter(cluster.contents(DB, "later"))
    assert (
        Counter(bytes(row["document"]) for row in pipeline.live(f"{DB}.later").collect())
        == expected
    )
    history = pipeline.config.table("history", Namespace(DB, "later"))
    assert history is not None
    current = history.target.read(spark).where("__END_AT IS NULL").collect()
    assert [row["key"] for row in current] == ['1\t{"region":1}']
