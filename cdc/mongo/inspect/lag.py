"""Lag and freshness: how long a checkpoint or a table has been without the newest changes.

Both are one number: the seconds from T to the live edge of the source *now*. T is the time up to
which all changes are contained.

* Lag is that of the pipeline. T is that of the last batch that is in all its changelogs, never that
  of a batch that is planned or being written. So the lag grows while a batch runs.
* Freshness is that of a table. A changelog and the live view contain all changes up to the same T
  as the pipeline. A mirror or a history contains them up to the T of the last batch that was
  applied to it.

Before anything is committed there is no T, and so there is no lag.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import pymongo

from cdc.errors import TransientError
from cdc.model import NEVER, Timestamp
from cdc.mongo.inspect.ttl_cache import CachedValue

# A metric is read between two batches, or by the thread that waits for a signal to stop: a longer
# wait would delay both.
PATIENCE_SECONDS = 1.5
# The live edge of a cluster takes a query or two to each shard: reading it takes at most a fifth
# of the time.
_EDGE_SECONDS, _EDGE_COST_FACTOR = 1.0, 4.0


class Edge(NamedTuple):
    """The newest time that no failover can roll back, as the source last reported it.

    `silence` are the seconds since that report while the source does not answer; else it is 0.
    """

    time: Timestamp
    silence: float = 0.0

    @property
    def reported(self) -> Timestamp | None:
        """The live edge; None while the source does not answer."""
        return None if self.silence else self.time


def lag_seconds(edge: Edge | None, contained: Timestamp | None) -> int | None:
    """Return the seconds from a time to the live edge now.

    While the source does not answer, its live edge is assumed to advance with the clock: a lag that
    stood still would look like a pipeline that is up to date.

    Args:
        edge: the live edge; None if it was never known.
        contained: the time up to which all changes are contained; None if none are.
    """
    if edge is None or contained is None:
        return None
    return max(0, edge.time.time + int(edge.silence) - contained.time)


class Freshness(NamedTuple):
    """The freshness of the tables of a pipeline, in seconds.

    None stands for an unknown value, or for tables that there are not.

    Attributes:
        changelog: of the changelogs and of the live view; it equals the lag.
        mirror: of the mirror or history that is least fresh.
    """

    changelog: int | None = None
    mirror: int | None = None

    def to_json(self) -> dict[str, int | None]:
        return {"changelog": self.changelog, "liveView": self.changelog, "mirror": self.mirror}


@dataclass(slots=True)
class LiveEdge:
    """The live edge of a source now. Only one thread at a time may call `now`.

    It can be pickled: Spark does that with the reader that contains it.
    """

    _cached: CachedValue[Timestamp] = field(
        default_factory=lambda: CachedValue("the live edge", _EDGE_SECONDS, _EDGE_COST_FACTOR)
    )
    _known: Timestamp | None = None
    _answered: float = 0.0

    def now(self, ask: Callable[[Timestamp], Timestamp], floor: Timestamp = NEVER) -> Edge | None:
        """Return the live edge; None if the source has never answered. It never decreases.

        A source that does not answer is no error. It is waited for 1.5 s at most.

        Args:
            ask: `live_edge` of the source. It is called once a second at most, and more seldom if
                it takes long. Answers and failures are cached in between.
            floor: a time that the live edge has reached.
        """
        with pymongo.timeout(PATIENCE_SECONDS):
            answer = self._cached.get(partial(self._read, ask, floor))
            if self._known is None:
                return None
            silence = 0.0 if answer is not None else time.monotonic() - self._answered
            return Edge(max(self._known, floor), silence)

    def _read(self, ask: Callable[[Timestamp], Timestamp], floor: Timestamp) -> Timestamp:
        answer = ask(floor)
        if answer == NEVER:  # no member that answers knows what the majority has
            raise TransientError("No member of the source knows its live edge.")
        self._known = answer if self._known is None else max(answer, self._known)
        self._answered = time.monotonic()
        return self._known
