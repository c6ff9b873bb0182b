"""Routers that fail, listings that change, and what a router does not tell.

The routers are stand-ins (`tests.mongo.stand_in`): none of this has met a real mongos.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import bson
import bson.json_util
import pytest

from cdc import options as declared
from cdc.cli.plan import estimate, show
from cdc.demo import ReplicaSet
from cdc.errors import BadOption, ForeignOffset, UnsuitableSource
from cdc.model import Selection
from cdc.mongo.inspect import require_own
from cdc.mongo.plan import start_of
from cdc.mongo.read import change_stream, range_scan
from cdc.mongo.read.shards import stream_order
from cdc.mongo.topology import discover, reopen
from cdc.mongo.topology import router as routers
from cdc.mongo.topology.router_metadata import find_shard_keys, require_shard_keys
from cdc.source import inquiry
from cdc.terminal import Terminal
from tests.mongo.capture import TIMEOUT_MS, Capture, id_of
from tests.mongo.cluster import Cluster
from tests.mongo.connection.test_connection import NameServer
from tests.mongo.routed import Oracle, Routed, assert_as_the_events_left_it, assert_unbroken
from tests.mongo.stand_in import StandIn
from tests.mongo.topology.test_sharded_cluster import Orders, same
from tests.slow import slow_but


@pytest.fixture
def two(cluster: Cluster) -> Iterator[list[StandIn]]:
    with ExitStack() as stack:
        yield [stack.enter_context(StandIn.of_cluster(cluster)) for _ in range(2)]


def uri_of(both: list[StandIn]) -> str:
    return f"mongodb://{','.join(each.host for each in both)}/"


def options_of(uri: str, collections: str, **more: str) -> Any:
    return declared.parse({"uri": uri, "collections": collections, **more})


# --- connection strings --------------------------------------------------------------------------


@pytest.mark.slow
def test_the_routers_of_a_seed_list_are_read_and_replace_each_other(
    cluster: Cluster, db: str, two: list[StandIn], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards: `mongodb+srv`, as hosted services give it."""
    ports = [int(each.host.rpartition(":")[2]) for each in two]
    names = NameServer("authSource=admin", [("m1", ports[0]), ("m2", ports[1])])
    resolve = socket.getaddrinfo

    def resolve_here(host: str, *arguments: Any, **more: Any) -> Any:
        return resolve("127.0.0.1" if host.endswith(".cdc.test") else host, *arguments, **more)

    monkeypatch.setattr(socket, "getaddrinfo", resolve_here)
    orders = Orders(cluster, db)
    with names.answering():
        uri = "mongodb+srv://routers.cdc.test/?tls=false"
        pipeline = Routed(cluster, uri, orders.full, retry_seconds="60")
        pipeline.run()
        two[0].kill()
        orders.update(1)
        pipeline.run()
        same(pipeline, orders)


def test_a_router_reads_by_the_read_preference_and_the_tags_of_the_connection_string(
    cluster: Cluster, db: str, router: StandIn
) -> None:
    orders = Orders(cluster, db, 10)
    given = "readPreference=nearest&readPreferenceTags=dc:east,use:cdc&readPreferenceTags="
    pipeline = Routed(cluster, f"{router.uri}?{given}", orders.full)
    pipeline.run()
    same(pipeline, orders)
    wanted = {"mode": "nearest", "tags": [{"dc": "east", "use": "cdc"}, {}]}
    chosen = [bson.decode(each.raw) for each in router.preferences if each is not None]
    assert wanted in chosen
    assert [each for each in chosen if each not in (wanted, {"mode": "primary"})] == []


# --- routers that fail ---------------------------------------------------------------------------


@pytest.mark.parametrize("killed", slow_but([], [0, 1], soak=[1]))
def test_a_router_that_is_killed_in_the_midst_of_reads_is_replaced_by_another(
    cluster: Cluster, db: str, two: list[StandIn], killed: int
) -> None:
    oracle = Oracle(cluster, db, "orders")
    orders = Orders(cluster, db)
    pipeline = Routed(cluster, uri_of(two), orders.full, documents_per_split=10, retry_seconds="60")
    pipeline.batch()
    for region in range(10):
        orders.update(region)
    end = pipeline.plan()
    with patch.object(range_scan, "_BATCH", 3), patch.object(change_stream, "_BATCH", 3):
        splits = pipeline.planner.splits(pipeline.offset, end, control=True)
        rows = []
        for split in splits:
            for number, row in enumerate(pipeline.rows_of(split)):
                rows.append(row)
                if number == 1:
                    two[killed].kill()
    pipeline.done(end, splits, rows)
    assert_as_the_events_left_it(pipeline, orders, oracle)
    orders.insert(5)
    pipeline.run()
    same(pipeline, orders)
    assert_unbroken(pipeline)


@pytest.mark.slow
def test_errors_of_a_router_neither_lose_nor_double_a_row(
    cluster: Cluster, db: str, router: StandIn
) -> None:
    oracle = Oracle(cluster, db, "orders")
    orders, chance = Orders(cluster, db), random.Random(7)
    pipeline = Routed(cluster, router.uri, orders.full, documents_per_split=20)
    with patch.object(range_scan, "_BATCH", 4):
        for code in (43, 50, 133, 13388, 6):
            orders.update(chance.randrange(10))
            orders.delete(chance.randrange(10))
            end = pipeline.plan()
            for command in ("find", "getMore", "aggregate"):
                router.faults.fail(code, command, times=2)
            pipeline.read(end)
            router.faults._failures.clear()
            assert_as_the_events_left_it(pipeline, orders, oracle)
    pipeline.run()
    same(pipeline, orders)
    assert len(router.faults.refused) >= 15


