"""What the oplog does not hold any more is an error that says how far it reaches."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from bson.timestamp import Timestamp
from pyspark.sql.types import StructType

from cdc import options as declared
from cdc import source
from cdc.errors import HistoryLost
from cdc.model import timestamp, token
from jobs.mongod import ReplicaSet
from tests.mongo.capture import Capture, Client
from tests.mongo.forgetful import forgetful, oldest, push_out


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
        {"mode": "token", "start": token.behind(gone)},
        {"from": timestamp.text(gone)},
    ]


@pytest.mark.parametrize("number", [0, 1, 2], ids=["timestamp", "token", "from"])
def test_a_start_before_the_oplog_names_the_oldest_time(
    server: ReplicaSet, client: Client, gone: Timestamp, number: int
) -> None:
    options = declared.parse(given(server, **starts(gone)[number]))
    name, ask = "from", lambda: source.WindowReader(options, StructType()).partitions()
    if options["from"] is None:
        name, ask = "start", lambda: source.ChangeReader(options, StructType()).initialOffset()
    with pytest.raises(HistoryLost, match=f"'{name}' asks for") as caught:
        ask()
    named = re.search(r"but to (\S+) only", caught.value.message)
    assert named is not None
    assert gone < timestamp.parse(named[1]) <= oldest(client)


def test_a_start_is_not_asked_for_again_on_a_checkpoint(
    server: ReplicaSet, gone: Timestamp
) -> None:
    """Guards: what the first run began with may have left the oplog long ago."""
    options = given(server, **starts(gone)[0])
    assert source.preflight(options, is_new=False)
    with pytest.raises(HistoryLost):
        source.preflight(options)


def test_earliest_begins_where_the_oplog_begins_now(server: ReplicaSet, client: Client) -> None:
    client.shop.orders.insert_one({"_id": 1})
    pipeline = Capture(server.uri, "shop.orders", mode="earliest")
    assert pipeline.offset.time == oldest(client)
    pipeline.run()
    assert [row.key for row in pipeline.rows] == ["1"]
