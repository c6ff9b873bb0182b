"""What a test can have a stand-in do wrong, each as a real router may do it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, NamedTuple

CURSOR_NOT_FOUND, MAX_TIME_EXPIRED, STALE_CONFIG = 43, 50, 13388
_NAMES = {
    6: "HostUnreachable",
    CURSOR_NOT_FOUND: "CursorNotFound",
    MAX_TIME_EXPIRED: "MaxTimeMSExpired",
    133: "FailedToSatisfyReadPreference",
    STALE_CONFIG: "StaleConfig",
}


class _Failure(NamedTuple):
    """`code`: of the error; none of a command that is only slow. `cuts`: no answer at all."""

    commands: frozenset[str]
    code: int | None = None
    cuts: bool = False
    seconds: float = 0.0


@dataclass
class Faults:
    """The faults of one stand-in; a test changes them while it runs.

    Attributes:
        cold: shards whose promises stand still, like those of a shard that neither writes nor has a
            majority: a change stream gets nothing from them until they are removed from the set.
        lists_from: the address of a member that answers `listCollections`, whatever it is by now.
            A router takes a deposed primary for the primary until it hears of the other.
        refused: the codes that were answered, with their commands, in order.
    """

    cold: set[str] = field(default_factory=set)
    lists_from: str | None = None
    refused: list[tuple[str, int]] = field(default_factory=list)
    _failures: list[_Failure] = field(default_factory=list)

    def fail(self, code: int, *commands: str, times: int = 1) -> None:
        """Answer the next `times` commands with this error, each before a shard sees it.

        50 is the router's own limit of time, 13388 a StaleConfig that remained after all of its
        attempts, 43 a cursor that it has timed out.

        Args:
            code: the server's code.
            commands: the names of the commands; all but those of the driver's monitoring if none.
            times: the number of commands.
        """
        self._failures += [_Failure(frozenset(commands), code)] * times

    def cut(self, *commands: str, times: int = 1) -> None:
        """End the connection of each of the next commands, before a shard sees it."""
        self._failures += [_Failure(frozenset(commands), cuts=True)] * times

    def delay(self, seconds: float, *commands: str, times: int = 1) -> None:
        """Wait before each of the next commands."""
        self._failures += [_Failure(frozenset(commands), seconds=seconds)] * times

    async def meet(self, command: str) -> dict[str, Any] | None:
        """Return the error with which this command is answered, if it is.

        Raises ConnectionResetError if it is not answered.
        """
        for failure in self._failures:
            if not failure.commands or command in failure.commands:
                self._failures.remove(failure)
                return await self._happen(failure, command)
        return None

    async def _happen(self, failure: _Failure, command: str) -> dict[str, Any] | None:
        await asyncio.sleep(failure.seconds)
        if failure.cuts:
            raise ConnectionResetError
        if failure.code is None:
            return None
        self.refused.append((command, failure.code))
        name = _NAMES.get(failure.code, f"Location{failure.code}")
        return error(failure.code, name, "the stand-in was asked to fail")


def error(code: int, name: str, message: str) -> dict[str, Any]:
    return {"ok": 0.0, "errmsg": message, "code": code, "codeName": name}