# --- listings ------------------------------------------------------------------------------------


def test_a_listing_that_changes_meanwhile_is_not_confirmed(
    cluster: Cluster, db: str, router: StandIn
) -> None:
    """Guards: the first listing may be that of a deposed primary."""
    coll = cluster.clients["s1"][db]["a"]
    coll.insert_one({})
    source, selection = discover(router.uri, TIMEOUT_MS), Selection.parse(f"{db}.a")
    prove = routers._prove_primary

    def prove_and_drop(*arguments: Any) -> Any:
        coll.drop()
        return prove(*arguments)

    with patch.object(routers, "_prove_primary", prove_and_drop):
        found = source.list_collections(selection)
    assert source.confirm(found, 5) is None
    again = source.list_collections(selection)
    assert again.collections == ()
    edge = source.confirm(again, 5)
    assert edge is not None
    assert edge >= again.time >= again.since


# --- names ---------------------------------------------------------------------------------------


def test_a_checkpoint_through_routers_is_not_one_of_the_shards_read_directly(
    cluster: Cluster, db: str, router: StandIn
) -> None:
    orders = Orders(cluster, db, 5)
    through = Routed(cluster, router.uri, orders.full)
    direct = Capture(cluster.config.uri, orders.full, shards_direct="true")
    assert through.source.name == f"router of {direct.source.name}"
    for offset, source in ((through.offset, direct.source), (direct.offset, through.source)):
        with pytest.raises(ForeignOffset, match="'router of cluster"):
            require_own(offset, source)


def test_a_task_opens_a_router_without_asking_it(mongod: ReplicaSet) -> None:
    with StandIn.of_replica_set(mongod.uri) as router:
        source = reopen(router.uri, TIMEOUT_MS, False)
        assert not source.reads_match_events
        assert router.asked == set()
    assert reopen(mongod.uri, TIMEOUT_MS, False).reads_match_events


# --- images --------------------------------------------------------------------------------------


@pytest.mark.parametrize("images", ["auto", "update_lookup"])
def test_a_document_is_looked_up_and_not_its_twin(
    cluster: Cluster, db: str, router: StandIn, images: str
) -> None:
    """Guards: by the _id alone either is found. With `update_lookup` the router looks it up."""
    orders = Orders(cluster, db, 0)
    off = {"changeStreamPreAndPostImages": {"enabled": False}}
    for shard in cluster.shards:
        cluster.clients[shard][db].command({"collMod": "orders", **off})
    for number in range(4):
        for shard, region in (("s1", 1), ("s2", 6)):
            twin = {"_id": number, "region": region, "number": 1}
            orders.run(shard, {"insert": "orders", "documents": [twin]})
    pipeline = Routed(cluster, router.uri, orders.full, mode="latest", images=images)
    orders.update(1)
    orders.update(6)
    pipeline.run()
    found = {(id_of(row), row.document_key): row for row in pipeline.rows}
    assert len(found) == 8
    for row in pipeline.rows:
        assert row.after is not None
        region = bson.json_util.loads(row.document_key or "")["region"]
        assert bson.decode(bytes(row.after))["region"] == region  # type: ignore[arg-type]


# --- what a router does not tell -----------------------------------------------------------------


def test_a_plan_names_what_a_router_does_not_have(
    cluster: Cluster, db: str, router: StandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.fill(db, "all")
    options = options_of(router.uri, f"{db}.all", **{"split.size.mb": "1"})
    found = inquiry.plan(options)
    assert found.problems == []
    assert found.window is None
    assert found.why_streams == "the source is a router"
    (work,) = found.work
    assert (work.documents, work.strategy) == (100, "sampling")
    assert "splitVector is refused" in work.reason
    assert {need.action for need in found.optional} == {"collStats", "find"}
    show(Terminal(), found, estimate(found.work, options, 20.0), 20.0)
    text = " ".join(capsys.readouterr().out.split())
    assert "router of cluster" in text
    assert "replica set" not in text
    assert "its window is unknown, because a router does not report it" in text
    assert "read by change streams, because the source is a router" in text
    assert "orphans may be counted" in text


def test_mirrors_are_refused_if_the_shard_keys_may_not_be_read() -> None:
    with pytest.raises(UnsuitableSource, match=r"Grant find on config\.collections"):
        require_shard_keys(None)
    assert find_shard_keys(None, Selection.parse("a.b")) is None


def test_what_needs_an_oplog_is_refused_with_a_reason(
    cluster: Cluster, db: str, router: StandIn
) -> None:
    orders = Orders(cluster, db, 3)
    with pytest.raises(UnsuitableSource, match="how far back the oplogs"):
        start_of(discover(router.uri, TIMEOUT_MS), "earliest", None)
    with pytest.raises(Exception, match="the source is a router"):
        inquiry.preflight(options_of(router.uri, orders.full, **{"read.by": "oplog"}))


def test_a_copy_without_the_shard_key_is_refused(
    cluster: Cluster, db: str, router: StandIn
) -> None:
    orders = Orders(cluster, db, 3)
    options = options_of(router.uri, orders.full, fields="n")
    with pytest.raises(BadOption, match="'fields' cannot be used through a router"):
        inquiry.preflight(options)
    later = options_of(router.uri, orders.full, fields="n", mode="latest")
    assert inquiry.preflight(later)
    assert stream_order.fields_error().remedy
