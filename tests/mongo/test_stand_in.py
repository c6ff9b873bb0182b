"""The stand-in for a router itself, in front of real servers: reads, writes, metadata, faults."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from bson import Binary, Timestamp
from pymongo import MongoClient
from pymongo.errors import AutoReconnect, OperationFailure

from cdc.demo import ReplicaSet
from tests.mongo.abilities import abilities
from tests.mongo.capture import Client, Document, until
from tests.mongo.cluster import HIGHEST, LOWEST, RAW, Cluster
from tests.mongo.stand_in import StandIn
from tests.mongo.trio import three_members


@pytest.fixture
def router(cluster: Cluster) -> Iterator[StandIn]:
    with StandIn.of_cluster(cluster) as running:
        yield running


@pytest.fixture
def client(router: StandIn) -> Iterator[Client]:
    with MongoClient[Document](router.uri, retryReads=False) as connected:
        yield connected


@pytest.fixture
def orders(cluster: Cluster, db: str) -> str:
    """A collection sharded by `k`: 40 documents on `s1`, 60 on `s2`, `_id` falls with `k`."""
    cluster.shard_collection(db, "orders", {"k": 1})
    cluster.move(db, "orders", {"k": 40}, "s2", {"k": HIGHEST})
    for shard, keys in (("s1", range(40)), ("s2", range(40, 100))):
        documents = [{"_id": 100 - k, "k": k, "name": f"n{k % 10}"} for k in keys]
        reply = cluster.run(shard, db, {"insert": "orders", "documents": documents})
        assert not reply.get("writeErrors"), reply
    return "orders"


def refusal(client: Client, db: str, command: Document) -> int | None:
    with pytest.raises(OperationFailure) as refused:
        client[db].command(command)
    return refused.value.code


def test_a_driver_takes_it_for_a_router(client: Client) -> None:
    hello = client.admin.command("hello")
    assert client.topology_description.topology_type_name == "Sharded"
    assert hello["msg"] == "isdbgrid"
    assert not {"setName", "lastWrite", "topologyVersion"} & hello.keys()
    assert client.admin.command("serverStatus")["process"] == "mongos"
    assert refusal(client, "local", {"find": "oplog.rs"}) == 20
    assert refusal(client, "admin", {"replSetGetStatus": 1}) is None
    assert refusal(client, "admin", {"replSetGetConfig": 1}) == 59


def test_databases_and_collections_are_those_of_all_shards(
    cluster: Cluster, client: Client, db: str, orders: str
) -> None:
    cluster.clients["s1"][db]["alone"].insert_one({"_id": 1})
    names = [entry["name"] for entry in client.admin.command("listDatabases")["databases"]]
    assert {"admin", "config", db} <= set(names)
    assert "local" not in names
    listed = {entry["name"]: entry for entry in client[db].list_collections()}
    assert listed.keys() == {"alone", orders}
    found = cluster.metadata["collections"].find_one({"_id": f"{db}.{orders}"})
    assert bytes(listed[orders]["info"]["uuid"]) == bytes(found["uuid"])
    assert list(client["nowhere"].list_collections()) == []
    assert list(client["nowhere"]["a"].find()) == []
    assert client.config["shards"].count_documents({}) == 2


def test_a_sorted_find_merges_the_shards_and_another_does_not(
    client: Client, db: str, orders: str
) -> None:
    coll = client[db][orders]
    everything = list(range(1, 101))
    assert [d["_id"] for d in coll.find().sort("_id", 1).batch_size(7)] == everything
    assert [d["_id"] for d in coll.find().sort("_id", -1)] == everything[::-1]
    cursor = coll.find(hint={"_id": 1}).min([("_id", 2)]).max([("_id", 98)])
    unsorted = [d["_id"] for d in cursor]
    assert sorted(unsorted) == list(range(2, 98))
    assert unsorted != sorted(unsorted)
    by_name = coll.find({}, {"name": 1, "_id": 0}).sort([("name", -1), ("k", 1)]).skip(15).limit(10)
    assert list(by_name) == [{"name": "n8"}] * 5 + [{"name": "n7"}] * 5


def test_a_find_returns_no_orphans_and_names_its_incarnation(
    cluster: Cluster, client: Client, db: str, orders: str
) -> None:
    cluster.clients["s1"][db][orders].insert_one({"_id": "orphan", "k": 99})
    assert client[db][orders].count_documents({}) == 100
    find = {"find": orders, "collectionUUID": Binary(bytes(16), 4)}
    names_it = abilities(cluster.clients["s1"]).names_the_incarnation
    assert refusal(client, db, find) == (361 if names_it else 40415)
    assert refusal(client, "nowhere", find) == 361


def test_a_snapshot_is_read_from_those_who_owned_it_then(
    cluster: Cluster, router: StandIn, client: Client, db: str, orders: str
) -> None:
    at = client.admin.command("listDatabases")["$clusterTime"]["clusterTime"]
    before = sorted(cluster.contents(db, orders, at))
    cluster.move(db, orders, {"k": LOWEST}, "s2", {"k": 40})
    client[db][orders].delete_many({"k": {"$lt": 50}})
    concern = {"level": "snapshot", "atClusterTime": at}
    find = {"find": orders, "readConcern": concern, "batchSize": 1000}
    reply = client.get_database(db, codec_options=RAW).command(find, codec_options=RAW)
    assert sorted(bytes(d.raw) for d in reply["cursor"]["firstBatch"]) == before
    assert reply["cursor"]["atClusterTime"] == at
    ancient = {"find": orders, "readConcern": {**concern, "atClusterTime": Timestamp(1, 1)}}
    assert refusal(client, db, ancient) == 250


def test_a_router_with_stale_metadata_asks_again_before_its_first_reply(
    cluster: Cluster, router: StandIn, client: Client, db: str, orders: str
) -> None:
    coll, alone = client[db][orders], client[db]["alone"]
    alone.insert_one({"_id": 1})
    assert coll.count_documents({}) == 100
    known = router.refreshes
    cluster.move(db, orders, {"k": 10}, "s2", {"k": 20})
    assert len(list(coll.find().batch_size(3))) == 100
    assert router.refreshes > known
    coll.insert_one({"_id": 1000, "k": 15})
    known = router.refreshes
    cluster.move_primary(db, "s2")
    assert alone.find_one() == {"_id": 1}
    assert {"alone", orders} == set(client[db].list_collection_names())
    assert router.refreshes > known


def test_sizes_and_samples_are_those_of_all_shards(client: Client, db: str, orders: str) -> None:
    coll = client[db][orders]
    assert coll.estimated_document_count() == 100
    stats = client[db].command("collStats", orders)
    assert (stats["sharded"], stats["count"], stats["shards"].keys()) == (True, 100, {"s1", "s2"})
    assert stats["size"] == sum(each["size"] for each in stats["shards"].values())
    assert refusal(client, db, {"splitVector": f"{db}.{orders}", "keyPattern": {"_id": 1}}) == 20
    by_id: list[Document] = [{"$group": {"_id": "$_id"}}, {"$sort": {"_id": 1}}]
    drawn = [d["_id"] for d in coll.aggregate([{"$sample": {"size": 20}}, *by_id])]
    assert len(drawn) == 20
    assert drawn == sorted(drawn)
    assert len(list(coll.aggregate([{"$match": {"k": {"$gte": 30}}}, {"$limit": 50}]))) == 50
    per_shard = list(coll.aggregate([{"$collStats": {"count": {}}}]))
    assert {d["shard"]: d["count"] for d in per_shard} == {"s1": 40, "s2": 60}


def test_a_sample_of_unequal_shards_is_fair(
    cluster: Cluster, client: Client, db: str, orders: str
) -> None:
    cluster.move(db, orders, {"k": 5}, "s2", {"k": 40})
    until(lambda: cluster.clients["s1"][db][orders].estimated_document_count() == 5)
    sample: list[Document] = [{"$sample": {"size": 40}}, {"$match": {"k": {"$lt": 5}}}]
    drawn = sum(len(list(client[db][orders].aggregate(sample))) for _ in range(40))
    assert 40 < drawn < 140  # 80 of 1,600, and 200 if every shard had the same part


def test_writes_go_to_the_owner_of_each_document(
    cluster: Cluster, router: StandIn, client: Client, db: str, orders: str
) -> None:
    coll = client[db][orders]
    coll.insert_many([{"_id": -k, "k": k} for k in (1, 41, 2, 42)])
    assert coll.update_one({"k": 42}, {"$set": {"here": True}}).modified_count == 1
    assert coll.update_one({"_id": -1}, {"$set": {"here": True}}).modified_count == 1
    assert coll.delete_many({"name": "n3"}).deleted_count == 10
    assert coll.replace_one({"_id": 5000, "k": 77}, {"k": 77}, upsert=True).upserted_id == 5000
    twice = client[db].command({"insert": orders, "documents": [{"_id": -1, "k": 1}]})
    assert twice["writeErrors"][0]["code"] == 11000
    owned = {shard: coll_of(cluster, shard, db, orders) for shard in cluster.shards}
    assert {-1, -2} <= owned["s1"]
    assert {-41, -42, 5000} <= owned["s2"]
    assert not owned["s1"] & owned["s2"]


def coll_of(cluster: Cluster, shard: str, db: str, coll: str) -> set[Any]:
    return {d["_id"] for d in cluster.clients[shard][db][coll].find()}


def test_cursors_are_known_by_the_router_only(
    cluster: Cluster, client: Client, db: str, orders: str
) -> None:
    reply = client[db].command({"find": orders, "batchSize": 1, "comment": "mine"})
    cursor = reply["cursor"]["id"]
    own = {"$currentOp": {"localOps": True, "idleCursors": True}}
    mine = {"$match": {"cursor.originatingCommand.comment": "mine"}}
    shown = list(client.admin.aggregate([own, mine]))
    assert [each["cursor"]["cursorId"] for each in shown] == [cursor]
    behind = list(client.admin.aggregate([{"$currentOp": {"idleCursors": True}}, mine]))
    assert {each["shard"] for each in behind} == {"s1", "s2"}
    assert cursor not in {each["cursor"]["cursorId"] for each in behind}
    killed = client[db].command({"killCursors": orders, "cursors": [cursor, 1]})
    assert (killed["cursorsKilled"], killed["cursorsNotFound"]) == ([cursor], [1])
    assert not list(client.admin.aggregate([{"$currentOp": {"idleCursors": True}}, mine]))


def test_it_fails_as_often_as_it_is_asked_to(
    router: StandIn, client: Client, db: str, orders: str
) -> None:
    find = {"find": orders, "batchSize": 1}
    router.faults.fail(13388, "find", times=2)
    assert [refusal(client, db, find) for _ in range(2)] == [13388, 13388]
    with client.start_session() as session:
        cursor = client[db].command(find, session=session)["cursor"]["id"]
        more = {"getMore": cursor, "collection": orders, "batchSize": 1}
        router.faults.fail(50, "getMore")
        with pytest.raises(OperationFailure, match="asked to fail"):
            client[db].command(more, session=session)
        assert client[db].command(more, session=session)["cursor"]["nextBatch"]
        router.faults.fail(43, "getMore")
        for _ in range(2):
            with pytest.raises(OperationFailure) as lost:
                client[db].command(more, session=session)
            assert lost.value.code == 43
    assert router.faults.refused == [("find", 13388)] * 2 + [("getMore", 50), ("getMore", 43)]


def test_a_killed_router_answers_nobody(router: StandIn, db: str, orders: str) -> None:
    impatient = MongoClient[Document](router.uri, serverSelectionTimeoutMS=100, retryReads=False)
    opening = {"aggregate": 1, "pipeline": [{"$changeStream": {}}], "cursor": {}}
    with impatient, impatient.start_session() as session:
        cursor = impatient[db].command(opening, session=session)["cursor"]["id"]
        more = {"getMore": cursor, "collection": "$cmd.aggregate", "maxTimeMS": 60_000}
        threading.Timer(0.3, router.kill).start()
        started = time.monotonic()
        with pytest.raises(AutoReconnect):
            impatient[db].command(more, session=session)
        assert time.monotonic() - started < 10
        with pytest.raises(AutoReconnect):
            impatient[db][orders].find_one()


def test_a_replica_set_is_the_only_shard_of_a_cluster(mongod: ReplicaSet, database: Any) -> None:
    database["a"].insert_many([{"_id": number} for number in range(300)])
    with (
        StandIn.of_replica_set(mongod.uri) as router,
        MongoClient[Document](router.uri) as client,
    ):
        assert client.topology_description.topology_type_name in ("Sharded", "Unknown")
        assert len(list(client[database.name]["a"].find())) == 300
        client[database.name]["b"].insert_one({"_id": 1})
        assert set(client[database.name].list_collection_names()) == {"a", "b"}
        (version,) = client.config["version"].find()
        config = client.config["shards"].find_one({"state": 1})
        assert version["clusterId"]
        assert mongod.members[0].host in config["host"]
        where = client.config["databases"].find_one({"_id": database.name})
        assert where["primary"] == config["_id"]
        assert list(client.config["collections"].find()) == []


@pytest.mark.slow
def test_it_follows_the_primary_and_may_take_a_deposed_one_for_it() -> None:
    with (
        three_members() as trio,
        StandIn.of_replica_set(trio.replica_set.uri) as router,
        MongoClient[Document](router.uri) as client,
    ):
        coll = trio.fresh()["a"]
        coll.insert_one({"_id": 1})
        through = client[coll.database.name]
        assert through["a"].find_one() == {"_id": 1}
        first = trio.replica_set.primary()
        trio.lead(trio.others(first)[0])
        trio.replicates(first, "alwaysOn")
        through["late"].insert_one({"_id": 1})
        assert set(through.list_collection_names()) == {"a", "late"}
        router.faults.lists_from = first.host
        assert set(through.list_collection_names()) == {"a"}
        router.faults.lists_from = None
        trio.replicates(first)
        second = trio.replica_set.primary()
        second.kill()
        through["a"].insert_one({"_id": 2})
        assert len(list(through["a"].find())) == 2
