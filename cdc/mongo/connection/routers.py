"""Routers (mongos): one router for cursors, and how a router is recognised.

A router answers for all shards of a cluster. It has neither an oplog nor a `lastWrite` in its
`hello`, and each router has cursors of its own.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import pymongo.errors
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp

from cdc.mongo.connection.client import Client, connect, connect_directly
from cdc.mongo.connection.members import CONFIRM_MS, Member, hello

_POLL_SECONDS = 0.002
_ADVANCE_MS = 1000
_INVALID_NAMESPACE = 73
_NO_NAME = "cdc.none"


class RouterMember(Member):
    """One router, with its own session, for cursors that are read in batches.

    The read preference of the client goes with each command: the router reads by it.
    """

    is_router = True

    def command(self, db: str, command: Mapping[str, Any]) -> RawBSONDocument:
        """Run a command and return the raw reply; refuse the database `local`.

        A router may answer a find on `local` with nothing, as if an oplog were empty.
        """
        if db == "local":
            raise pymongo.errors.OperationFailure("a router has no 'local'", _INVALID_NAMESPACE)
        preference = {"$readPreference": self._client.read_preference.document}
        return super().command(db, {**command, **preference, **_own_preference(command)})

    @contextmanager
    def open_stream(
        self, database: str | None, after: Timestamp | None, reached: Timestamp | None = None
    ) -> Iterator[tuple[int, str]]:
        """Open a change stream over all shards, for its tokens only, and close it.

        Yields its cursor and the name of the cursor's collection. The router knows the newest time
        of each shard then.

        Args:
            database: the database of the stream; None for the whole cluster.
            after: the time at which it begins; None for now.
            reached: each shard first has to reach this time; else ExecutionTimeout is raised.
        """
        stage: dict[str, Any] = {} if after is None else {"startAtOperationTime": after}
        if database is None:
            stage["allChangesForCluster"] = True
        command: dict[str, Any] = {
            "aggregate": 1,
            "pipeline": [{"$changeStream": stage}, {"$match": {"operationType": "invalidate"}}],
            "cursor": {"batchSize": 0},
            "maxTimeMS": _ADVANCE_MS,
        }
        if reached is not None:
            self._advance_metadata(reached)
            command["readConcern"] = {"level": "majority", "afterClusterTime": reached}
        cursor = self.command(database or "admin", command)["cursor"]
        try:
            yield int(cursor["id"]), cursor["ns"]
        finally:
            self.kill_cursor(cursor["ns"], int(cursor["id"]))

    def _advance_metadata(self, time: Timestamp) -> None:
        """Make the config servers reach a time, if the user may read their version.

        A change stream of a router also has to wait for the config servers, which report shards
        that join. Without writes they advance only every 10 s, or if a read requires it. A failure
        is ignored: it costs only time.
        """
        concern = {"level": "majority", "afterClusterTime": time}
        find = {"find": "version", "limit": 1, "singleBatch": True, "maxTimeMS": _ADVANCE_MS}
        with suppress(pymongo.errors.OperationFailure):
            self.command("config", {**find, "readConcern": concern})

    def advance_shards(self, db: str) -> None:
        """Make all shards pass every time that the router has shown, as far as they can now.

        Without it, a shard that has no writes advances only every 10 s, and a change stream waits
        for it. A linearizable read makes one shard write an entry; a read that requires the time of
        this entry makes the others advance. Failures are ignored: they cost only time.
        """
        with suppress(pymongo.errors.PyMongoError):
            self.command(db, linearizable_read())
            with self.open_stream(db, None, self.newest_known()):
                pass


def _own_preference(command: Mapping[str, Any]) -> Mapping[str, Any]:
    name = "$readPreference"
    return {name: command[name]} if name in command else {}


def linearizable_read() -> dict[str, Any]:
    """Return a find that only a primary answers, after a majority confirmed an entry of its own.

    It goes to the primary shard of the database, because no collection has the name.
    """
    return {
        "find": _NO_NAME,
        "limit": 1,
        "singleBatch": True,
        "readConcern": {"level": "linearizable"},
        "$readPreference": {"mode": "primary"},
        "maxTimeMS": CONFIRM_MS,
    }


def is_router(client: Client, timeout_ms: int = 0) -> bool:
    """Whether the client's servers are routers, by what the driver knows of them.

    No command is sent. A client that was just opened is waited for, until one of its servers is
    known. False if none is known in time: the first command raises the error for that.
    """
    deadline = time.monotonic() + timeout_ms / 1000
    while True:
        servers = client.topology_description.server_descriptions().values()
        known = {server.server_type_name for server in servers} - {"Unknown"}
        if known or time.monotonic() > deadline:
            return "Mongos" in known
        time.sleep(_POLL_SECONDS)


def connect_to_router(uri: str, timeout_ms: int) -> Client:
    """Return a direct client of one of the routers that answer, chosen at random.

    Raises the driver's errors, also if none answers.
    """
    client = connect(uri, timeout_ms)
    is_router(client, timeout_ms)  # The driver may not know the routers yet.
    if client.topology_description.topology_type_name == "Single":
        return client
    routers = [
        f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in client.nodes
    ]
    for address in random.sample(routers, len(routers)):
        router = connect_directly(uri, timeout_ms, address)
        try:
            hello(router)
        except pymongo.errors.ConnectionFailure:
            continue
        return router
    if not routers:
        hello(client)  # It raises the error with the reason why none is known.
    raise pymongo.errors.AutoReconnect("none of the routers answers")


def router_member(uri: str, timeout_ms: int) -> RouterMember:
    """Return one of the routers that answer. Raises the driver's errors."""
    client = connect_to_router(uri, timeout_ms)
    return RouterMember(client, client.start_session(causal_consistency=False))
