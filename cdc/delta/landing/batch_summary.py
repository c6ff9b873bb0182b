"""What the sinks have to know about a batch before they write: counts, DDL, watermark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DataType, StructType

from cdc.model import (
    GAP,
    RESYNC,
    VOID,
    WATERMARK,
    Coverage,
    Mark,
    Namespace,
    NamespaceEvent,
    Timestamp,
    Watermark,
    What,
    resume_token,
)
from cdc.tasks import Group

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
    """When the oldest and the newest event of a batch were committed, in seconds of the server's
    clock; whole ones where the server states no wall time (before 6.0)."""

    oldest: float
    newest: float


@dataclass(frozen=True, slots=True)
class Facts:
    """One batch. `counts` is rows per namespace and op, of those that a changelog holds.

    `copied` are those of the watermark row whose copy is complete; `torn` are the namespaces of
    which some documents were copied before a gap, and which are still being copied.
    `shared` lists what more tables than its own get: (db, None) for rows without a
    collection, (None, None) for those without a database, (db, coll) for the target of a rename.
    `keys` bounds those of each namespace that has any.
    `exact_from` holds the greatest time at which some row's image was taken, per namespace.
    `inexact` counts those that are not exact: an image that was asked for is missing, or was taken
    later.
    `unmappable` counts the images in whose place there is a stand-in.
    `departures` are the namespaces with a delete in a transaction of a cluster: it may be half of a
    move to another shard. `happened` is None where the batch holds no event.
    `groups` is what all of this was read from.
    `steps` are the facts of the batches that these facts join, in their order; none: it is one.
    """

    said: Watermark
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
    steps: tuple[Facts, ...] = field(default=(), compare=False)

    @property
    def watermark(self) -> Timestamp:
        return self.said.time

    @property
    def copying(self) -> Mapping[Namespace, Any]:
        return self.said.copying

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
        return "create" in self.counts.get(namespace, {}) and self.said.contains_changes(namespace)

    def coverage(
        self,
        namespace: Namespace,
        before: Coverage,
        last: Timestamp | None,
        exact_from: Timestamp | None,
    ) -> Coverage:
        """The coverage of the namespace's changelog after this batch; `last`: the watermark of the
        commit that said `before`. `exact_from`: when all of its images so far are as of their own
        time; a copy that is not exact may lack documents too."""
        marks = [each.mark for each in self.namespace_events if each.concerns(namespace)]
        if self.said.is_deselected(namespace):
            marks.append(
                Mark(resume_token.position_after(self.watermark), self.watermark, What.LOST)
            )
        is_copied = namespace in self.copied
        return before.after(
            last,
            marks,
            is_complete=self.said.contains_changes(namespace),
            is_copying=namespace in self.torn,
            copied_from=max(self.watermark, exact_from or self.watermark) if is_copied else None,
        )

    def shares_with(self, namespace: Namespace) -> bool:
        """Whether the batch holds rows that the namespace's changelog gets besides its own."""
        db, coll = namespace
        return not self.shared.isdisjoint({(db, coll), (db, None), (None, None)})


@dataclass(frozen=True, slots=True)
class Batch:
    """What a table is brought up to date with: one batch of the source, or successive ones joined.

    Attributes:
        number: the number of the batch, or of the last one, in the checkpoint.
        facts: the summary of the rows.
        columns: the columns of the rows.
        read: returns the rows in a session. They are read as often as it is used.
        follows: the changelogs from which `read` takes the rows; see `Target.relative_to`.
    """

    number: int
    facts: Facts
    columns: StructType
    read: Callable[[SparkSession], DataFrame]
    follows: frozenset[str] = frozenset()

    @property
    def document(self) -> DataType:
        """The type of the images."""
        return self.columns["after"].dataType
