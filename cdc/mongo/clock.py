"""The server's clock: what the age of a change is measured with, wherever the job runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC

import pymongo

from cdc.mongo.client import Client, hello
from cdc.mongo.cluster import Source
from cdc.mongo.kept import Kept

_PATIENCE_SECONDS = 1.5
# Two clocks drift by less than a millisecond in that time.
_ASKED_SECONDS = 60.0


@dataclass(slots=True)
class ServerClock:
    """The clock of the primary; of several shards that of the one most ahead, so that nothing looks
    fresher than it is. Right to half of the time that a question to the server takes."""

    open_source: Callable[[], Source]
    _source: Source | None = None
    _asked: Kept[float] = field(default_factory=lambda: Kept("the server's clock", _ASKED_SECONDS))
    _ahead: float | None = None

    def now(self) -> float | None:
        """Seconds since 1970, at the moment of the call, however long the answer took: the server
        is asked, or was before; None if it never answered."""
        ours = time.time()
        with pymongo.timeout(_PATIENCE_SECONDS):
            asked = self._asked.get(self._ask)
        self._ahead = self._ahead if asked is None else asked
        return None if self._ahead is None else ours + self._ahead

    def _ask(self) -> float:
        # A shard that was removed may be gone for good, and its clock is nobody's any more.
        self._source = (self._source or self.open_source()).current()
        clients = self._source.clients
        return max(_ahead_of_ours(clients[shard]) for shard in self._source.shards)


def _ahead_of_ours(client: Client) -> float:
    sent = time.time()
    there = hello(client)["localTime"].replace(tzinfo=UTC).timestamp()
    return float(there - (sent + time.time()) / 2)
