"""Who answers a command of a client: the router by itself, the metadata, or some shards."""

from __future__ import annotations

import logging
from typing import Any

from bson.timestamp import Timestamp

from tests.mongo.stand_in import reads
from tests.mongo.stand_in.aggregation import aggregate
from tests.mongo.stand_in.cursors import Cursors
from tests.mongo.stand_in.faults import CURSOR_NOT_FOUND, Faults, error
from tests.mongo.stand_in.own_answers import HELLO, Identity, list_databases, metadata_of_one
from tests.mongo.stand_in.request import Request
from tests.mongo.stand_in.routing import OneShard, Topology
from tests.mongo.stand_in.servers import Clock, Refused
from tests.mongo.stand_in.wire import Document
from tests.mongo.stand_in.writes import WRITES, write

_log = logging.getLogger(__name__)
_READS_OF_METADATA = frozenset({"find", "aggregate", "count"})


class Router:
    """Answers commands. Nothing here knows of connections to clients.

    Attributes:
        asked: the databases of all commands, except those of the driver's own monitoring.
        preferences: the read preferences of all reads.

    Args:
        topology: the servers behind.
        clock: the cluster time that is passed on.
        faults: what the test wants to go wrong.
        host: the router's own address.
        databases: the databases that are served; None serves all.
    """

    def __init__(
        self,
        topology: Topology,
        clock: Clock,
        faults: Faults,
        host: str,
        databases: frozenset[str] | None,
    ) -> None:
        self.asked, self.preferences = set[str](), list[Any]()
        self.identity, self._cursors = Identity(), Cursors()
        self._topology, self._clock, self._faults = topology, clock, faults
        self._host, self._databases = host, databases

    async def reply(self, message: Document) -> Document:
        """Return the whole reply to a command, with the times that a router adds."""
        request = Request(message, self._topology, self._clock)
        self._clock.see(message)
        try:
            reply = await self._answer(request)
        except Refused as refused:
            reply = refused.reply
        except ConnectionResetError:
            raise  # the client gets no answer
        except Exception as bug:  # a client that is cut off would try again
            _log.exception("the stand-in failed to answer %s", request.name)
            reply = error(1, "InternalError", f"the stand-in failed: {bug!r}")
        # `OperationTimeTracker`: without a server that took part, it is the newest time.
        operation_time = request.operation_time
        if operation_time == Timestamp(0, 0):
            operation_time = self._clock.time
        times = {"operationTime": operation_time, **self._clock.gossip}
        return {**reply, **(times if self._clock.gossip else {})}

    async def _answer(self, request: Request) -> Document:
        if request.name in HELLO:
            return self.identity.hello(request.name == "hello")
        self.asked.add(request.db)
        if request.name in ("find", "aggregate"):
            self.preferences.append(request.command.get("$readPreference"))
        failure = await self._faults.meet(request.name)
        if failure is not None:
            if failure["code"] == CURSOR_NOT_FOUND and request.name == "getMore":
                await self._cursors.kill([int(request.command["getMore"])])
            return failure
        if request.db == "local":  # strategy.cpp
            message = "Can't use 'local' database through mongos"
            raise Refused.of(20, "IllegalOperation", message)
        if self._databases is not None and request.db not in self._databases:
            raise Refused.of(20, "IllegalOperation", "this stand-in serves other databases")
        own = await self.identity.answer(request, self._host)
        return own if own is not None else await self._route(request)

    async def _route(self, request: Request) -> Document:
        name, cursors = request.name, self._cursors
        if "startTransaction" in request.command or request.command.get("autocommit") is False:
            message = "the stand-in routes no transactions"
            raise Refused.of(20, "IllegalOperation", message)
        if name.startswith("replSet"):
            raise Refused.of(59, "CommandNotFound", f"no such command: '{name}'")
        is_invented = request.db == "config" and isinstance(self._topology, OneShard)
        if is_invented and name in _READS_OF_METADATA:
            return await metadata_of_one(request, cursors)
        if name in WRITES:
            return await write(request)
        simple: dict[str, Any] = {
            "count": reads.count,
            "collStats": reads.coll_stats,
            "splitVector": reads.split_vector,
            "listDatabases": list_databases,
            "getMore": cursors.more,
        }
        if name in simple:
            reply: Document = await simple[name](request)
            return reply
        if name == "killCursors":
            return await cursors.kill([int(each) for each in request.command["cursors"]])
        if name == "find":
            return await reads.find(request, cursors)
        if name == "aggregate":
            return await aggregate(request, cursors, self._faults)
        if name == "listIndexes":
            return await reads.list_indexes(request, cursors)
        if name == "listCollections":
            return await reads.list_collections(request, cursors, self._faults.lists_from)
        return await reads.on_unsharded(request)
