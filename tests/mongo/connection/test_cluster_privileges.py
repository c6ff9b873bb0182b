"""A cluster with access control: the documented privileges are enough; without one it is named."""

from __future__ import annotations

import itertools
import logging
from dataclasses import replace
from typing import Any

import pytest
from bson.timestamp import Timestamp

from cdc import options as declared
from cdc.errors import NotPermitted, SourceUnreachable
from cdc.model import Namespace, Selection
from cdc.mongo.connection import Need, on_shards
from cdc.mongo.connection.privileges import missing_needs, optional_needs, required_needs
from cdc.mongo.inspect import Wanted, check
from cdc.mongo.topology import sharded_cluster
from cdc.mongo.topology.replica_set import ReplicaSet
from cdc.source import inquiry
from tests.mongo.access import SECRET, GuardedCluster
from tests.mongo.capture import Capture, Document, document, replayed, until

SHARDS = ("s1", "s2")
ORDERS = Namespace("shop", "orders")
NEEDED = required_needs(Selection.of([ORDERS]), SHARDS)
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def guarded(guarded_shards: GuardedCluster) -> GuardedCluster:
    """With `shop.orders`, half of it on each shard."""
    guarded_shards.cluster.create_database("shop")
    guarded_shards.cluster.fill("shop", "orders")
    return guarded_shards


def options(uri: str, collections: str = str(ORDERS)) -> dict[str, str]:
    given = {"uri": uri, "collections": collections, "shards.direct": "true"}
    return {**given, "server.timeout.ms": "5000"}


def captured(uri: str, collections: str) -> Capture:
    return Capture(
        uri, collections, documents_per_split=None, splits_per_batch=8, shards_direct="true"
    )


@pytest.mark.parametrize("extra", [[], ["splitVector", "collStats"]])
def test_a_user_with_the_documented_privileges_copies_and_follows(
    guarded: GuardedCluster, caplog: pytest.LogCaptureFixture, extra: list[str]
) -> None:
    """Guards: the documented table is enough on each server; and the log names the shard that was
    cut."""
    caplog.set_level(logging.INFO, logger="cdc.mongo.collections.split_points")
    coll, servers = f"orders{next(_numbers)}", guarded.cluster
    servers.fill("shop", coll)
    namespace = Namespace("shop", coll)
    allowed = [need for shard in SHARDS for need in optional_needs([namespace], shard)]
    optionally = [need for need in allowed if need.action in extra]
    uri = guarded.user([*NEEDED, *optionally], guarded.by_uuid)
    inquiry.preflight(declared.parse(options(uri, str(namespace))))
    pipeline = captured(uri, str(namespace))
    pipeline.run()
    # A sample gives a power of 2 splits.
    cuts = "2 cut points by splitVector" if extra else "3 cut points by sampling"
    for shard in SHARDS:
        assert f"{namespace} on {shard}: {cuts}: " in caplog.text
    for shard, k in (("s1", 7), ("s2", 57)):
        change = {"q": {"k": k}, "u": {"$set": {"n": 1}}}
        servers.run(shard, "shop", {"update": coll, "updates": [change]})
    servers.run("s1", "shop", {"delete": coll, "deletes": [{"q": {"k": 8}, "limit": 1}]})
    pipeline.run()
    held = [document(raw) for raw in replayed(pipeline.rows, *namespace).values()]
    found = {each["_id"]: each.get("n", 0) for each in held if each is not None}
    assert found == {k: int(k in (7, 57)) for k in range(100) if k != 8}


@pytest.mark.parametrize("need", NEEDED, ids=lambda need: f"{need}{on_shards([need.shard])}")
def test_a_run_without_a_privilege_fails_at_its_start_and_names_it(
    guarded: GuardedCluster, need: Need
) -> None:
    """Guards: not in a task hours later, and not 'refused (code 13)'."""
    uri = guarded.user(each for each in NEEDED if each != need)
    with pytest.raises(NotPermitted) as raised:
        inquiry.preflight(declared.parse(options(uri)))
    assert f"who lacks {need}{on_shards([need.shard])}." in str(raised.value)
    assert "Privileges" in str(raised.value)
    assert SECRET not in str(raised.value)


