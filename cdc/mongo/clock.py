"""The server's clock: what the age of a change is measured with, wherever the job runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC

import pymongo

from cdc.mongo.client import Client, hello
from cdc.mongo.cluster import Source
from cdc.mongo.kept import tried

_PATIENCE_SECONDS = 1.5


@dataclass(slots=True)
class ServerClock:
    """The clock of the primary; of several shards that of the one most ahead, so that nothing looks
    fresher than it is. Right to half of the time that a question to the server takes."""

    open_source: Callable[[], Source]
    _source: Source | None = None
    _ahead: float | None = None

    def now(self) -> float | None:
        """Seconds since 1970: the server is asked, or was before; None if it never answered."""
        with pymongo.timeout(_PATIENCE_SECONDS):
            asked = tried(self._asked, "the server's clock")
        self._ahead = self._ahead if asked is None else asked
        return None if self._ahead is None else time.time() + self._ahead

    def _asked(self) -> float:
        if self._source is None:
            self._source = self.open_source()
        clients = self._source.clients
        return max(_ahead_of_ours(clients[shard]) for shard in self._source.shards)


def _ahead_of_ours(client: Client) -> float:
    sent = time.time()
    there = hello(client)["localTime"].replace(tzinfo=UTC).timestamp()
    return float(there - (sent + time.time()) / 2)
