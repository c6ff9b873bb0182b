"""A sink with a changelog and a mirror, and what must hold of both after every batch."""

from __future__ import annotations

from collections import defaultdict

from cdc.model import Namespace, Offset
from tests.simulation.connector import Batch, Row
from tests.simulation.deployment import (
    EMPTYING_OPS,
    ROW_OPS,
    SELECTED,
    Deployment,
    number_of,
    rank,
)


class Violation(AssertionError):
    """The rule promised something else."""


class Sink:
    """Applies a batch as `cdc.delta` does: the changelog first, then the mirror, each once."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        # The documents of each namespace: as the rows report them one by one, and as merged.
        self._reported: dict[Namespace, dict[int, int]] = defaultdict(dict)
        self._mirror: dict[Namespace, dict[int, tuple[int, str]]] = defaultdict(dict)
        self._last: dict[tuple[Namespace, int | None], str] = defaultdict(str)
        # Collections that were gone when they were to be read: unknown up to their DDL.
        self._void: set[Namespace] = set()
        self._events: list[Row] | None = None
        self._reads: list[Row] | None = None
        self._merged = False

    def apply(self, batch: Batch, rows: list[Row], merge: bool) -> None:
        """May be repeated, with the rows of another reading; `merge` is False for a crash between
        the changelog and the mirror."""
        rows = sorted(rows, key=lambda row: row.position)
        events = [row for row in rows if row.op != "read"]
        reads = sorted(row for row in rows if row.op == "read")
        self._check_reads(batch, reads)
        if self._events is None:
            self._void |= self._gone(batch)
            self._report(rows)
            self._check_events(batch, events)
            self._events, self._reads = events, reads
        else:
            self._void |= self._gone(batch)
            _require(self._events == events, "a replayed batch holds other events")
            void = self._void
            first, second = (
                [row for row in some if row.namespace not in void]
                for some in (self._reads or [], reads)
            )
            _require(first == second, "a replayed batch holds other documents")
        if merge and not self._merged:
            self._merge(rows)
            self._merged = True

    def finish(self, batch: Batch) -> None:
        """The batch is complete: mirror and changelog are the source as of its end."""
        self._events, self._reads, self._merged = None, None, False
        catalog = self.deployment.catalogs[number_of(batch.end.time)]
        for namespace in SELECTED:
            found = catalog.get(namespace)
            expected = {
                key: value
                for key, value in (found.documents.items() if found else ())
                if covers(batch.end, namespace, key)
            }
            mirror = {key: value for key, (value, _) in self._mirror[namespace].items()}
            reported = self._reported[namespace]
            if namespace in self._void:  # what is there is right, and the rest comes with the DDL
                _require(reported.items() <= expected.items(), f"{reported}, of {expected}")
                _require(mirror.items() <= expected.items(), f"{mirror}, of {expected}")
                continue
            _require(mirror == expected, f"the mirror of {namespace}: {mirror}, not {expected}")
            _require(
                reported == expected, f"the changelog of {namespace}: {reported}, not {expected}"
            )

    def _gone(self, batch: Batch) -> set[Namespace]:
        """What was planned to be read, and can have been gone for good before it was."""
        deployment = self.deployment
        later = deployment.between(number_of(batch.end.time), deployment.committed)
        replaced = {
            name for event in later if event.op in EMPTYING_OPS for name in (event[3], event.to)
        }
        return {scan.copying.namespace for scan in batch.end.scans} & replaced

    # --- changelog: each row by itself ---

    def _report(self, rows: list[Row]) -> None:
        for row in rows:
            if row.op in EMPTYING_OPS:
                for namespace in (row.namespace, row.to):
                    if namespace is not None:
                        self._empty(namespace, row)
            elif row.op in (*ROW_OPS, "read"):
                self._change(row)

    def _empty(self, namespace: Namespace, row: Row) -> None:
        for name, key in list(self._last):
            _require(
                name != namespace or self._last[name, key] < row.position,
                f"{row} stands before what it empties",
            )
        self._last[namespace, None] = row.position
        self._reported[namespace].clear()
        self._void.discard(namespace)

    def _change(self, row: Row) -> None:
        namespace, key, reported = row.namespace, row.key, self._reported[row.namespace]
        _require(self._last[namespace, None] < row.position, f"{row} stands before DDL")
        _require(self._last[namespace, key] < row.position, f"{row} comes twice or too late")
        self._last[namespace, key] = row.position
        if namespace not in self._void:
            is_first = row.op in ("read", "insert")
            _require(is_first != (key in reported), f"{row} cannot follow {reported.get(key)}")
            _require(row.before == reported.get(key), f"{row} changes {reported.get(key)}")
        if row.after is None:
            reported.pop(key, None)
        else:
            reported[key] = row.after

    # --- mirror: as `cdc.delta.followers.mirror` merges ---

    def _merge(self, rows: list[Row]) -> None:
        for namespace in SELECTED:
            emptied = max(
                (r.position for r in rows if r.op in EMPTYING_OPS and namespace in (r[3], r.to)),
                default="",
            )
            mirror = self._mirror[namespace]
            last = {
                row.key: row
                for row in rows
                if row.namespace == namespace
                and row.op in (*ROW_OPS, "read")
                and row.position > emptied
            }
            for key in [key for key, (_, position) in mirror.items() if position < emptied]:
                if key not in last:
                    del mirror[key]
            for key, row in last.items():
                if key not in mirror or mirror[key][1] < row.position:
                    mirror.pop(key, None)
                    if row.after is not None:
                        mirror[key] = row.after, row.position

    # --- the batch against the source ---

    def _check_reads(self, batch: Batch, reads: list[Row]) -> None:
        catalog = self.deployment.catalogs[number_of(batch.end.time)]
        for row in reads:
            found = catalog.get(row.namespace)
            there = found.documents.get(row.key) if found else None
            _require(row.after == there, f"{row}: at that time it was {there}")

    def _check_events(self, batch: Batch, events: list[Row]) -> None:
        source = self.deployment.between(number_of(batch.start.time), number_of(batch.end.time))
        expected = [
            Row(*event)
            for event in source
            if event.op in ROW_OPS
            and event.namespace in SELECTED
            and covers(batch.start, event.namespace, event.key)
        ]
        found = [row for row in events if row.op in ROW_OPS]
        _require(found == expected, f"events {found}, not {expected}")


def covers(offset: Offset, namespace: Namespace, key: int | None) -> bool:
    """Whether the offset says that this document has been emitted."""
    if offset.passes_whole(namespace):
        return True
    copying = offset.copying
    return (
        copying is not None
        and copying.namespace == namespace
        and key is not None
        and key < rank(copying.below)
    )


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Violation(otherwise)
