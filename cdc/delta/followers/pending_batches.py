"""The pending batches of a pipeline: those that changelogs contain and followers may lack."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from pyspark.sql import SparkSession

from cdc.delta.followers.pending import Pending
from cdc.delta.log import NO_BATCH, Commit, Target, newest_commit, read_log
from cdc.delta.tables import Table, Tables
from cdc.errors import ChangelogTooShort


@dataclass(slots=True)
class PendingBatches:
    """The batches in their order, of which all changelogs contain all up to `last`.

    One thread calls `add`; any thread may call the other methods.
    """

    last: int = NO_BATCH
    _pending: list[tuple[float, Pending]] = field(default_factory=list)
    _looked: dict[Target, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, pending: Pending) -> None:
        """Add a batch, in place of what is known of it."""
        with self._lock:
            self.last = max(self.last, pending.batch)
            others = [each for each in self._pending if each[1].batch != pending.batch]
            self._pending = [*others, (time.monotonic(), pending)]

    def find(
        self,
        spark: SparkSession,
        lacking: Mapping[Target, tuple[int, Iterable[Target]]],
        known: Mapping[Target, Commit | None],
    ) -> None:
        """Add the batches up to `last` that tables lack, from the commits of changelogs.

        Args:
            spark: The session.
            lacking: For each table the last batch that it contains, and the changelogs that it
                follows. Batches that were found for it before are not looked for again.
            known: The newest commits of changelogs, where they were read just now.

        Raises ChangelogTooShort if the log of a changelog does not reach back to the batches.
        """
        last, bounds = self.last, dict[Target, tuple[int, Target]]()
        for table, (applied, feeds) in lacking.items():
            since = max(applied, self._looked.get(table, applied))
            if since < last:
                for feed in feeds:
                    bounds[feed] = min((since, table), bounds.get(feed, (since, table)))
        found: dict[int, list[tuple[Target, Commit, int]]] = {}
        for feed, (since, table) in bounds.items():
            newest = known[feed] if feed in known else _newest(spark, feed)
            if newest is None or newest.batch <= since:
                continue
            for version, commit in _read_commits_after(spark, feed, since, table):
                if commit.batch <= last:
                    found.setdefault(commit.batch, []).append((feed, commit, version))
        self._insert(filter(None, map(Pending.of, found.values())))
        self._looked.update(dict.fromkeys(lacking, last))

    def forget(self, table: Target) -> None:
        """Let `find` look again for the batches of a table that lost some."""
        self._looked.pop(table, None)

    def _insert(self, found: Iterable[Pending]) -> None:
        with self._lock:
            pending = {each.batch: (since, each) for since, each in self._pending}
            for each in found:
                since, there = pending.get(each.batch, (time.monotonic(), None))
                pending[each.batch] = since, each if there is None else there.joined(each)
            self._pending = [pending[batch] for batch in sorted(pending)]

    def up_to(self, last: int) -> list[Pending]:
        with self._lock:
            return [each for _, each in self._pending if each.batch <= last]

    def remove(self, done: Iterable[Pending]) -> None:
        batches = {each.batch for each in done}
        with self._lock:
            self._pending = [each for each in self._pending if each[1].batch not in batches]

    def count(self) -> tuple[int, float, int | None]:
        """How many there are, seconds since the first of them was added, and its number."""
        with self._lock:
            if not self._pending:
                return 0, 0.0, None
            since, first = self._pending[0]
            return len(self._pending), time.monotonic() - since, first.batch


def feeds(table: Table, tables: Tables, changelogs: Tables) -> set[Target]:
    """The changelogs that contain, or may contain, rows about a table's collections."""
    last, begin = tables.last(table), tables.begin(table)
    texts = set(last.follows) if last else set()
    if begin is not None and begin.changelog is not None:
        texts.add(begin.changelog)
    found = {table.target.resolved(text) for text in texts}
    if table.namespace is None:
        known = changelogs.known()
        return found | {
            each.target
            for each in known
            if each.namespace is None or tables.of(each.namespace) == table
        }
    own = changelogs.of(table.namespace)
    return found | ({own.target} if own else set())


def _newest(spark: SparkSession, changelog: Target) -> Commit | None:
    newest = newest_commit(spark, changelog) if changelog.exists(spark) else None
    return newest.commit if newest else None


def _read_commits_after(
    spark: SparkSession, changelog: Target, applied: int, table: Target
) -> Iterator[tuple[int, Commit]]:
    """The commits of later batches, the newest first, with versions.

    Raises ChangelogTooShort if the log does not reach back to the first batch after `applied`, the
    last one that `table` contains.
    """
    version, oldest = None, None
    for entry in read_log(spark, changelog):
        version = entry.version
        commit = Commit.parse(entry.metadata)
        if commit is not None:
            if commit.batch <= applied:
                return
            yield version, commit
            oldest = commit
    if version != 0 and (oldest is None or not _is_next(oldest, applied)):
        raise ChangelogTooShort(
            f"The log of the changelog at '{changelog}' no longer contains the batches after"
            f" {applied}, which '{table}' lacks.",
            "Make them again from the rows of the changelog: mongodb-cdc follow --rebuild"
            " --collection NAME.",
        )


def _is_next(commit: Commit, applied: int) -> bool:
    """Whether a changelog has no commit of a batch between `applied` and this one."""
    if commit.after is not None:
        return commit.after <= applied
    return commit.batch == applied + 1
