"""What a router answers by itself, or out of the answers of all shards."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import bson
from bson.int64 import Int64
from bson.timestamp import Timestamp

from tests.mongo.stand_in.cursors import Cursors
from tests.mongo.stand_in.reads import aggregate_literals
from tests.mongo.stand_in.request import Request
from tests.mongo.stand_in.routing import METADATA, Target
from tests.mongo.stand_in.servers import Servers
from tests.mongo.stand_in.wire import Document

HELLO = frozenset({"hello", "ismaster", "isMaster"})
# What the `hello` of a router has in common with that of a member of its cluster.
_LIKE_A_MEMBER = (
    *("maxBsonObjectSize", "maxMessageSizeBytes", "maxWriteBatchSize"),
    *("logicalSessionTimeoutMinutes", "maxWireVersion", "minWireVersion"),
)
# Answered without any server.
_OK = frozenset({"ping", "endSessions", "killSessions", "refreshSessions", "startSession"})
# Facts about a program, which are those of a server behind.
_OF_A_PROGRAM = frozenset(
    {"buildInfo", "buildinfo", "connectionStatus", "getCmdLineOpts", "getParameter", "hostInfo"}
)


class Identity:
    """What a router says of itself."""

    def __init__(self) -> None:
        self._connections = itertools.count(1)
        self._like_a_member: Document = {}
        self._started = datetime.now(UTC)

    async def learn(self, servers: Servers) -> None:
        """Learn the limits of the cluster's servers, which are those of this router."""
        hello = await servers.hello(await servers.primary())
        self._like_a_member = {name: hello[name] for name in _LIKE_A_MEMBER if name in hello}

    def hello(self, is_hello: bool) -> Document:
        """Like `hello` of mongos, without the version of the topology: the driver then polls."""
        name = "isWritablePrimary" if is_hello else "ismaster"
        return {
            name: True,
            "msg": "isdbgrid",
            "helloOk": True,
            **self._like_a_member,
            "localTime": datetime.now(UTC),
            "connectionId": next(self._connections),
            "ok": 1.0,
        }

    def server_status(self, host: str) -> Document:
        """Like that of mongos: it has no `repl`, no `oplog` and no storage engine."""
        uptime = (datetime.now(UTC) - self._started).total_seconds()
        return {
            "host": host,
            "process": "mongos",
            "uptime": uptime,
            "localTime": datetime.now(UTC),
            "opcounters": {},
            "sharding": {},
            "ok": 1.0,
        }

    async def answer(self, request: Request, host: str) -> Document | None:
        """Answer a command that is about the router; None if it is not."""
        if request.name in _OK:
            return {"ok": 1.0}
        if request.name == "serverStatus":
            return self.server_status(host)
        if request.name == "replSetGetStatus":
            message = "replSetGetStatus is not supported through mongos"
            return {"info": "mongos", "ok": 0.0, "errmsg": message}
        if request.name in _OF_A_PROGRAM:
            return (await request.run(request.topology.metadata, request.command)).reply
        return None


async def list_databases(request: Request) -> Document:
    """The databases of all shards, with summed sizes (cluster_list_databases_cmd.cpp).

    `admin` and `config` are those of the config servers, and there is no `local`.
    """
    metadata, shards = request.topology.metadata, await request.topology.shards()
    others = [Target("", each, {}) for each in shards.values() if each is not metadata]
    of_all = [Target("", metadata, {}), *others]
    answers = await request.ask(of_all, request.command)
    found: dict[str, Document] = {}
    for number, answer in enumerate(answers):
        for entry in answer.reply["databases"]:
            name = entry["name"]
            is_metadata, is_of_config = name in METADATA, number == 0
            is_shown = is_of_config or not is_metadata
            if name == "local" or not is_shown or (is_of_config and others and not is_metadata):
                continue
            _add(found.setdefault(name, {"name": name}), entry)
    databases = [found[name] for name in sorted(found)]
    reply: Document = {"databases": databases, "ok": 1.0}
    if not request.command.get("nameOnly"):
        total = sum(int(each["sizeOnDisk"]) for each in databases)
        reply |= {"totalSize": Int64(total), "totalSizeMb": Int64(total // 2**20)}
    return reply


def _add(database: Document, entry: Mapping[str, Any]) -> None:
    if "sizeOnDisk" in entry:
        database["sizeOnDisk"] = Int64(database.get("sizeOnDisk", 0) + entry["sizeOnDisk"])
        database["empty"] = database.get("empty", True) and entry["empty"]


async def metadata_of_one(request: Request, cursors: Cursors) -> Document:
    """Read the metadata that a cluster would have whose only shard is this replica set."""
    command, servers = request.command, request.topology.metadata
    documents = await _invent(str(command[request.name]), servers)
    if request.name == "aggregate":
        stages = list(command["pipeline"])
    else:
        stages = [{"$match": command.get("filter", command.get("query", {}))}]
        if command.get("sort"):
            stages.append({"$sort": command["sort"]})
        if command.get("limit"):
            stages.append({"$limit": command["limit"]})
    merged = await aggregate_literals(request, documents, stages)
    namespace = f"config.{command[request.name]}"
    return await cursors.first_reply(request, merged, namespace, None, False)


async def _invent(coll: str, servers: Servers) -> list[Document]:
    if coll == "version":
        config = (await servers.run("admin", {"replSetGetConfig": 1})).reply["config"]
        return [{"_id": 1, "clusterId": config["settings"]["replicaSetId"]}]
    if coll == "shards":
        host = f"{servers.name}/{','.join(servers.addresses)}"
        joined = {"state": 1, "topologyTime": Timestamp(1, 1)}
        return [{"_id": servers.name, "host": host, **joined}]
    if coll == "databases":
        listed = (await servers.run("admin", {"listDatabases": 1, "nameOnly": True})).reply
        names = {entry["name"] for entry in listed["databases"]} - METADATA - {"local"}
        version = {"uuid": bson.Binary(bytes(16), 4), "timestamp": Timestamp(1, 1), "lastMod": 1}
        return [
            {"_id": name, "primary": servers.name, "partitioned": False, "version": version}
            for name in sorted(names)
        ]
    return []
