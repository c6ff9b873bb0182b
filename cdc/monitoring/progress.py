"""The progress of a run, from its start and the reports of its batches."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from cdc.delta.landing import NO_EVENTS
from cdc.delta.sink import BatchReport
from cdc.model import Namespace
from cdc.mongo.inspect import COPYING, STREAMING, WAITING, CopyProgress, Rate
from cdc.pipeline import Status

# Batches of a copy take seconds, and the first one also starts Spark's tasks.
_RATE_SECONDS = 30.0
_ALL_PERCENT = 100.0
# Documents are the estimate of the server; only a complete copy is all of them.
_MOST_RATIO = 0.999


@dataclass(slots=True)
class Copy:
    """The copy of one collection, and its changes since this run began.

    Attributes:
        documents: the approximate number of its documents.
        phase: WAITING, COPYING or STREAMING.
        copied: documents that have been copied, also by earlier runs.
        changes: rows of changes of this run.
    """

    documents: int = 0
    phase: str = WAITING
    copied: int = 0
    changes: int = 0

    @property
    def total(self) -> int:
        """The number of documents to copy, never less than are copied already."""
        return self.copied if self.phase == STREAMING else max(self.documents, self.copied)

    @property
    def ratio(self) -> float:
        """The approximate ratio of documents that are copied; 1 only if nothing is left."""
        if self.phase == STREAMING:
            return 1.0
        return min(_MOST_RATIO, self.copied / self.total) if self.total else 0.0


@dataclass(slots=True)
class RunProgress:
    """What a run has copied and written. Not thread-safe.

    Attributes:
        copies: the captured collections.
        rows: all rows that this run wrote.
        batches: its batches with rows.
        inexact: rows with `exact = false`.
        unmappable: images that became dead letters.
    """

    copies: dict[Namespace, Copy]
    rows: int = 0
    batches: int = 0
    inexact: int = 0
    unmappable: int = 0
    _rate: Rate = field(default_factory=lambda: Rate(_RATE_SECONDS))

    @classmethod
    def begin(cls, collections: Iterable[CopyProgress]) -> RunProgress:
        """The progress before the first batch of a run."""
        copies = {
            each.namespace: Copy(
                each.documents, each.phase, round(each.documents * (each.copied or 0.0))
            )
            for each in sorted(collections, key=lambda each: str(each.namespace))
        }
        begun = cls(copies)
        begun._rate.count(0)
        begun._begin_next_copy()
        return begun

    @property
    def is_copying(self) -> bool:
        """Whether some collection is not copied completely."""
        return any(copy.phase != STREAMING for copy in self.copies.values())

    @property
    def rows_per_second(self) -> float:
        """Copied documents per second."""
        return self._rate.per_second

    @property
    def seconds_left(self) -> float | None:
        """How long the copy still takes at this rate; None if that is unknown."""
        left = sum(copy.total - copy.copied for copy in self.copies.values())
        rate = self.rows_per_second
        return left / rate if rate > 0 else None

    def count_batch(self, report: BatchReport) -> None:
        """Count a batch that has been written."""
        read = 0
        for namespace, counts in report.counts.items():
            copy = self.copies.setdefault(namespace, Copy(phase=STREAMING))
            copy.copied += counts.get("read", 0)
            copy.changes += sum(n for op, n in counts.items() if op not in NO_EVENTS)
            if namespace in report.copying:
                copy.phase = COPYING
            elif counts.get("read") or copy.phase == COPYING:
                copy.phase = STREAMING
            read += counts.get("read", 0)
            self.rows += sum(counts.values())
        self.batches += bool(report.counts)
        self.inexact += sum(report.inexact.values())
        self.unmappable += sum(report.unmappable.values())
        self._rate.count(read)
        self._begin_next_copy()

    def note(self, status: Status) -> None:
        """Note that the copy is complete.

        No batch reports that of a collection without documents.
        """
        metrics = status.metrics
        if metrics is None or metrics.snapshot_percent != _ALL_PERCENT:
            return
        if metrics.time is not None and metrics.time == status.committed:
            for copy in self.copies.values():
                copy.phase = STREAMING

    def _begin_next_copy(self) -> None:
        """Collections are copied in the order of their names, without a pause."""
        phases = {copy.phase for copy in self.copies.values()}
        if WAITING in phases and COPYING not in phases:
            first = next(copy for copy in self.copies.values() if copy.phase == WAITING)
            first.phase = COPYING
