"""What the oplog does not hold any more is an error that says how far it reaches."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from bson.timestamp import Timestamp
from pymongo import WriteConcern
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from cdc import options as declared
from cdc import source
from cdc.demo import ReplicaSet
from cdc.errors import HistoryLost, TransientError
from cdc.model import resume_token, timestamp
from cdc.mongo.plan import Limits, history_gap, next_scan
from cdc.source import inquiry
from tests.mongo.capture import Capture, Client, Contents, contents, failing, filled, until
from tests.mongo.forgetful import TEST_COMMANDS, forgetful, oldest, push_out
from tests.mongo.plan.test_reselect import after_the_listing

_UNAUTHORIZED = 13


@pytest.fixture(scope="module")
def server() -> Iterator[ReplicaSet]:
    with forgetful() as running:
        yield running


@pytest.fixture(scope="module")
def client(server: ReplicaSet) -> Iterator[Client]:
    with server.client() as client:
        yield client


@pytest.fixture(scope="module")
def gone(client: Client) -> Timestamp:
    """A time that the oplog does not reach back to any more."""
    client.shop.orders.insert_one({"_id": 0})
    time: Timestamp = client.admin.command("ping")["operationTime"]
    push_out(client, time)
    return time


def given(server: ReplicaSet, **options: str) -> dict[str, str]:
    return {"uri": server.uri, "collections": "shop.orders", **options}


def starts(gone: Timestamp) -> list[dict[str, str]]:
    return [
        {"mode": "timestamp", "start": timestamp.text(gone)},
        {"mode": "token", "start": resume_token.position_after(gone)},
        {"from": timestamp.text(gone)},
    ]


@pytest.mark.parametrize("number", [0, 1, 2], ids=["timestamp", "token", "from"])
def test_a_start_before_the_oplog_names_the_oldest_time(
    server: ReplicaSet, client: Client, gone: Timestamp, number: int
) -> None:
    options = declared.parse(given(server, **starts(gone)[number]))
    name, ask = "from", lambda: source.WindowReader(options, StructType()).partitions()
    if options.from_ is None:
        name, ask = "start", lambda: source.ChangeReader(options, StructType()).initialOffset()
    with pytest.raises(HistoryLost, match=f"in option '{name}'") as caught:
        ask()
    named = re.search(r", only to (\S+)\.$", caught.value.message)
    assert named is not None
    assert gone < timestamp.parse(named[1]) <= oldest(client)


def test_a_start_is_not_asked_for_again_on_a_checkpoint(
    server: ReplicaSet, gone: Timestamp
) -> None:
    """Guards: what the first run began with may have left the oplog long ago."""
    options = given(server, **starts(gone)[0])
    assert inquiry.preflight(declared.parse(options), is_new=False)
    with pytest.raises(HistoryLost):
        inquiry.preflight(declared.parse(options))


def test_earliest_begins_where_the_oplog_begins_now(
    server: ReplicaSet, client: Client, gone: Timestamp
) -> None:
    client.shop.orders.insert_one({"_id": 1})
    pipeline = Capture(server.uri, "shop.orders", mode="earliest")
    assert pipeline.offset.time == oldest(client)
    pipeline.run()
    assert [row.key for row in pipeline.rows] == ["1"]


@pytest.mark.parametrize(("percent", "warns"), [(100, True), (0, False)])
def test_a_run_that_lags_is_warned_long_before(
    server: ReplicaSet,
    client: Client,
    gone: Timestamp,
    caplog: pytest.LogCaptureFixture,
    percent: int,
    warns: bool,
) -> None:
    pipeline = Capture(server.uri, "shop.orders", mode="earliest", oplog_window_warn=str(percent))
    assert gone < pipeline.offset.time
    reader = source.ChangeReader(pipeline.options, StructType())
    for _ in range(3):
        reader.latestOffset(pipeline.offset.to_json(), ReadAllAvailable())
        reported = reader.reportLatestOffset()
    assert reported is not None
    assert reported["metrics"]["oplogWindow"]["percentLeft"] == 0
    warnings = [each for each in caplog.messages if "are left before changes are lost" in each]
    assert len(warnings) == warns
    assert all("oplog: 0.0 hours (0 %)" in each for each in warnings)


def test_an_oplog_that_still_holds_everything_is_no_danger(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Guards: every young deployment would be warned. The server is the test's own: the oplog of
    the shared one holds everything only until other tests have filled it."""
    with ReplicaSet() as young, young.client() as client:
        filled(client.young, "a", [1])
        pipeline = Capture(young.uri, "young.a", mode="earliest", oplog_window_warn="100")
        reader = source.ChangeReader(pipeline.options, StructType())
        reader.latestOffset(pipeline.offset.to_json(), ReadAllAvailable())
        assert reader.reportLatestOffset() is not None
        assert "are left" not in caplog.text
        reader.stop()


