"""One command of a client: what it asks for, and the times of the servers that answered it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from bson.timestamp import Timestamp

from tests.mongo.stand_in.routing import STALE, Target, Topology
from tests.mongo.stand_in.servers import Answer, Clock, Refused, Servers
from tests.mongo.stand_in.wire import Document

T = TypeVar("T")
# Fields of a command that are for the router, and that it sends to the servers in its own words.
_OWN = frozenset({"$db", "$clusterTime"})
# `kMaxRetries` of cluster_find.cpp.
_RETRIES = 10


class Request:
    """A command, and what the router needs for its reply.

    Attributes:
        name: the command's name.
        db: its database.
        command: the command as it is sent on.
        operation_time: the greatest operation time of the servers that took part in it.
    """

    def __init__(
        self, message: Document, topology: Topology, clock: Clock, parent: Request | None = None
    ) -> None:
        self.name = next(iter(message))
        self.db = str(message.get("$db", "admin"))
        self.command = {name: value for name, value in message.items() if name not in _OWN}
        self.topology, self.clock, self._parent = topology, clock, parent
        self.operation_time = Timestamp(0, 0)

    @property
    def coll(self) -> str:
        return str(self.command[self.name])

    @property
    def session(self) -> Document:
        return {name: self.command[name] for name in ("lsid",) if name in self.command}

    @property
    def read_concern(self) -> Document:
        return dict(self.command.get("readConcern", {}))

    def see(self, reply: Mapping[str, Any]) -> None:
        """Record the operation time of a server's reply."""
        self.operation_time = max(self.operation_time, reply.get("operationTime", Timestamp(0, 0)))
        if self._parent is not None:
            self._parent.see(reply)

    def part(self, command: Document) -> Request:
        """Return a command that the router itself sends to answer this one."""
        return Request({**command, **self.session}, self.topology, self.clock, self)

    async def run(
        self, servers: Servers, command: Mapping[str, Any], is_repeatable: bool = True
    ) -> Answer:
        """Run a command of this request on some servers. Raises Refused."""
        try:
            answer = await servers.run(self.db, command, is_repeatable)
        except Refused as refused:
            self.see(refused.reply)
            raise
        self.see(answer.reply)
        return answer

    async def ask(self, targets: Sequence[Target], command: Mapping[str, Any]) -> list[Answer]:
        """Run a command on all targets at once, with the versions of each.

        Waits for all of them. Raises the first of their refusals.
        """
        runs = (self.run(each.servers, {**command, **each.versions}) for each in targets)
        answers = await asyncio.gather(*runs, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return [answer for answer in answers if isinstance(answer, Answer)]

    async def until_routed(self, coll: str, attempt: Callable[[], Awaitable[T]]) -> T:
        """Try again with newer metadata while a shard finds the versions stale.

        Raises the refusal of the last attempt.
        """
        for left in reversed(range(_RETRIES)):
            try:
                return await attempt()
            except Refused as refused:
                if refused.code not in STALE or not left:
                    raise
                self.topology.forget(self.db, coll, refused.code)
        raise AssertionError("the last attempt returns or raises")
