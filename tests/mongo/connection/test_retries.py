"""A read begins anew after a listed error, and after no other, for as long as the option allows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import pymongo.errors
import pytest
from pymongo.database import Database

from cdc.demo import ReplicaSet
from cdc.errors import CdcError, LoginRefused, TransientError
from cdc.model import Change, Split, StreamSplit
from cdc.mongo.connection import Member, member, translate_error
from cdc.mongo.connection.error_codes import is_login
from cdc.mongo.read import IMAGES, change_stream, oplog, range_scan, rewind
from cdc.tasks import task
from tests.mongo.capture import (
    TIMEOUT_MS,
    Capture,
    Client,
    Document,
    Watched,
    failing,
    filled,
    id_of,
)

Begin = Callable[..., Capture]

# What drivers try a read again for, a change stream is resumed for, and shards refuse in passing.
# Of a server that is no primary, or is going, a driver makes a lost connection, and looks anew.
NOT_PRIMARY = {
    "PrimarySteppedDown": 189,
    "NotWritablePrimary": 10107,
    "InterruptedAtShutdown": 11600,
    "InterruptedDueToReplStateChange": 11602,
}
QUICK = "heartbeatFrequencyMS=500&serverMonitoringMode=poll"
LISTED = {
    "HostUnreachable": 6,
    "HostNotFound": 7,
    "CursorNotFound": 43,
    "MaxTimeMSExpired": 50,
    "StaleShardVersion": 63,
    "NetworkTimeout": 89,
    "FailedToSatisfyReadPreference": 133,
    "ReadConcernMajorityNotAvailableYet": 134,
    "StaleEpoch": 150,
    "NetworkInterfaceExceededTimeLimit": 202,
    "RetryChangeStream": 234,
    "CursorKilled": 237,
    "ExceededTimeLimit": 262,
    "SocketException": 9001,
}
READS = ["getMore", "find"]
OTHERS = {
    "InternalError": 1,
    "Unauthorized": 13,
    "OperationFailed": 96,
    "Interrupted": 11601,
}


@pytest.fixture
def splits(
    mongod: ReplicaSet,
    capture: Begin,
    database: Database[Document],
    monkeypatch: pytest.MonkeyPatch,
) -> dict[str, tuple[Split, Capture]]:
    """Two of twenty changes, and one of twenty documents, each read in batches of seven."""
    monkeypatch.setattr(change_stream, "_BATCH", 7)
    monkeypatch.setattr(oplog, "_BATCH", 7)
    monkeypatch.setattr(range_scan, "_BATCH", 7)
    monkeypatch.setattr(rewind, "BYTES", 50)  # where there are no reads at a time
    coll = filled(database, "a", [])
    uri = f"{mongod.uri}&{QUICK}"
    pipelines = {
        "slice": capture("a", uri=uri, mode="latest", read_by="change_stream"),
        "oplog": capture("a", uri=uri, mode="latest"),
        "scan": capture("a", uri=uri, documents_per_split=50),
    }
    coll.insert_many([{"_id": n} for n in range(20)])
    found = {}
    for name, pipeline in pipelines.items():
        ends = pipeline.plan()
        [split] = [
            split
            for split in pipeline.planner.splits(pipeline.offset, ends, control=False)
            if name != "scan" or hasattr(split, "range")
        ]
        found[name] = split, pipeline
    return found


def read(splits: dict[str, tuple[Split, Capture]], kind: str) -> Iterator[Change]:
    split, pipeline = splits[kind]
    return task.read_split(split, pipeline.options, True)


@pytest.mark.parametrize("kind", ["slice", "oplog", "scan"])
def test_after_each_listed_error_the_rest_is_read_and_nothing_twice(
    splits: dict[str, tuple[Split, Capture]], mongo: Client, kind: str
) -> None:
    listed = LISTED | ({} if kind == "scan" else NOT_PRIMARY | {"QueryPlanKilled": 175})
    for name, code in listed.items():
        rows = read(splits, kind)
        ids = [id_of(next(rows))]
        with failing(mongo, {"times": 1}, failCommands=READS, errorCode=code):
            ids += map(id_of, rows)
        assert ids == list(range(20)), name


@pytest.mark.parametrize("kind", ["slice", "scan"])
def test_after_any_other_error_nothing_is_asked_again(
    splits: dict[str, tuple[Split, Capture]], mongo: Client, kind: str
) -> None:
    for name, code in OTHERS.items():
        rows = read(splits, kind)
        next(rows)
        with (
            failing(mongo, {"times": 1}, failCommands=READS, errorCode=code),
            pytest.raises(CdcError) as raised,
        ):
            list(rows)
        assert not isinstance(raised.value, TransientError), name


def changes_of(
    splits: dict[str, tuple[Split, Capture]], before: Callable[[Mapping[str, Any]], None]
) -> list[Any]:
    split, pipeline = splits["slice"]
    inner: Callable[[], Member] = partial(member, pipeline.options.uri, TIMEOUT_MS)
    assert isinstance(split, StreamSplit)
    read = change_stream.read(lambda: Watched(inner(), before), split, IMAGES["off"], 0.5)
    return [event for events in read for event in events]


def test_a_read_that_fails_at_the_same_place_whenever_it_is_begun_anew_ends(
    splits: dict[str, tuple[Split, Capture]], mongo: Client
) -> None:
    """Guards: what was handed out before, and comes again, is no progress."""
    replies = 0

    def fail_after_the_second(command: Mapping[str, Any]) -> None:
        nonlocal replies
        replies = 0 if "aggregate" in command else replies + ("getMore" in command)
        if replies == 3:
            fail_once(mongo)

    began = time.monotonic()
    with pytest.raises(TransientError, match="code 262"):
        changes_of(splits, fail_after_the_second)
    assert time.monotonic() - began < 10


def test_a_failure_after_a_long_time_without_one_does_not_end_the_read(
    splits: dict[str, tuple[Split, Capture]], mongo: Client
) -> None:
    """Guards: patience begins with a failure: a scan may take longer, and say nothing meanwhile."""
    failed = False

    def wait_and_fail(command: Mapping[str, Any]) -> None:
        nonlocal failed
        if "getMore" in command and not failed:
            failed = True
            time.sleep(0.8)
            fail_once(mongo)

    assert len(changes_of(splits, wait_and_fail)) == 20
    assert failed


def fail_once(mongo: Client) -> None:
    data = {"failCommands": ["getMore"], "errorCode": 262, "appName": "mongodb-cdc"}
    mongo.admin.command({"configureFailPoint": "failCommand", "mode": {"times": 1}, "data": data})


@pytest.mark.parametrize("code", [11, 18])
def test_a_login_that_is_refused_while_a_server_is_looked_for_is_one(code: int) -> None:
    """Guards: under load the driver reports it as the reason why it found no server."""
    reply = {"ok": 0.0, "errmsg": "Authentication failed.", "code": code}
    cause = pymongo.errors.OperationFailure("Authentication failed.", code, reply)
    error = pymongo.errors.ServerSelectionTimeoutError(f"127.0.0.1:1: {cause}, Timeout: 2.0s")
    assert is_login(error)
    reported = translate_error(error, "Asking")
    assert isinstance(reported, LoginRefused)
    assert f"code {code}" in str(reported)
    assert not is_login(pymongo.errors.ServerSelectionTimeoutError("127.0.0.1:18: refused"))