# --- while a run stood still ---------------------------------------------------------------------


def standing(server: ReplicaSet, client: Client, name: str, **options: Any) -> Capture:
    """A pipeline that has copied `name`, and whose next changes are lost: one of each kind."""
    coll = filled(client.shop, name, range(20), images=False)
    pipeline = Capture(server.uri, f"shop.{name},shop.{name}[0-9]+", **options)
    filled(client.shop, f"{name}1", [1], images=False)
    filled(client.shop, f"{name}2", [2], images=False)
    pipeline.run()
    coll.delete_one({"_id": 1})
    coll.update_one({"_id": 2}, {"$set": {"n": 7}})
    client.shop[f"{name}1"].drop()
    filled(client.shop, f"{name}3", [3], images=False)
    push_out(client, client.admin.command("ping")["operationTime"])
    return pipeline


def names(name: str) -> list[str]:
    return [name, *(f"{name}{number}" for number in (1, 2, 3))]


def everything(client: Client, name: str) -> dict[str, Contents]:
    return {each: contents(client.shop[each]) for each in names(name)}


def held(pipeline: Capture, client: Client, name: str) -> dict[str, Contents]:
    return {each: pipeline.replayed(client.shop[each]) for each in names(name)}


def test_a_run_that_stood_too_long_ends_and_says_since_when(
    server: ReplicaSet, client: Client
) -> None:
    pipeline = standing(server, client, "failing")
    with pytest.raises(HistoryLost, match="reaches back to") as caught:
        pipeline.plan()
    assert timestamp.text(pipeline.offset.time) in caught.value.message
    assert "on.history.lost" in (caught.value.remedy or "")


def test_after_a_gap_everything_is_copied_again(server: ReplicaSet, client: Client) -> None:
    """Guards: what was deleted or dropped during the gap leaves no trace."""
    pipeline = standing(server, client, "copied", on_history_lost="resync")
    before = pipeline.offset
    following = pipeline.batch()
    assert following.rows == [row for row in following.rows if row.op == "gap"]
    [row] = following.rows
    assert json.loads(row.description or "") == {
        "from": timestamp.text(before.time),
        "to": timestamp.text(following.end.time),
    }
    again = pipeline.restarted(pipeline.options.collections, on_history_lost="resync")
    assert again.planner.splits(following.start, following.end, True) == following.splits, (
        "a replay"
    )
    client.shop.copied.delete_one({"_id": 3})
    pipeline.run()
    assert held(pipeline, client, "copied") == everything(client, "copied")
    client.shop.copied.update_one({"_id": 4}, {"$set": {"n": 9}})
    pipeline.run()
    assert held(pipeline, client, "copied") == everything(client, "copied")


