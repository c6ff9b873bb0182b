"""The replica sets behind a stand-in: finding their primaries, and the time that all share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from bson.timestamp import Timestamp

from tests.mongo.stand_in.faults import error
from tests.mongo.stand_in.wire import Connections, Document

# As the client's library of a server takes them: another member has to be found.
_NOT_PRIMARY = frozenset({91, 189, 10107, 11600, 11602, 13435, 13436})
_ATTEMPTS = 3
_FIND_SECONDS, _FIND_PAUSE, _HELLO_SECONDS = 15.0, 0.1, 2.0
_SECONDARIES = ("secondary", "secondaryPreferred")


class Refused(Exception):
    """A server, or the stand-in itself, answers a command with an error: the reply."""

    def __init__(self, reply: Mapping[str, Any]) -> None:
        super().__init__(reply.get("errmsg"))
        self.reply: Document = dict(reply)

    @property
    def code(self) -> int | None:
        return self.reply.get("code")

    @classmethod
    def of(cls, code: int, name: str, message: str) -> Refused:
        return cls(error(code, name, message))


class Clock:
    """The newest `$clusterTime` that anybody has shown: a router passes it on to everybody."""

    def __init__(self) -> None:
        self._newest: Mapping[str, Any] | None = None

    @property
    def time(self) -> Timestamp:
        return self._newest["clusterTime"] if self._newest else Timestamp(0, 0)

    @property
    def gossip(self) -> Document:
        return {"$clusterTime": self._newest} if self._newest else {}

    def see(self, message: Mapping[str, Any]) -> None:
        shown = message.get("$clusterTime")
        if shown is not None and shown["clusterTime"] > self.time:
            self._newest = shown


class Answer(NamedTuple):
    """A reply, and the address of the member that sent it."""

    reply: Document
    address: str


class Servers:
    """A replica set. Its primary is asked for by `hello`, and again once it is one no longer."""

    def __init__(
        self, name: str, addresses: list[str], connections: Connections, clock: Clock
    ) -> None:
        self.name, self.addresses = name, addresses
        self._connections, self._clock = connections, clock
        self._primary: str | None = None

    async def run(self, db: str, command: Mapping[str, Any], is_repeatable: bool = True) -> Answer:
        """Run a command on the member that its read preference selects.

        Like a router, it asks another member up to twice if a command that may be repeated, or a
        retryable write, finds no server or no primary. Raises Refused with the error that the
        router would pass on.
        """
        attempts = _ATTEMPTS if is_repeatable or "txnNumber" in command else 1
        for left in reversed(range(attempts)):
            address = await self._select(command)
            try:
                return await self.ask(address, db, command)
            except Refused as refused:
                if refused.code not in (6, *_NOT_PRIMARY):
                    raise
                self._primary = None
                if not left:
                    raise
        raise AssertionError("the last attempt returns or raises")

    async def ask(self, address: str, db: str, command: Mapping[str, Any]) -> Answer:
        """Run a command on one member, whatever it is. Raises Refused."""
        document = {**command, "$db": db, **self._clock.gossip}
        try:
            reply = await self._connections.command(address, document)
        except (OSError, EOFError) as failure:
            self._connections.forget(address)
            message = f"Error connecting to {address} :: caused by :: {failure}"
            raise Refused.of(6, "HostUnreachable", message) from failure
        self._clock.see(reply)
        if not reply["ok"]:
            raise Refused(reply)
        return Answer(reply, address)

    async def primary(self) -> str:
        """Return the address of the primary; wait for one as a router does."""
        deadline = time.monotonic() + _FIND_SECONDS
        while self._primary is None:
            self._primary = await self._find("isWritablePrimary")
            if self._primary is None:
                if time.monotonic() > deadline:
                    raise Refused.of(
                        133,
                        "FailedToSatisfyReadPreference",
                        f'Could not find host matching read preference {{ mode: "primary" }} for'
                        f" set {self.name}",
                    )
                await asyncio.sleep(_FIND_PAUSE)
        return self._primary

    async def _select(self, command: Mapping[str, Any]) -> str:
        preference = command.get("$readPreference")
        if preference is not None and preference["mode"] in _SECONDARIES:
            secondary = await self._find("secondary")
            if secondary is not None:
                return secondary
        return await self.primary()

    async def _find(self, state: str) -> str | None:
        """Return the member in this state; of two primaries, the one of the later election."""
        hellos = await asyncio.gather(*(self.hello(each) for each in self.addresses))
        found = [
            (str(hello.get("electionId", "")), address)
            for hello, address in zip(hellos, self.addresses, strict=True)
            if hello.get(state)
        ]
        return max(found)[1] if found else None

    async def hello(self, address: str) -> Document:
        """Return the member's `hello`, or nothing if it does not answer in time."""
        try:
            async with asyncio.timeout(_HELLO_SECONDS):
                reply = await self._connections.command(address, {"isMaster": 1, "$db": "admin"})
        except (OSError, EOFError, TimeoutError):
            self._connections.forget(address)
            return {}
        self._clock.see(reply)
        return {"isWritablePrimary": reply.get("ismaster"), **reply}
