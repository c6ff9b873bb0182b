"""The tables that follow changelogs: mirrors and histories.

A batch commits its rows to changelogs. The followers apply whole batches of a changelog to each
table later, any number of batches in one commit. That commit states the last batch that the table
contains, so a batch is never applied a second time, nor left out:

* A batch is known as pending once all its changelogs contain it. After a restart, `recover` reads
  the pending batches from the commits of the changelogs.
* A table is created before a changelog gets the first rows that concern it. Its properties state
  the batch before, so a table without any commit of ours is no exception.
* A table that a batch does not change needs no commit. It gets one all the same where its state
  would otherwise be too old to find the pending batches quickly.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol

from pyspark.sql import SparkSession
from pyspark.sql.types import DataType, StructType

from cdc.delta.columns import Columns
from cdc.delta.followers import history, mirror
from cdc.delta.followers.copied_mirror import CopiedMirror, is_nothing_but_a_copy
from cdc.delta.followers.pending import Pending, read_batches, units
from cdc.delta.landing import Batch, Facts, join_facts
from cdc.delta.tables import (
    Begin,
    Commit,
    LogCheckpoints,
    Table,
    Tables,
    Target,
    at_once,
    conflict,
    newest_commit,
    settings,
    small_write_settings,
)
from cdc.delta.tables import history as read_history
from cdc.errors import ChangelogTooShort

# A table that several collections share gets a commit after so many batches without a change.
_QUIET_BATCHES = 500


class _Kind(Protocol):
    """A module that brings one kind of table up to date."""

    def targets(self, facts: Facts, tables: Tables) -> list[Table]: ...

    def form(
        self, document: DataType, table: Table, typed: Columns | None
    ) -> tuple[StructType, list[str]]: ...

    def write(self, spark: SparkSession, table: Table, tables: Tables, batch: Batch) -> None: ...


KINDS: Mapping[str, _Kind] = {"mirror": mirror, "history": history}


class Backlog(NamedTuple):
    """How far the followers lag: batches not applied yet, and seconds since the oldest of them."""

    batches: int
    seconds: float


@dataclass(slots=True)
class Followers:
    """The mirrors and histories of one pipeline.

    One thread calls `recover`, `create` and `add`; any thread may call the other methods.

    Args:
        kinds: the tables of each kind in `KINDS`.
        changelogs: the changelogs that they follow.
        checkpoints: who writes the checkpoints of their logs.
    """

    kinds: Mapping[str, Tables]
    changelogs: Tables
    checkpoints: LogCheckpoints
    _columns: StructType = field(default_factory=StructType)
    _pending: list[tuple[float, Pending]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _applying: threading.Lock = field(default_factory=threading.Lock)
    _sizes: small_write_settings.Sizes = field(default_factory=small_write_settings.Sizes)

    def recover(self, spark: SparkSession, before: int, columns: StructType) -> None:
        """Find the batches before that one which tables of earlier runs do not contain yet.

        Call it once, after all tables were discovered. `columns` are those of the source's rows.
        Raises ChangelogTooShort if the log of a changelog does not reach back to them.
        """
        self._columns = columns
        bounds: dict[Target, int] = {}
        for tables in self.kinds.values():
            for table in tables.known():
                applied = tables.applied(table)
                if applied is not None:
                    for feed in self._feeds(table, tables):
                        bounds[feed] = min(applied, bounds.get(feed, applied))
        found: dict[int, list[tuple[Target, Commit]]] = {}
        known = {table.target: self.changelogs.last(table) for table in self.changelogs.known()}
        for feed, applied in bounds.items():
            newest = known[feed] if feed in known else _newest(spark, feed)
            if newest is None or newest.batch <= applied:
                continue
            for commit in _read_commits_after(spark, feed, applied):
                if commit.batch < before:
                    found.setdefault(commit.batch, []).append((feed, commit))
        for _, commits in sorted(found.items()):
            self.add(Pending.of(commits))

    def create(
        self, spark: SparkSession, found: Mapping[str, Sequence[Table]], before: int | None
    ) -> None:
        """Create tables of each kind, unless they are there.

        `before` is the number of the batch after which they follow changelogs; None if they are
        written with each batch.
        """
        document = self._columns["after"].dataType
        for kind, tables in self.kinds.items():
            for table in found[kind]:
                columns, key = KINDS[kind].form(document, table, tables.columns(table))
                begin = None if before is None else self._begin(table, before)
                tables.create(spark, table, columns, document.simpleString(), key, begin)

    def _begin(self, table: Table, before: int) -> Begin:
        own = table.namespace and self.changelogs.of(table.namespace)
        return Begin(before, own.target.relative_to(table.target) if own else None)

    def add(self, pending: Pending | None) -> None:
        """Note a batch that the changelogs contain. Call it in their order."""
        if pending is not None:
            with self._lock:
                others = [each for each in self._pending if each[1].batch != pending.batch]
                self._pending = [*others, (time.monotonic(), pending)]

    def backlog(self) -> Backlog:
        with self._lock:
            since = self._pending[0][0] if self._pending else time.monotonic()
            return Backlog(len(self._pending), time.monotonic() - since)

    def apply(self, spark: SparkSession) -> int:
        """Apply all pending batches; return to how many tables.

        May be repeated after any failure: a table that contains a batch already is passed over.
        """
        with self._applying:
            with self._lock:
                pending = [each for _, each in self._pending]
            return self._apply(spark, pending) if pending else 0

    def _apply(self, spark: SparkSession, pending: Sequence[Pending]) -> int:
        count = 0
        for kind, tables in self.kinds.items():
            work = self._work(kind, tables, pending)
            at_once(spark, partial(self._bring, kind, tables), [*work.items()])
            count += len(work)
        for each in pending:
            if each.landed is not None:
                each.landed.remove_leftovers()
        with self._lock:
            del self._pending[: len(pending)]
        return count

    def discard(self) -> None:
        """Remove the data files that no table needs. Pending batches are recovered by the next
        run."""
        with self._lock:
            for _, each in self._pending:
                if each.landed is not None:
                    each.landed.remove_leftovers()

    def _work(
        self, kind: str, tables: Tables, pending: Sequence[Pending]
    ) -> dict[Table, list[Pending]]:
        work: dict[Table, list[Pending]] = {}
        known = {table.target for table in tables.known()}
        for each in pending:
            concerned = dict.fromkeys(KINDS[kind].targets(each.facts, tables))
            concerned |= dict.fromkeys(self._quiet(tables, each))
            for table in concerned:
                applied = tables.applied(table)
                if table.target in known and (applied is None or applied < each.batch):
                    work.setdefault(table, []).append(each)
        return work

    def _quiet(self, tables: Tables, pending: Pending) -> Iterator[Table]:
        """The tables that get a commit though the batch does not change them.

        Else the next run would have to look for pending batches among all the commits that their
        changelogs got meanwhile.
        """
        for table in tables.known():
            applied = tables.applied(table)
            if applied is None:
                continue
            if table.is_shared:
                if pending.batch - applied >= _QUIET_BATCHES:
                    yield table
            elif not pending.changelogs.isdisjoint(self._feeds(table, tables)):
                yield table

    def _bring(
        self, kind: str, tables: Tables, spark: SparkSession, work: tuple[Table, list[Pending]]
    ) -> None:
        table, pending = work

        def is_copy(each: Pending) -> bool:
            return kind == "mirror" and is_nothing_but_a_copy(
                table, tables, each.facts, each.landed
            )

        for unit in units(pending, is_copy):
            batch = self._batch(table, tables, unit)
            # Asked again: an earlier unit may have added columns that the data files lack.
            landed = unit[0].landed if len(unit) == 1 and is_copy(unit[0]) else None
            writer = KINDS[kind] if landed is None else CopiedMirror(landed)
            is_small = self._sizes.are_small(spark, [table.target], batch.facts.count)
            with settings(spark, small_write_settings.SETTINGS if is_small else {}):
                conflict.repeated(partial(writer.write, spark, table, tables, batch), table.target)
            self.checkpoints.committed(spark, table.target)

    def _batch(self, table: Table, tables: Tables, unit: Sequence[Pending]) -> Batch:
        sources = {
            target
            for each in unit
            for namespace, target in each.sources.items()
            if tables.of(namespace) == table
        }
        first, last = unit[0].batch, unit[-1].batch
        read = partial(read_batches, sources=sources, first=first, last=last, columns=self._columns)
        follows = frozenset(target.relative_to(table.target) for target in sources)
        facts = join_facts([each.facts for each in unit])
        return Batch(last, facts, self._columns, read, follows)

    def _feeds(self, table: Table, tables: Tables) -> set[Target]:
        """The changelogs that contain, or may contain, rows about the table's collections."""
        last, begin = tables.last(table), tables.begin(table)
        texts = set(last.follows) if last else set()
        if begin is not None and begin.changelog is not None:
            texts.add(begin.changelog)
        feeds = {table.target.resolved(text) for text in texts}
        if table.namespace is None:
            return feeds | {each.target for each in self.changelogs.known()}
        own = self.changelogs.of(table.namespace)
        return feeds | ({own.target} if own else set())


def _newest(spark: SparkSession, changelog: Target) -> Commit | None:
    newest = newest_commit(spark, changelog) if changelog.exists(spark) else None
    return newest[1] if newest else None


def _read_commits_after(spark: SparkSession, changelog: Target, applied: int) -> Iterator[Commit]:
    """The commits of later batches, the newest first. Raises ChangelogTooShort."""
    version = None
    for row in read_history(spark, changelog, "userMetadata"):
        version = row.version
        commit = Commit.parse(row.userMetadata)
        if commit is not None:
            if commit.batch <= applied:
                return
            yield commit
    if version != 0:
        raise ChangelogTooShort(
            f"The log of the changelog at '{changelog}' no longer contains the batches after"
            f" {applied}, which a mirror or a history lacks.",
            "Read the collection again: start anew with another path and checkpoint.",
        )
