"""Which incarnation of a sharded collection is read: that of the metadata, if shards hold it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from pymongo.write_concern import WriteConcern

from cdc.errors import TransientError
from cdc.mongo.connection import Member
from cdc.mongo.topology.sharded_cluster import Cluster as Source
from tests.mongo.abilities import abilities
from tests.mongo.capture import Document, Watched, document
from tests.mongo.cluster import HIGHEST, LOWEST, Cluster
from tests.mongo.topology.test_sharded_cluster import capture

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as running:
        running.create_database("shop")
        yield running


@pytest.fixture
def name(cluster: Cluster) -> str:
    """A collection in `shop`, half of its 20 documents on each shard."""
    return filled(cluster, "shop", f"orders{next(_numbers)}")


def filled(cluster: Cluster, db: str, coll: str) -> str:
    cluster.shard_collection(db, coll, {"_id": 1})
    cluster.move(db, coll, {"_id": 10}, "s2", {"_id": HIGHEST})
    for shard, ids in (("s1", range(10)), ("s2", range(10, 20))):
        insert = {"insert": coll, "documents": [{"_id": each} for each in ids]}
        assert not cluster.run(shard, db, insert).get("writeErrors")
    return coll


def test_what_the_metadata_has_forgotten_is_not_reported_by_shards_that_still_hold_it(
    cluster: Cluster, name: str
) -> None:
    """Guards: who drops a collection begins with the metadata. Without the version of its chunks a
    shard would report orphans too."""
    with cluster.keeping_orphans():
        cluster.move("shop", name, {"_id": LOWEST}, "s2")
        pipeline = capture(cluster, f"shop.{name}")
        end = pipeline.plan()
        confirmed = {"write_concern": WriteConcern("majority")}
        collections = cluster.metadata.get_collection("collections", **confirmed)
        collections.delete_one({"_id": f"shop.{name}"})
        assert not pipeline.read(end).rows


@pytest.mark.parametrize("looks", [0, 1], ids=["before it is looked for", "before it is read"])
def test_what_a_shard_alone_takes_for_gone_is_not_passed_over(
    cluster: Cluster, name: str, looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards: by name alone, such a shard would answer with no documents, and no error. What it has
    to do may be on its way to it; the planner goes by the metadata, and copies nothing again."""
    pipeline = capture(cluster, f"shop.{name}", retry_seconds="1", documents_per_split=None)
    end, reads = pipeline.plan(), itertools.count()
    if abilities(cluster.clients["s2"]).names_the_incarnation:
        looks = 0  # one read says it all; else the first is refused

    def watch(command: Mapping[str, Any]) -> None:
        if "shardVersion" in command and next(reads) == looks:
            cluster.clients["s2"]["shop"].drop_collection(name)

    opened: Callable[[Source, str], Member] = Source.open

    def watched(source: Source, shard: str) -> Member:
        member = opened(source, shard)
        return Watched(member, watch) if shard == "s2" else member

    monkeypatch.setattr(Source, "open", watched)
    with pytest.raises(TransientError, match="a shard lacks it, although the metadata lists it"):
        pipeline.read(end)


@pytest.mark.slow
def test_a_cluster_is_read_on_when_its_feature_compatibility_version_is_raised() -> None:
    """Guards: with 5.0, chunks go by the collection's UUID and versions have a timestamp."""
    with Cluster() as cluster:
        newer = version_of(cluster)
        older = {"6.0": "5.0", "5.0": "4.4"}[newer]
        cluster.configure({"setFeatureCompatibilityVersion": older})
        cluster.create_database("shop")
        filled(cluster, "shop", "orders")
        cluster.clients["s1"].shop.boxes.insert_one({"_id": "a"})
        names = "shop.orders,shop.boxes"
        pipeline = capture(cluster, names, documents_per_split=4, splits_per_batch=1)
        for _ in ("boxes", "orders"):
            pipeline.batch()
        update(cluster, 3)
        end = pipeline.plan()
        cluster.configure({"setFeatureCompatibilityVersion": newer})
        cluster.move("shop", "orders", {"_id": LOWEST}, "s2", {"_id": 5})
        pipeline.read(end)
        update(cluster, 4)
        update(cluster, 17)
        pipeline.run()
    found = {
        row.key: document(row.after) for row in sorted(pipeline.rows, key=lambda r: r.position)
    }
    changed = {str(n): {"_id": n, "n": 1} if n in (3, 4, 17) else {"_id": n} for n in range(20)}
    assert found == {**changed, '"a"': {"_id": "a"}}
    assert not pipeline.resyncs


def version_of(cluster: Cluster) -> str:
    asked = {"getParameter": 1, "featureCompatibilityVersion": 1}
    found = cluster.clients["s1"].admin.command(asked)["featureCompatibilityVersion"]
    return str(found["version"])


def update(cluster: Cluster, _id: int) -> None:
    change: Document = {"q": {"_id": _id}, "u": {"$set": {"n": 1}}}
    shard = cluster.routing("shop", "orders").owner(_id)
    cluster.run(shard, "shop", {"update": "orders", "updates": [change]})
