"""One command of a client: what it asks the servers for, and the cursors that it opens there.

The rules are those of cluster_find.cpp, establish_cursors.cpp and async_results_merger.cpp.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

from bson.int64 import Int64
from bson.raw_bson import RawBSONDocument
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

    def __init__(self, message: Document, topology: Topology, clock: Clock) -> None:
        self.name = next(iter(message))
        self.db = str(message.get("$db", "admin"))
        self.command = {name: value for name, value in message.items() if name not in _OWN}
        self.topology, self.clock = topology, clock
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


@dataclass
class Remote:
    """A cursor on one shard, and what it has returned that was not handed out yet."""

    target: Target
    address: str
    cursor: int
    namespace: str
    session: Document
    documents: deque[RawBSONDocument] = field(default_factory=deque)

    @classmethod
    def of(cls, target: Target, answer: Answer, request: Request) -> Self:
        """The cursor that a server has opened for a request."""
        cursor = answer.reply["cursor"]
        number, namespace = int(cursor["id"]), str(cursor["ns"])
        documents = deque(cursor["firstBatch"])
        return cls(target, answer.address, number, namespace, request.session, documents)

    @property
    def is_exhausted(self) -> bool:
        return not self.cursor

    async def ask(self, request: Request, **arguments: Any) -> Document:
        """Return the reply to a getMore. Raises Refused, in the words of a router."""
        db, _, coll = self.namespace.partition(".")
        command = {"getMore": Int64(self.cursor), "collection": coll, **arguments, **self.session}
        try:
            answer = await self.target.servers.ask(self.address, db, command)
        except Refused as refused:
            request.see(refused.reply)
            prefix = f"Error on remote shard {self.address} :: caused by :: "
            reply = {**refused.reply, "errmsg": prefix + str(refused.reply["errmsg"])}
            raise Refused(reply) from refused
        request.see(answer.reply)
        return answer.reply

    def take(self, reply: Document) -> None:
        """Keep the documents of a reply to `ask`."""
        self.cursor = int(reply["cursor"]["id"])
        self.documents.extend(reply["cursor"]["nextBatch"])

    async def more(self, request: Request, **arguments: Any) -> None:
        self.take(await self.ask(request, **arguments))

    async def kill(self) -> None:
        if self.cursor:
            db, _, coll = self.namespace.partition(".")
            command = {"killCursors": coll, "cursors": [Int64(self.cursor)], **self.session}
            self.cursor = 0
            try:
                await self.target.servers.ask(self.address, db, command)
            except Refused:
                return  # a server that is gone has no cursors


async def open_remotes(
    request: Request, targets: Sequence[Target], command_of: Callable[[Target], Mapping[str, Any]]
) -> tuple[list[Remote], list[Document]]:
    """Open a cursor on each target; return them with the replies.

    If one refuses, the others' are closed, and the first refusal is raised (establish_cursors.cpp).
    """

    async def open_remote(target: Target) -> tuple[Remote, Document]:
        command = {**command_of(target), **target.versions}
        answer = await request.run(target.servers, command)
        return Remote.of(target, answer, request), answer.reply

    opened = await asyncio.gather(*map(open_remote, targets), return_exceptions=True)
    failures = [each for each in opened if isinstance(each, BaseException)]
    pairs = [each for each in opened if not isinstance(each, BaseException)]
    if failures:
        await close_remotes([remote for remote, _ in pairs])
        raise failures[0]
    return [remote for remote, _ in pairs], [reply for _, reply in pairs]


async def close_remotes(remotes: Iterable[Remote]) -> None:
    await asyncio.gather(*(remote.kill() for remote in remotes))
