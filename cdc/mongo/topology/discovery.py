"""Which kind of source the options name. Nothing else chooses between the kinds.

A program discovers the source: it asks the servers, and refuses what cannot be copied. A task opens
the source again for each split, so a replica set must not cost it a command there.
"""

from __future__ import annotations

import pymongo.errors

from cdc.errors import UnsuitableSource
from cdc.mongo.connection import (
    connect,
    hello,
    hello_of_preferred,
    is_router,
    log_if_slow,
    translate_error,
)
from cdc.mongo.topology import router, sharded_cluster
from cdc.mongo.topology.replica_set import ReplicaSet
from cdc.mongo.topology.router import Router
from cdc.mongo.topology.source import Source


def discover(
    uri: str, timeout_ms: int, shards_direct: bool = False, database: str | None = None
) -> Source:
    """Ask which source a URI names.

    Args:
        uri: the option `uri`.
        timeout_ms: milliseconds to look for a server.
        shards_direct: the URI names a sharded cluster, whose shards are read directly.
        database: the only database whose changes the user may have to read; None for several.

    Raises BadOption, SourceUnreachable, NotPermitted, UnsuitableSource.
    """
    if shards_direct:
        return sharded_cluster.discover(uri, timeout_ms)
    return _discover_servers(uri, timeout_ms, database)


def reopen(uri: str, timeout_ms: int, shards_direct: bool, database: str | None = None) -> Source:
    """Return the source that was discovered with these options, to read splits of it.

    A replica set and routers are not asked for anything, and so have no name. A cluster is
    discovered again: a read carries the newest versions of the shards.
    """
    if shards_direct:
        return sharded_cluster.discover(uri, timeout_ms)
    if is_router(connect(uri, timeout_ms), timeout_ms):
        return Router(uri, timeout_ms, name="", database=database)
    return ReplicaSet(uri, timeout_ms, name="")


def has_unique_keys(shards_direct: bool) -> bool:
    """Whether no two documents of a collection have the same `key`.

    Documents on different shards may have the same `_id`. Through a router, `key` contains the
    shard key too, or mirrors are refused. Of shards that are read directly it is the `_id` alone.
    """
    return not shards_direct


def _discover_servers(uri: str, timeout_ms: int, database: str | None) -> ReplicaSet | Router:
    """Return the replica set, or the cluster of the routers, that a URI names.

    Raises BadOption, SourceUnreachable, NotPermitted, UnsuitableSource.
    """
    client = connect(uri, timeout_ms)
    try:
        with log_if_slow(client, timeout_ms):
            client.admin.command("ping")  # authenticates: `hello` alone would not
        reply = hello(client)
        # A preference that no member satisfies fails here, not after the retries of each task.
        hello_of_preferred(client)
    except pymongo.errors.PyMongoError as error:
        raise translate_error(error, "Connecting to MongoDB") from error
    if reply.get("msg") == "isdbgrid":
        return router.discover(uri, timeout_ms, database)
    if "setName" not in reply:
        raise UnsuitableSource(
            "The server is not a member of a replica set, so it has no oplog to read changes from.",
            "Start mongod with --replSet and run rs.initiate() once; one member is enough.",
        )
    return ReplicaSet(uri, timeout_ms, reply["setName"])
