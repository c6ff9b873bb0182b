"""The server's clock, which measures the age of changes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC

import pymongo

from cdc.mongo.connection import Client, hello
from cdc.mongo.inspect.ttl_cache import CachedValue
from cdc.mongo.topology import Source

_PATIENCE_SECONDS = 1.5
# Two clocks drift apart by less than a millisecond in this time.
_CACHED_SECONDS = 60.0


@dataclass(slots=True)
class ServerClock:
    """The clock of the primary; of several shards, the latest of their clocks.

    So no change looks fresher than it is, wherever the job runs. The error is at most half the time
    of a round trip to the server.
    """

    open_source: Callable[[], Source]
    _source: Source | None = None
    _cached: CachedValue[float] = field(
        default_factory=lambda: CachedValue("the server's clock", _CACHED_SECONDS)
    )
    _offset: float | None = None

    def now(self) -> float | None:
        """Return the seconds since 1970 at the moment of the call; None if no server ever answered.

        The difference to this machine's clock is cached. The moment is that of the call, however
        long the server takes to answer.
        """
        ours = time.time()
        with pymongo.timeout(_PATIENCE_SECONDS):
            offset = self._cached.get(self._read_offset)
        self._offset = self._offset if offset is None else offset
        return None if self._offset is None else ours + self._offset

    def _read_offset(self) -> float:
        # A removed shard may be gone for good, so the source is refreshed.
        self._source = (self._source or self.open_source()).refresh()
        clients = self._source.clients
        return max(_offset_of(clients[shard]) for shard in self._source.shards)


def _offset_of(client: Client) -> float:
    """Return the server's clock minus this machine's, in seconds."""
    sent = time.time()
    theirs = hello(client)["localTime"].replace(tzinfo=UTC).timestamp()
    return float(theirs - (sent + time.time()) / 2)
