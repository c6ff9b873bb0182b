"""`plan` for a cluster whose shards are read directly: what all hold, and each by its name."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import Any

import pytest
from bson.int64 import Int64
from bson.timestamp import Timestamp
from click.testing import CliRunner, Result

from cdc.cli import plan
from cdc.model import MIN_KEY, Copying, Namespace, Selection
from cdc.mongo.connection import Need, on_shards
from cdc.mongo.connection.privileges import optional_needs, required_needs
from cdc.mongo.topology import discover
from tests.mongo.access import SECRET, GuardedCluster
from tests.mongo.capture import Client, asked
from tests.mongo.cluster import Cluster

MIB = 2**20
SHARDS = ("s1", "s2")
ORDERS, PLAIN = Namespace("planned", "orders"), Namespace("planned", "plain")
NEEDED = required_needs(Selection.of([ORDERS]), SHARDS)
BETTER = [
    *(need for shard in SHARDS for need in optional_needs([ORDERS], shard)),
    *optional_needs([PLAIN], "s2"),
]


@pytest.fixture(scope="module")
def guarded(guarded_shards: GuardedCluster) -> GuardedCluster:
    """With five MiB in `planned.orders`, half of it on each shard, and one in `planned.plain`."""
    servers = guarded_shards.cluster
    servers.create_database("planned", "s2")
    servers.fill("planned", "orders")
    servers.clients["s2"]["planned"]["plain"].insert_many({"pad": "x" * 10_000} for _ in range(90))
    return guarded_shards


def ran(uri: str, *arguments: str, collections: str = f"{ORDERS},{PLAIN}") -> Result:
    given = (f"uri={uri}", f"collections={collections}", "shards.direct=true", "split.size.mb=1")
    options = [argument for each in (*given, "sink.path=/lake") for argument in ("-o", each)]
    result = CliRunner().invoke(plan.main, [*options, *arguments])
    assert SECRET not in result.output
    return result


def reported(uri: str, code: int = 0, **settings: str) -> dict[str, Any]:
    result = ran(uri, "--json", **settings)
    assert result.exit_code == code, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_each_line_is_true(guarded: GuardedCluster) -> None:
    """Guards: a sharded collection is that of all shards, and one that is not that of its own."""
    uri = guarded.user([*NEEDED, *BETTER])
    found = reported(uri)
    orders, plain = found["collections"]
    stats = [
        guarded.cluster.clients[shard].planned.command("collStats", "orders") for shard in SHARDS
    ]
    assert orders["documents"] == sum(each["count"] for each in stats) == 100
    assert orders["bytes"] == sum(each["size"] for each in stats)
    assert (orders["shards"], plain["shards"]) == (["s1", "s2"], ["s2"])
    assert (orders["strategy"], plain["strategy"]) == ("splitVector", "single")
    assert (plain["documents"], plain["splits"]) == (90, 1)
    source = discover(uri, 5000, shards_direct=True)
    sharded = guarded.cluster.metadata["collections"].find_one({"_id": str(ORDERS)})
    cut = source.ranges(Copying(ORDERS, bytes(sharded["uuid"]), None, MIN_KEY), 1000, MIB)
    assert orders["splits"] == len(cut) == 5
    assert (found["source"], found["shards"]) == (source.name, ["s1", "s2"])
    assert all(each["held"] for each in found["privileges"])
    assert found["problems"] == []


def test_no_document_is_read(guarded: GuardedCluster) -> None:
    uri = guarded.user([*NEEDED, *BETTER])
    with ExitStack() as stack:
        operations = [
            stack.enter_context(asked(guarded.cluster.clients[shard]["planned"]))
            for shard in SHARDS
        ]
        reported(uri)
    for seen in operations:
        assert seen
        assert sum(each.get("docsExamined", 0) for each in seen) == 0


def test_the_oplog_reaches_back_as_far_as_the_shortest_of_all_shards() -> None:
    """Guards: the history of one shard is lost with that of all. And nobody needs to log in."""
    with Cluster() as servers:  # of its own, because the time of one shard runs away
        servers.create_database("planned")
        servers.shard_collection("planned", "orders", {"k": 1})
        now = servers.clients["cfg"].admin.command("ping")["operationTime"].time
        for passing, (longer, shorter) in enumerate((SHARDS, SHARDS[::-1]), 1):
            write(servers.clients[longer], Timestamp(now + passing * 60, 1))
            found = reported(servers.config.uri, collections=str(ORDERS))
            entries = servers.clients[shorter].local["oplog.rs"].find().sort("$natural", 1)
            first = next(entries.limit(1))["ts"]
            assert found["oplog"]["shard"] == shorter
            assert found["oplog"]["first"] == f"{first.time}:{first.inc}"
            assert {each["held"] for each in found["privileges"]} == {None}


def write(client: Client, at: Timestamp) -> None:
    """The server takes the cluster time for its own, and its oplog is longer by as much."""
    unsigned = {"hash": bytes(20), "keyId": Int64(0)}
    with client.start_session() as session:
        session.advance_cluster_time({"clusterTime": at, "signature": unsigned})
        client.elsewhere.noise.insert_one({}, session=session)


@pytest.mark.parametrize(
    "lost",
    [
        [Need("find", "config", "chunks")],
        [Need("find", "config", "transactions", "s2")],
        [Need("changeStream", "planned", "", shard) for shard in SHARDS],
    ],
    ids=lambda lost: str(lost[0]),
)
def test_what_a_run_cannot_do_without_fails_and_the_rest_is_reported(
    guarded: GuardedCluster, lost: list[Need]
) -> None:
    """Guards: what several shards refuse is one problem."""
    found = reported(guarded.user(need for need in NEEDED if need not in lost), 1)
    [problem] = found["problems"]
    assert (problem["error"], problem["exit_code"]) == ("NotPermitted", 1)
    assert f"lacks {lost[0]}{on_shards(need.shard for need in lost)}." in problem["message"]
    lacking = [
        Need(each["action"], each["db"], each["coll"], each["shard"])
        for each in found["privileges"]
        if each["required"] and not each["held"]
    ]
    assert lacking == lost
    assert len(found["collections"]) == 2
    assert found["oplog"]["reported_by"] == "local.oplog.rs"


def test_the_tables_name_the_shards(guarded: GuardedCluster) -> None:
    held = [need for need in BETTER if need != Need("splitVector", *ORDERS, "s1")]
    result = ran(guarded.user([*NEEDED, *held]), "--rate", "0.001")
    assert result.exit_code == 0, result.output
    rows = [[cell.strip() for cell in line.split("│")] for line in result.stdout.splitlines()]
    privileges = {(row[1], row[2]): row[3:5] for row in rows if len(row) == 6 and row[1]}
    assert privileges["splitVector", "no"] == ["planned.orders on s2", "planned.orders on s1"]
    assert ["", "", "", "planned.plain on s2", "", ""] in rows
    assert privileges["changeStream", "yes"] == ["planned.* on s1, s2", ""]
    [orders] = [row for row in rows if row[1:2] == [str(ORDERS)]]
    assert orders[3:6] == ["5.0 MiB on s1, s2", "sampling, splitVector", "6"]
    assert "s1: splitVector is refused (code 13)" in orders[7]
    assert "s2: the server walks" in orders[7]
    for text in ("on s1, s2; changes are read from database planned", "orphans may be counted"):
        assert text in result.stdout
    assert "(local.oplog.rs on s" in result.stdout
    assert "LESS than a micro-batch" in result.stdout
