"""Whatever is wrong with the input is one error of ours: what, on what, what to do; no secrets."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pymongo.database import Database
from pymongo.errors import OperationFailure, PyMongoError

from cdc import options as declared
from cdc import source
from cdc.demo import ReplicaSet
from cdc.demo.mongod import Member, embedded_mongod, find_free_ports
from cdc.errors import (
    BadOption,
    CdcError,
    ForeignOffset,
    HistoryLost,
    NotPermitted,
    SourceUnreachable,
    UnsuitableSource,
)
from cdc.tasks import task
from tests.mongo.abilities import abilities
from tests.mongo.access import SECRET, Guarded
from tests.mongo.capture import Client, Document, failing, filled


def begin(uri: str, collections: str, **more: str) -> dict[str, Any]:
    """What a query does first."""
    given = {name.replace("_", "."): value for name, value in more.items()}
    given = {"server.timeout.ms": "2000", "retry.seconds": "1", **given}
    parsed = declared.parse({"uri": uri, "collections": collections, **given})
    return source.ChangeReader(parsed, None).initialOffset()  # type: ignore[arg-type]


def refused(kind: type[CdcError], run: Callable[[], Any]) -> str:
    with pytest.raises(kind) as raised:
        run()
    assert raised.value.remedy
    assert SECRET not in str(raised.value)
    return str(raised.value)


def test_an_unknown_option_is_answered_with_the_nearest() -> None:
    """Guards: no option is ignored in silence."""
    given = {"uri": f"mongodb://u:{SECRET}@h/", "collections": "a.b", "split.size": "1"}
    assert "'split.size.mb'" in refused(BadOption, lambda: declared.parse(given))


@pytest.mark.parametrize(
    "uri",
    [
        f"http://user:{SECRET}@host/",
        f"mongodb://user:{SECRET}@ho st:99999/",
        f"mongodb://user:{SECRET}@@host/",
        f"mongodb://user:{SECRET}@host:port/",
        "",
    ],
)
def test_a_malformed_connection_string_is_refused_and_not_repeated(uri: str) -> None:
    """Guards: the text of a connection string is in no message."""
    refused(BadOption, lambda: begin(uri, "a.b"))


def test_a_connection_string_from_elsewhere_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """Guards: `env:` and `file:`."""
    assert "NO_SUCH_VARIABLE" in refused(BadOption, lambda: begin("env:NO_SUCH_VARIABLE", "a.b"))
    with pytest.raises(BadOption, match="cannot be read"):
        begin(f"file:{tmp_path / 'none'}", "a.b")


def test_a_server_that_does_not_answer_fails_in_time() -> None:
    """Guards: server.timeout.ms."""
    port = find_free_ports(1)[0]
    began = time.monotonic()
    uri = f"mongodb://user:{SECRET}@127.0.0.1:{port}/?replicaSet=rs0"
    refused(SourceUnreachable, lambda: begin(uri, "a.b", server_timeout_ms="700"))
    assert time.monotonic() - began < 3


def test_a_server_that_is_no_replica_set_is_refused(tmp_path: Path) -> None:
    """Guards: without an oplog there are no changes."""
    port = find_free_ports(1)[0]
    arguments = ["--bind_ip", "127.0.0.1", "--nounixsocket", "--wiredTigerCacheSizeGB", "0.25"]
    member = Member(port, embedded_mongod(), arguments, tmp_path)
    member.launch()
    try:
        member.wait_answering()
        uri = f"mongodb://127.0.0.1:{port}/"
        assert "--replSet" in refused(UnsuitableSource, lambda: begin(uri, "a.b"))
    finally:
        member.kill()


def test_what_is_no_ordinary_collection_is_refused_by_name(
    mongod: ReplicaSet, database: Database[Document], caplog: pytest.LogCaptureFixture
) -> None:
    """Guards: missing, view, time series, system; by expression they are left out, with a word."""
    filled(database, "a", [1])
    database.create_collection("view", viewOn="a", pipeline=[])
    refusals = {
        "none": "no collection",
        "view": "is a view",
        "system.views": "is a system collection",
    }
    try:
        database.create_collection("series", timeseries={"timeField": "t"})
    except OperationFailure:  # before 5.0 there are none
        assert not abilities(database.client).reads_at_a_time
    else:
        refusals["series"] = "is a timeseries"
        refusals["system.buckets.series"] = "is a system collection"
    for name, said in refusals.items():
        text = refused(
            UnsuitableSource, lambda name=name: begin(mongod.uri, f"{database.name}.{name}")
        )
        assert said in text
        assert f"{database.name}.{name}" in text
    caplog.set_level(logging.INFO, logger="cdc.mongo.collections.enumerator")
    refused(UnsuitableSource, lambda: begin(mongod.uri, f"{database.name}.(view|series)"))
    begin(mongod.uri, f"{database.name}.(a|view|series|system.*)")
    left_out = {f"{database.name}.{name}" for name in {"view", "series"} & refusals.keys()}
    reported = sorted(record.getMessage() for record in caplog.records)
    assert [text.partition(" ")[0] for text in reported] == sorted(left_out)
    assert "matches 'collections', but is left out: it is a view" in reported[-1]


def test_a_start_in_the_future_is_refused(mongod: ReplicaSet, database: Database[Document]) -> None:
    """Guards: it would wait in silence."""
    filled(database, "a", [1])
    name = f"{database.name}.a"
    for start in ("2199-01-01T00:00:00Z", "2105-01-01", f"{2**32 - 1}:1"):
        with pytest.raises(CdcError):
            begin(mongod.uri, name, mode="timestamp", start=start)
    begin(mongod.uri, name, mode="timestamp", start="2020-01-01T00:00:00Z")


def test_a_start_before_the_oplog_is_lost_history(
    mongod: ReplicaSet, mongo: Client, database: Database[Document]
) -> None:
    """Guards: a lost position ends the run, and is not retried."""
    filled(database, "a", [1])
    options = declared.parse(
        {
            "uri": mongod.uri,
            "collections": f"{database.name}.a",
            "mode": "timestamp",
            "start": "2020-01-01T00:00:00Z",
        }
    )
    reader = source.ChangeReader(options, None)  # type: ignore[arg-type]
    offset = reader.latestOffset(reader.initialOffset(), None)  # type: ignore[arg-type]
    began = time.monotonic()
    with failing(mongo, "alwaysOn", failCommands=["aggregate"], errorCode=286):
        text = refused(HistoryLost, lambda: reader.latestOffset(offset, None))  # type: ignore[arg-type]
    assert "oplog" in text
    assert time.monotonic() - began < 5


def test_a_checkpoint_of_another_source_is_refused(
    mongod: ReplicaSet, database: Database[Document]
) -> None:
    """Guards: offsets say whose they are."""
    filled(database, "a", [1])
    offset = begin(mongod.uri, f"{database.name}.a")
    given = {"uri": mongod.uri, "collections": f"{database.name}.a"}
    reader = source.ChangeReader(declared.parse(given), None)  # type: ignore[arg-type]
    other = {**offset, "source": "another"}
    refused(ForeignOffset, lambda: reader.latestOffset(other, None))  # type: ignore[arg-type]


@pytest.mark.parametrize("command", ["listCollections", "ping"])
def test_a_refusal_of_any_first_command_names_the_privilege(
    mongod: ReplicaSet, mongo: Client, database: Database[Document], command: str
) -> None:
    """Guards: code 13 is NotPermitted wherever it comes from."""
    filled(database, "a", [1])
    with failing(mongo, "alwaysOn", failCommands=[command], errorCode=13):
        text = refused(NotPermitted, lambda: begin(mongod.uri, f"{database.name}.a"))
        assert "Privileges" in text


def test_a_user_without_rights_gets_that_error(guarded: Guarded) -> None:
    """Guards: wrong password, no user, no role; credentials reach direct connections too."""
    filled(guarded.client["rights"], "a", [1])
    for uri in (
        guarded.user(),
        guarded.uri("root", SECRET + "x"),
        guarded.uri("nobody"),
        guarded.replica_set.uri,
    ):
        text = refused(NotPermitted, lambda uri=uri: begin(uri, "rights.a"))
        assert "authSource" in text
    assert copied(guarded.uri("root")) == ["read"]


def copied(uri: str) -> list[str]:
    """The rows of the first batch."""
    offset = begin(uri, "rights.a")
    given = {"uri": uri, "collections": "rights.a"}
    reader = source.ChangeReader(declared.parse(given), None)  # type: ignore[arg-type]
    end = reader.latestOffset(offset, None)  # type: ignore[arg-type]
    return [
        row.op
        for partition in reader.partitions(offset, end)
        for split in partition.splits  # type: ignore[attr-defined]
        for row in task.read_split(split, reader._options, True)
    ]


def test_a_reader_needs_the_privilege_to_find_by_uuid_only_before_6_0(guarded: Guarded) -> None:
    """Guards: the documented table of privileges."""
    rights = guarded.client["rights"]
    rights.drop_collection("a")
    filled(rights, "a", [1])
    reading = [{"role": "read", "db": "rights"}]
    assert copied(guarded.user(roles=[*reading, *guarded.by_uuid])) == ["read"]
    reader = guarded.user(roles=reading)
    if abilities(guarded.client).names_the_incarnation:
        assert copied(reader) == ["read"]
    else:
        assert "Privileges" in refused(NotPermitted, lambda: copied(reader))


def test_no_error_of_the_driver_reaches_the_user(guarded: Guarded) -> None:
    """Guards: the cause is chained, not pasted."""
    filled(guarded.client["chained"], "a", [1])
    with pytest.raises(NotPermitted) as raised:
        begin(guarded.user(), "chained.a")
    assert isinstance(raised.value.__cause__, PyMongoError)
    assert str(raised.value.__cause__) not in str(raised.value)