def test_a_collection_that_is_created_after_the_listing_of_a_gap_is_complete(
    server: ReplicaSet, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards: inserts within the gap, of a collection that is not among those to be copied."""
    pipeline = standing(server, client, "late", on_history_lost="resync")
    born = client.shop["late4"]
    after_the_listing(
        monkeypatch, pipeline, lambda: filled(client.shop, born.name, range(9), images=False)
    )
    assert [row.op for row in pipeline.read(pipeline.plan_now()).rows] == ["gap"]
    pipeline.run()
    born.insert_one({"_id": 100})
    pipeline.run()
    assert held(pipeline, client, "late") == everything(client, "late")
    assert pipeline.replayed(born) == contents(born)


def test_a_gap_in_which_all_collections_were_dropped_leaves_nothing(
    server: ReplicaSet, client: Client
) -> None:
    """Guards: mirrors that are emptied only if there is a collection to be copied again."""
    coll = filled(client.shop, "dropped1", range(20), images=False)
    options = {"on_history_lost": "resync", "missing_collections": "wait"}
    pipeline = Capture(server.uri, "shop.dropped[0-9]+", **options)
    pipeline.run()
    coll.drop()
    push_out(client, client.admin.command("ping")["operationTime"])
    pipeline.run()
    assert pipeline.replayed(coll) == contents(coll) == {}


def test_a_second_gap_before_the_copy_leaves_nothing_of_what_was_dropped_in_it(
    server: ReplicaSet, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards: the second gap has the same collections to copy again, so nothing seems new."""
    monkeypatch.setattr(next_scan, "_MAX_PAST_SECONDS", -1)  # in place of a minute's wait
    pipeline = standing(server, client, "twice", on_history_lost="resync")
    gap = pipeline.batch()
    assert gap.end.gap is not None
    born = filled(client.shop, "twice4", range(5), images=False)
    born.insert_many([{"_id": number} for number in range(100, 120)])
    pipeline.planner.limits = Limits(12, 2**30, 1)  # a backlog comes before copies
    backlog = pipeline.batch()
    assert backlog.rows
    assert not backlog.snapshot_splits
    born.drop()
    push_out(client, client.admin.command("ping")["operationTime"])
    pipeline.planner.limits = Limits(10**6, 2**30, 1)
    pipeline.run()
    assert held(pipeline, client, "twice") == everything(client, "twice")
    assert pipeline.replayed(born) == contents(born) == {}


def test_a_gap_may_be_skipped(server: ReplicaSet, client: Client) -> None:
    pipeline = standing(server, client, "skipped", on_history_lost="skip")
    client.shop.skipped.update_one({"_id": 5}, {"$set": {"n": 1}})
    pipeline.run()
    emitted = [(row.op, row.key) for row in pipeline.rows if row.op not in ("read", "create")]
    assert emitted == [("gap", None), ("update", "5")]
    assert not pipeline.resyncs


@pytest.mark.parametrize("policy", ["resync", "skip"])
def test_a_batch_that_was_planned_before_the_gap_and_not_read_is_a_gap_too(
    server: ReplicaSet, client: Client, policy: str
) -> None:
    """Guards: a run that was killed in mid-batch and stood too long could never go on."""
    name = f"killed_{policy}"
    coll = filled(client.shop, name, range(20), images=False)
    pipeline = Capture(server.uri, f"shop.{name}", on_history_lost=policy)
    pipeline.run()
    coll.delete_one({"_id": 1})
    planned = pipeline.plan()
    push_out(client, planned.time)
    again = pipeline.restarted(f"shop.{name}", on_history_lost=policy)
    assert [row.op for row in again.read(planned).rows] == ["gap"]
    again.run()
    is_right = again.replayed(coll) == contents(coll)
    assert is_right == (policy == "resync")
    assert [row.op for row in again.rows].count("gap") == 2


@pytest.mark.slow
def test_changes_that_another_member_still_has_are_not_lost() -> None:
    """Guards: a gap, because the member that was read has been synchronized anew."""
    trio = ReplicaSet(members=3, oplog_megabytes=64, set_parameters=TEST_COMMANDS)
    with trio as replica_set, replica_set.client() as client:
        one = next(member for member in replica_set.members if member is not replica_set.primary())
        config = client.admin.command("replSetGetConfig")["config"]
        config["version"] += 1
        for member in config["members"]:
            member["tags"] = {"role": "one" if member["host"] == one.host else "other"}
        client.admin.command("replSetReconfig", config)
        shop = client.get_database("shop", write_concern=WriteConcern("majority"))
        coll = filled(shop, "orders", range(20))
        tags = "readPreference=secondary&readPreferenceTags=role:one"
        pipeline = Capture(f"{replica_set.uri}&{tags}", "shop.orders", on_history_lost="skip")
        pipeline.run()
        coll.update_one({"_id": 5}, {"$set": {"n": 5}})
        planned = pipeline.plan()
        one.stop()
        data = one.log.parent / "data"
        shutil.rmtree(data)
        data.mkdir()
        time.sleep(1.5)
        coll.update_one({"_id": 6}, {"$set": {"n": 6}})
        one.start()
        until(one.is_data_bearing, 60)
        coll.update_one({"_id": 7}, {"$set": {"n": 7}})
        again = pipeline.restarted("shop.orders", on_history_lost="skip")
        with pytest.raises(TransientError, match=f"no longer in the oplog of .*{one.port}"):
            until(lambda: again.batch().rows)
        with pytest.raises(TransientError, match=f"no longer in the oplog of .*{one.port}"):
            again.read(planned)
        with ExitStack() as stack:
            for member in replica_set.members:
                direct = stack.enter_context(member.client())
                asked = ["find", "serverStatus"]
                stack.enter_context(
                    failing(direct, "alwaysOn", failCommands=asked, errorCode=_UNAUTHORIZED)
                )
            with pytest.raises(TransientError, match="is unknown") as unknown:
                history_gap.require_lost(again.planner.source, again.offset)
            history_gap.require_lost(again.planner.source, again.offset, is_certain=False)
        assert "clusterMonitor" in str(unknown.value.remedy)
        other = Capture(replica_set.uri, "shop.orders", on_history_lost="skip")
        other.offset, other.batches = pipeline.offset, pipeline.batches
        other.run()
        assert other.replayed(coll) == contents(coll)


@pytest.mark.parametrize("policy", ["fail", "skip", "resync"])
def test_a_member_that_lacks_the_changes_and_is_gone_is_no_gap(
    server: ReplicaSet, client: Client, policy: str
) -> None:
    """Guards: it refuses to read them, and does not answer when all members are asked."""
    name = f"refused_{policy}"
    coll = filled(client.shop, name, range(5), images=False)
    pipeline = Capture(server.uri, f"shop.{name}", on_history_lost=policy)
    pipeline.run()
    coll.update_one({"_id": 1}, {"$set": {"n": 1}})
    client.shop.create_collection(f"{name}_other")  # else planning opens no change stream
    with (
        failing(client, "alwaysOn", failCommands=["aggregate"], errorCode=286),
        pytest.raises(TransientError, match="oplog of one member, but still in that of"),
    ):
        pipeline.plan()
    pipeline.run()
    assert [row.op for row in pipeline.rows if row.op in ("gap", "update")] == ["update"]
    assert pipeline.replayed(coll) == contents(coll)


def test_a_copy_that_stood_too_long_begins_again(server: ReplicaSet, client: Client) -> None:
    coll = filled(client.shop, "begun", range(40), images=False)
    pipeline = Capture(server.uri, "shop.begun", on_history_lost="resync")
    pipeline.batch()
    assert pipeline.offset.copying is not None
    coll.delete_many({"_id": {"$in": [1, 30]}})
    push_out(client, client.admin.command("ping")["operationTime"])
    pipeline.run()
    assert pipeline.replayed(coll) == contents(coll)


@pytest.mark.slow
def test_a_server_put_back_from_a_backup_goes_on_with_another_history_that_nobody_reports(
    tmp_path: Path,
) -> None:
    """Documented: a checkpoint knows its replica set by name; `verify` finds what differs."""
    with ReplicaSet() as restored:
        [member] = restored.members
        data = member.log.parent / "data"
        with restored.client() as client:
            filled(client["shop"], "orders", range(3))
            pipeline = Capture(restored.uri, "shop.orders")
            pipeline.run()
            member.stop()
            shutil.copytree(data, tmp_path / "backup")
            member.start()
            restored.wait_writable()
            client.shop.orders.insert_one({"_id": 3})
            client.shop.orders.delete_one({"_id": 0})
            pipeline.run()
            member.stop()
            shutil.rmtree(data)
            shutil.copytree(tmp_path / "backup", data)
            member.start()
            restored.wait_writable()
            client.shop.orders.insert_one({"_id": 4})
            pipeline = pipeline.restarted("shop.orders")
            pipeline.run()
            held, there = pipeline.replayed(client.shop.orders), contents(client.shop.orders)
    assert held.keys() == {"1", "2", "3", "4"}
    assert there.keys() == {"0", "1", "2", "4"}
