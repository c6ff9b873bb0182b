"""The report of the sink on a batch."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from cdc.delta.landing import NO_EVENTS, Happened
from cdc.model import Namespace, Timestamp

# The phases that the sink measures, in their order.
SINK_PHASES = ("tasks", "commit", "followers")


class Phases:
    """Measures the phases of a batch, one after the other."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._since = time.monotonic()

    def end(self, name: str) -> None:
        """The phase of this name ends, and the next one begins."""
        now = time.monotonic()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._since
        self._since = now


class Latency(NamedTuple):
    """Seconds from the commit of a change in MongoDB until its changelog contained it.

    Of the newest and of the oldest change of a batch, by the clock of the server.
    """

    newest: float
    oldest: float

    @classmethod
    def of(cls, happened: Happened | None, now: float | None) -> Self | None:
        """None if the batch contained no change, or the server's time `now` is unknown."""
        if happened is None or now is None:
            return None
        return cls(now - happened.newest, now - happened.oldest)


@dataclass(frozen=True, slots=True)
class BatchReport:
    """What a batch contained.

    Attributes:
        batch_id: the number of the batch in the checkpoint.
        watermark: its time; None if it had no row at all.
        counts: rows per namespace and op.
        inexact: those of the rows that are not exact.
        unmappable: images that could not be mapped.
        copying: the collections whose copy is not complete after the batch.
        tables: how many tables were written.
        latency: None if the batch contained no change, or the server's clock is unknown. Of a
            batch that is written again, it is that of the last time.
        phases: how long each phase took, in seconds: `tasks` read the source and write data files,
            `commit` is that of dead letters and changelogs, `followers` that of mirrors and
            histories, if they are written with the batch.
        streamed: how many slices a change stream had to read instead of the oplog, by the reason.
    """

    batch_id: int
    watermark: Timestamp | None
    counts: Mapping[Namespace, Mapping[str, int]] = field(default_factory=dict)
    inexact: Mapping[Namespace, int] = field(default_factory=dict)
    unmappable: Mapping[Namespace, int] = field(default_factory=dict)
    copying: frozenset[Namespace] = frozenset()
    tables: int = 0
    latency: Latency | None = None
    phases: Mapping[str, float] = field(default_factory=dict)
    streamed: Mapping[str, int] = field(default_factory=dict)

    @property
    def copied(self) -> int:
        """The number of copied documents."""
        return sum(counts.get("read", 0) for counts in self.counts.values())

    @property
    def changes(self) -> int:
        """The number of rows that are events: all but `read`, `resync` and `gap` rows."""
        return sum(
            count
            for counts in self.counts.values()
            for op, count in counts.items()
            if op not in NO_EVENTS
        )