def test_what_several_shards_do_not_grant_is_reported_once(guarded: GuardedCluster) -> None:
    uri = guarded.user(need for need in NEEDED if need.db != "local")
    lacking = r'lacks find on \{db: "local", collection: "oplog.rs"\} on s1, s2\.'
    with pytest.raises(NotPermitted, match=lacking):
        inquiry.preflight(declared.parse(options(uri)))


def test_a_shard_that_does_not_know_the_user_is_named(
    guarded: GuardedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Guards: users are made on each shard, and one is easily forgotten; a start that asks for two
    minutes before it says so."""
    uri = guarded.user(need for need in NEEDED if need.shard != "s2")
    with pytest.raises(NotPermitted, match="Connecting to s2: the server refused the user"):
        inquiry.preflight(declared.parse(options(uri)))
    assert "trying again" not in caplog.text


def test_a_shard_that_does_not_answer_is_named(guarded: GuardedCluster) -> None:
    """Guards: shards have addresses of their own, which this machine may not reach."""
    uri = guarded.user(NEEDED)
    found = sharded_cluster.discover(uri, 5000)
    absent = ReplicaSet(uri, 300, "s3", "s3/127.0.0.1:1")
    wanted = Wanted(Selection.of([ORDERS]))
    metadata = replace(found.metadata, parts={**found.parts, "s3": absent})
    with pytest.raises(SourceUnreachable, match="Connecting to s3: "):
        check(replace(found, metadata=metadata), wanted)


def test_the_builtin_role_read_is_enough(guarded: GuardedCluster) -> None:
    """Guards: what most users will grant, as documented."""
    read = [{"role": "read", "db": db} for db in ("shop", "config", "local")]
    uri = guarded.user(roles={"": [read[1]], **dict.fromkeys(SHARDS, read)})
    inquiry.preflight(declared.parse(options(uri)))
    assert missing_needs(sharded_cluster.discover(uri, 5000).clients, NEEDED) == []


def test_a_regular_expression_needs_every_database_of_each_shard(guarded: GuardedCluster) -> None:
    pattern = "shop.orders.*"
    needs = required_needs(Selection.parse(pattern), SHARDS)
    inquiry.preflight(declared.parse(options(guarded.user(needs), pattern)))
    lacking = Need("listCollections", "", "", "s2")
    uri = guarded.user(need for need in needs if need != lacking)
    with pytest.raises(NotPermitted) as raised:
        inquiry.preflight(declared.parse(options(uri, pattern)))
    assert f"lacks {lacking} on s2." in str(raised.value)


def test_such_a_user_may_pass_the_time_on_from_shard_to_shard(guarded: GuardedCluster) -> None:
    """Guards: a time that another shard has signed is taken without advanceClusterTime, so that a
    shard may be asked to read at a time that it has not come to."""
    parts = sharded_cluster.discover(guarded.user(NEEDED), 5000).parts
    first, second = (parts[shard].client for shard in SHARDS)

    def ahead() -> Any:
        """A time that the second shard has not come to yet."""
        insert = {"insert": "noise", "documents": [{} for _ in range(50)]}
        guarded.cluster.clients["s1"]["elsewhere"].command(insert)
        reported = first.admin.command("ping")["$clusterTime"]
        return reported if reported["clusterTime"] > time_of(second.admin.command("ping")) else None

    found: list[Any] = []
    until(lambda: found.append(ahead()) or found[-1])
    [reported] = found[-1:]
    with second.start_session() as session:
        session.advance_cluster_time(reported)
        concern = {"afterClusterTime": reported["clusterTime"]}
        find = {"find": "orders", "readConcern": concern, "limit": 1}
        reply = second["shop"].command(find, session=session)
    assert reply["cursor"]["firstBatch"]
    assert time_of(reply) >= reported["clusterTime"]


def time_of(reply: Document) -> Timestamp:
    found: Timestamp = reply["$clusterTime"]["clusterTime"]
    return found
