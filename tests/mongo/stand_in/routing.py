"""What a router knows of a cluster: its shards, and who owns which documents.

Everything is cached, and so goes stale: a shard that is asked with an old version refuses, and only
then is the metadata read again (`CatalogCache` of the server's source, catalog_cache.cpp).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from bson import ObjectId
from bson.timestamp import Timestamp

from tests.mongo.cluster import Routing
from tests.mongo.stand_in.servers import Clock, Refused, Servers
from tests.mongo.stand_in.wire import Connections, Document, plain

_ALL = 2**31 - 1
_NEVER = Timestamp(0, 0)
_NOTHING = ObjectId("0" * 24)
METADATA = frozenset({"admin", "config"})
# What a shard answers to a router that does not know the newest version.
STALE_DATABASE = 249
STALE = frozenset({63, 150, STALE_DATABASE, 13388})


@dataclass(frozen=True)
class Target:
    """One of the servers to which a command is sent, with what it has to carry."""

    shard: str
    servers: Servers
    versions: Document


@dataclass(frozen=True)
class Table:
    """The routing table of a sharded collection."""

    uuid: Any
    key: Document
    routing: Routing

    def owners(self, at: Timestamp | None) -> list[str]:
        """Return the shards that own a chunk, or owned one at a time, by the chunks' history.

        Raises Refused if the history does not reach so far back (250), as `getShardIdAt` of
        chunk.cpp does.
        """
        return sorted({_owner(chunk, at) for chunk in self.routing.chunks})


def _owner(chunk: Mapping[str, Any], at: Timestamp | None) -> str:
    if at is None or "history" not in chunk:
        return str(chunk["shard"])
    for entry in chunk["history"]:
        if entry["validAfter"] <= at:
            return str(entry["shard"])
    message = "Cannot find shardId the chunk belonged to at cluster time"
    raise Refused.of(250, "StaleChunkHistory", message)


class Topology(Protocol):
    """The servers behind a stand-in, as it knows them."""

    refreshes: int

    @property
    def metadata(self) -> Servers:
        """The servers of `admin` and `config`."""
        ...

    async def shards(self, is_renewed: bool = False) -> dict[str, Servers]:
        """Return all shards by their names."""
        ...

    async def shard(self, name: str) -> Servers:
        """Return one shard, also if it has joined since."""
        ...

    async def table(self, db: str, coll: str) -> Table | None:
        """Return the routing table of a collection; None if it is not sharded."""
        ...

    async def primary(self, db: str) -> Target | None:
        """Return the primary shard of a database, None if there is no such database."""
        ...

    async def targets(self, db: str, coll: str, at: Timestamp | None = None) -> list[Target]:
        """Return the shards that a read of a collection asks; none if there is no database.

        Args:
            db: the database.
            coll: the collection.
            at: the time as of which it reads, if not the newest.
        """
        ...

    def forget(self, db: str, coll: str, code: int | None) -> None:
        """Read what a shard found stale again before its next use, by the code of its refusal."""
        ...


class Catalog:
    """The topology of a sharded cluster, as its config servers know it.

    Attributes:
        refreshes: how often something was found stale.
    """

    def __init__(self, config: Servers, connections: Connections, clock: Clock) -> None:
        self.metadata = config
        self._connections, self._clock = connections, clock
        self._shards: dict[str, Servers] = {}
        self._databases: dict[str, Document | None] = {}
        self._tables: dict[tuple[str, str], Table | None] = {}
        self._takes_documents: bool | None = None
        self.refreshes = 0

    async def shards(self, is_renewed: bool = False) -> dict[str, Servers]:
        if is_renewed or not self._shards:
            entries = {entry["_id"]: entry for entry in await self._find("shards", {})}
            for name in self._shards.keys() - entries.keys():
                del self._shards[name]
            for name in entries.keys() - self._shards.keys():
                hosts = entries[name]["host"].rpartition("/")[2].split(",")
                self._shards[name] = Servers(name, hosts, self._connections, self._clock)
        return dict(self._shards)

    async def table(self, db: str, coll: str) -> Table | None:
        name = db, coll
        if name not in self._tables:
            self._tables[name] = await self._read_table(f"{db}.{coll}")
        return self._tables[name]

    async def primary(self, db: str) -> Target | None:
        if db in METADATA:
            return Target("config", self.metadata, {})
        if db not in self._databases:
            found = await self._find("databases", {"_id": db})
            self._databases[db] = found[0] if found else None
        entry = self._databases[db]
        if entry is None:
            return None
        version = {"databaseVersion": entry["version"]} if "version" in entry else {}
        return Target(entry["primary"], await self.shard(entry["primary"]), version)

    async def targets(self, db: str, coll: str, at: Timestamp | None = None) -> list[Target]:
        table = None if db in METADATA else await self.table(db, coll)
        if table is None:
            target = await self.primary(db)
            if target is None or db in METADATA:
                return [target] if target else []
            unsharded = Routing(_NOTHING, _NEVER, (), await self._accepts_documents())
            versions = {**target.versions, "shardVersion": unsharded.version(target.shard)}
            return [Target(target.shard, target.servers, versions)]
        return [
            Target(name, await self.shard(name), {"shardVersion": table.routing.version(name)})
            for name in table.owners(at)
        ]

    def forget(self, db: str, coll: str, code: int | None) -> None:
        self.refreshes += 1
        if code == STALE_DATABASE:
            self._databases.pop(db, None)
        else:
            self._tables.pop((db, coll), None)

    async def shard(self, name: str) -> Servers:
        known = await self.shards()
        if name not in known:
            known = await self.shards(is_renewed=True)
        return known[name]

    async def _read_table(self, name: str) -> Table | None:
        found = await self._find("collections", {"_id": name, "dropped": {"$ne": True}})
        if not found:
            return None
        entry = found[0]
        of_it = {"$or": [{"uuid": entry["uuid"]}, {"ns": name}]}
        chunks = await self._find("chunks", of_it, {"min": 1})
        routing = Routing(
            entry["lastmodEpoch"],
            entry.get("timestamp"),
            tuple(chunks),
            await self._accepts_documents(),
        )
        return Table(entry["uuid"], entry["key"], routing)

    async def _accepts_documents(self) -> bool:
        """Whether the shards take a version as a document (6.0), and not as an array."""
        if self._takes_documents is None:
            shard = next(iter((await self.shards()).values()))
            version = {"e": _NOTHING, "t": _NEVER, "v": _NEVER}
            probe = {"find": "transactions", "limit": 1, "shardVersion": version}
            try:
                await shard.run("config", {**probe, "singleBatch": True})
                self._takes_documents = True
            except Refused as refused:
                if refused.code != 14:
                    raise
                self._takes_documents = False
        return self._takes_documents

    async def _find(
        self, coll: str, query: Mapping[str, Any], sort: Mapping[str, int] | None = None
    ) -> list[Document]:
        """Read the metadata after everything that any server has shown."""
        concern: Document = {"level": "majority"}
        if self._clock.time != _NEVER:
            concern["afterClusterTime"] = self._clock.time
        command = {
            "find": coll,
            "filter": query,
            "sort": sort or {},
            "batchSize": _ALL,
            "readConcern": concern,
        }
        answer = await self.metadata.run("config", command)
        return [plain(entry) for entry in answer.reply["cursor"]["firstBatch"]]


class OneShard:
    """A replica set taken for the only shard of a cluster, and for its config servers."""

    refreshes = 0

    def __init__(self, servers: Servers) -> None:
        self.metadata = servers

    async def shards(self, is_renewed: bool = False) -> dict[str, Servers]:
        return {self.metadata.name: self.metadata}

    async def shard(self, name: str) -> Servers:
        return self.metadata

    async def table(self, db: str, coll: str) -> Table | None:
        return None

    async def primary(self, db: str) -> Target | None:
        return Target(self.metadata.name, self.metadata, {})

    async def targets(self, db: str, coll: str, at: Timestamp | None = None) -> list[Target]:
        return [Target(self.metadata.name, self.metadata, {})]

    def forget(self, db: str, coll: str, code: int | None) -> None:
        """A replica set has no metadata that could be stale."""
