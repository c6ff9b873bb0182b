"""The summary of a batch, which the sink needs before it writes: counts, DDL, watermark."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DataType, StructType

from cdc.delta.tables import Table
from cdc.model import (
    GAP,
    RESYNC,
    VOID,
    WATERMARK,
    Coverage,
    Effect,
    Mark,
    Namespace,
    NamespaceEvent,
    Timestamp,
    Watermark,
    resume_token,
)
from cdc.tasks import DataFile, Group

ROW_OPS = ("read", "insert", "update", "replace", "delete")
# Rows for the sink alone.
UNSTORED = (WATERMARK, VOID)
# Rows that the source adds: all others are events, which happened at a time of their own.
NO_EVENTS = ("read", WATERMARK, RESYNC, GAP)


class Bounds(NamedTuple):
    """The least and the greatest key of some rows."""

    least: str
    greatest: str


class Happened(NamedTuple):
    """Commit times of the oldest and the newest event of a batch.

    In seconds of the server's clock, without a fraction before MongoDB 6.0.
    """

    oldest: float
    newest: float


@dataclass(frozen=True, slots=True)
class BatchSummary:
    """The summary of one batch, or of several that are applied together.

    Attributes:
        progress: how far the pipeline is after the batch: time, unfinished copies, offset.
        copied: the namespaces whose copy is complete.
        torn: the namespaces of which a part was copied before a gap, and whose copy goes on.
        counts: rows per namespace and op, without those that no changelog gets.
        keys: the least and the greatest key of each namespace.
        exact_from: per namespace, the latest time at which an image was taken.
        inexact: per namespace, the rows whose images are missing or were taken later.
        unmappable: per namespace, the images that were replaced by a placeholder.
        departures: the namespaces with a delete in a transaction of a cluster. It may be one half
            of a move to another shard.
        namespace_events: the DDL of the batch.
        shared: which rows go to more than one changelog: (db, None) for rows without a collection,
            (None, None) for rows without a database, (db, coll) for the target of a rename.
        happened: None if the batch contains no event.
        groups: the groups of rows that all of this was read from.
        steps: the summaries of the batches that this one joins, in their order; empty for one.
    """

    progress: Watermark
    copied: frozenset[Namespace]
    torn: frozenset[Namespace]
    counts: Mapping[Namespace, Mapping[str, int]]
    keys: Mapping[Namespace, Bounds]
    exact_from: Mapping[Namespace, Timestamp]
    inexact: Mapping[Namespace, int]
    unmappable: Mapping[Namespace, int]
    departures: frozenset[Namespace]
    namespace_events: tuple[NamespaceEvent, ...]
    shared: frozenset[tuple[str | None, str | None]]
    happened: Happened | None
    groups: tuple[Group, ...] = field(default=(), compare=False)
    steps: tuple[BatchSummary, ...] = field(default=(), compare=False)

    @property
    def watermark(self) -> Timestamp:
        return self.progress.time

    @property
    def copying(self) -> Mapping[Namespace, Any]:
        return self.progress.copying

    @property
    def voiding(self) -> list[NamespaceEvent]:
        """The events that make earlier rows void."""
        return [each for each in self.namespace_events if each.reason is not None]

    @property
    def count(self) -> int:
        """How many rows the changelogs get."""
        return sum(sum(ops.values()) for ops in self.counts.values())

    def rows(self, namespace: Namespace) -> int:
        """How many of the namespace's rows are about a document."""
        counts = self.counts.get(namespace, {})
        return sum(counts.get(op, 0) for op in ROW_OPS)

    def is_born(self, namespace: Namespace) -> bool:
        """Whether the namespace was created, and all its changes are captured since."""
        return "create" in self.counts.get(namespace, {}) and self.progress.contains_changes(
            namespace
        )

    def coverage(
        self,
        namespace: Namespace,
        before: Coverage,
        last: Timestamp | None,
        exact_from: Timestamp | None,
    ) -> Coverage:
        """Return the coverage of the namespace's changelog after this batch.

        Args:
            namespace: the collection.
            before: the coverage after the last commit.
            last: the watermark of that commit.
            exact_from: the time from which all images so far are as of their own time. A copy
                that is not exact may also lack documents.
        """
        marks = [each.mark for each in self.namespace_events if each.concerns(namespace)]
        if self.progress.is_deselected(namespace):
            marks.append(
                Mark(resume_token.position_after(self.watermark), self.watermark, Effect.LOST)
            )
        is_copied = namespace in self.copied
        return before.after(
            last,
            marks,
            is_complete=self.progress.contains_changes(namespace),
            is_copying=namespace in self.torn,
            copied_from=max(self.watermark, exact_from or self.watermark) if is_copied else None,
        )

    def shares_with(self, namespace: Namespace) -> bool:
        """Whether the namespace's changelog gets rows of the batch besides its own."""
        db, coll = namespace
        return not self.shared.isdisjoint({(db, coll), (db, None), (None, None)})


class BatchFiles(NamedTuple):
    """The data files that contain a batch, for one mirror.

    Attributes:
        changes: files with rows, and for each whether its copied documents are left out.
        copies: files of the mirror that contain those documents, which no commit names yet.
        mark_attempted: to be called right before a commit of copies is tried.
    """

    changes: Sequence[tuple[DataFile, bool]]
    copies: Sequence[DataFile]
    mark_attempted: Callable[[Sequence[DataFile]], None]


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch of the source, or successive batches joined, as a writer of tables gets them.

    Attributes:
        number: the number of the batch, or of the last one, in the checkpoint.
        summary: the summary of the rows.
        columns: the columns of the rows.
        read: returns the rows in a session. They are read as often as it is used.
        follows: the changelogs from which `read` takes the rows; see `Target.relative_to`.
        find_files: returns the data files with what the batch has for a mirror; None if they are
            not known.
    """

    number: int
    summary: BatchSummary
    columns: StructType
    read: Callable[[SparkSession], DataFrame]
    follows: frozenset[str] = frozenset()
    find_files: Callable[[Table], BatchFiles | None] = lambda _: None

    @property
    def document(self) -> DataType:
        """The type of the images."""
        return self.columns["after"].dataType
