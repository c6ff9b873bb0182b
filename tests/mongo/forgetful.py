"""A server whose oplog is as short as it can be, and how changes are pushed out of it."""

from __future__ import annotations

import time

from bson.timestamp import Timestamp

from cdc.demo import ReplicaSet
from cdc.mongo.topology import windows
from tests.mongo.capture import Client, until

TEST_COMMANDS = {"enableTestCommands": True}


def forgetful() -> ReplicaSet:
    return ReplicaSet(
        oplog_megabytes=1, arguments=["--syncdelay", "1"], set_parameters=TEST_COMMANDS
    )


def push_out(client: Client, moment: Timestamp) -> None:
    """Writes until the oplog begins after a moment, and waits until it is not cut any more."""
    until(lambda: _is_pushed_out(client, moment))
    until(lambda: _is_quiet(client))


def oldest(client: Client) -> Timestamp:
    return windows({"": client}, [""])[0].first


def _is_quiet(client: Client) -> bool:
    before = oldest(client)
    time.sleep(0.7)
    return oldest(client) == before


def _is_pushed_out(client: Client, moment: Timestamp) -> bool:
    """If it is not yet, ten megabytes are written."""
    if oldest(client) > moment:
        return True
    client.shop.other.insert_many([{"pad": "x" * 100_000} for _ in range(100)])
    return False
