"""The program: the stand-in listens, and serves each connection of a client."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, Self

from pymongo.uri_parser import parse_uri

from cdc.demo.mongod import find_free_ports
from tests.mongo.cluster import Cluster
from tests.mongo.stand_in import wire
from tests.mongo.stand_in.faults import Faults
from tests.mongo.stand_in.router import Router
from tests.mongo.stand_in.routing import Catalog, OneShard, Topology
from tests.mongo.stand_in.servers import Clock, Servers

_STOP_SECONDS = 10


class StandIn:
    """A router, from `with` on until the end of it or until it is killed.

    Attributes:
        host: its own address.
        faults: what goes wrong; a test changes it at any time.
    """

    def __init__(
        self,
        connect: Callable[[wire.Connections, Clock], Topology],
        databases: frozenset[str] | None,
        host: str = "",
    ) -> None:
        self.host = host or f"127.0.0.1:{find_free_ports(1)[0]}"
        self.faults = Faults()
        self._connections, clock = wire.Connections(), Clock()
        self._topology = connect(self._connections, clock)
        self._router = Router(self._topology, clock, self.faults, self.host, databases)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    @classmethod
    def of_replica_set(cls, uri: str, databases: frozenset[str] | None = None) -> Self:
        """A router of the members that a URI names, as if they were the only shard of a cluster.

        The metadata of that cluster is invented: its id is that of the replica set.

        Args:
            uri: the addresses of all members.
            databases: the databases that are served, all others are refused; None serves all.
        """
        found = parse_uri(uri)
        addresses = [f"{host}:{port}" for host, port in found["nodelist"]]
        name = found["options"].get("replicaSet") or "rs"

        def connect(connections: wire.Connections, clock: Clock) -> Topology:
            return OneShard(Servers(name, addresses, connections, clock))

        return cls(connect, databases)

    @classmethod
    def of_cluster(
        cls, cluster: Cluster, databases: frozenset[str] | None = None, host: str = ""
    ) -> Self:
        """A router of a sharded cluster, found by its config servers; at a free port by default."""
        addresses = [member.host for member in cluster.config.members]

        def connect(connections: wire.Connections, clock: Clock) -> Topology:
            config = Servers(cluster.config.name, addresses, connections, clock)
            return Catalog(config, connections, clock)

        return cls(connect, databases, host)

    @property
    def uri(self) -> str:
        return f"mongodb://{self.host}/"

    @property
    def asked(self) -> set[str]:
        """The databases of all commands, except those of the driver's own monitoring."""
        return self._router.asked

    @property
    def preferences(self) -> list[Any]:
        """The read preferences of all reads."""
        return self._router.preferences

    @property
    def refreshes(self) -> int:
        """How often a shard refused what it was asked, because the metadata here was stale."""
        return self._topology.refreshes

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(60)
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(_STOP_SECONDS)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_STOP_SECONDS)

    def kill(self) -> None:
        """End all connections at once; the cursors of the shards remain, as after `kill -9`."""
        self.__exit__()

    async def _listen(self) -> None:
        await self._router.identity.learn(self._topology.metadata)
        host, port = self.host.split(":")
        self._listener = await asyncio.start_server(self._serve, host, int(port))

    async def _end(self) -> None:
        self._listener.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        self._connections.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                message = await wire.read(reader)
                reply = await self._router.reply(message.document)
                if message.wants_reply:
                    writer.write(wire.encode_reply(reply, message))
                    await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            return
        finally:
            writer.close()
