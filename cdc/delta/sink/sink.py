"""The sink of a pipeline: it commits a batch to changelogs, and followers apply it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from cdc.delta.followers import (
    KINDS,
    MIRROR,
    Backlog,
    FollowerKind,
    Followers,
    FollowerThread,
    Pending,
    Writer,
)
from cdc.delta.landing import (
    CHANGELOG,
    DEAD_LETTERS,
    Batch,
    BatchSummary,
    Changelog,
    DeadLetters,
    LandedBatch,
    LandedChangelog,
    is_manifest,
    read_summary,
    require_allowed,
)
from cdc.delta.log import Commit, LogCheckpoints, at_once, conflict, settings
from cdc.delta.sink.batch_report import BatchReport, Latency, Phases
from cdc.delta.sink.followed_tables import FollowedTables
from cdc.delta.sink.landed_rows import LandedRows
from cdc.delta.sink.run_warnings import RunWarnings
from cdc.delta.tables import Kind, Layout, LayoutHistory, Table, Tables, small_write_settings

_LOOK_SECONDS = 1.0
# What could not be mapped is stored before a changelog refers to it.
_KINDS: Sequence[DeadLetters | Changelog | FollowerKind] = (DEAD_LETTERS, CHANGELOG, *KINDS)


class Sink:
    """The tables of one pipeline. One per streaming query, used by one thread.

    A batch is one commit per changelog. Mirrors and histories follow the changelogs. Those of a
    collection without a changelog are written with the batch, and so are those that several
    collections share if one of the pipeline's collections has none. With more dead letters than the
    limit in its lifetime the sink ends.

    Args:
        pipeline: the query id in the checkpoint (`pipeline_of` a batch), never a name: see
            `cdc.delta.tables.pipeline_tables.Tables`.
        layout: which tables there are.
        clock: returns the server's time in seconds, None if it is unknown.
        dead_letters_limit: how many dead letters there may be.
        rows: the columns of the source, if the batches consist of manifests.
        interval: seconds between two runs of the followers, which have a thread of their own; None:
            a batch is written when mirrors and histories contain it.
        applies: whether the followers run here. Else another program runs them; the sink creates
            their tables.
        waits: whether mirrors and histories are not to be written now.
        gap: how many seconds there are to be between two commits of changelogs now.
        layouts: those of earlier runs of the pipeline, and `layout`.
    """

    def __init__(
        self,
        pipeline: str,
        layout: Layout,
        *,
        clock: Callable[[], float | None],
        dead_letters_limit: int | None = None,
        rows: StructType | None = None,
        interval: float | None = None,
        applies: bool = True,
        waits: Callable[[], bool] = lambda: False,
        gap: Callable[[], float] = lambda: 0.0,
        layouts: LayoutHistory | None = None,
    ) -> None:
        layouts = layouts or LayoutHistory()
        self._tables: dict[Kind, Tables] = {
            kind: Tables(kind, layout, pipeline, layouts) for kind in _KINDS
        }
        self._layout, self._storage = layout, layout.storage
        self._clock, self._rows = clock, rows
        self._warnings = RunWarnings(dead_letters_limit)
        self._has_begun, self._is_first, self._has_caught_up = False, True, False
        self._sizes = small_write_settings.Sizes()
        self._checkpoints, self._gaps = LogCheckpoints(), conflict.CommitGaps(gap)
        self._followed = FollowedTables(layout, self._tables)
        self._followers = Followers(
            {kind: self._tables[kind] for kind in KINDS},
            self._tables[CHANGELOG],
            self._checkpoints,
            by_files=rows is not None,
            leaves=self._leaves,
        )
        self._interval, self._applies, self._waits = interval, applies, waits
        self._thread: FollowerThread | None = None

    def begin(self, spark: SparkSession, number: int, columns: StructType) -> None:
        """Get to know the tables of earlier runs, and let the followers catch up.

        The first batch does it, if nobody did before; but there may be none. `number` is that of
        the first batch to be written, `columns` are those of the source's rows. Raises
        ChangelogTooShort and TableRestored.
        """
        for kind, tables in self._tables.items():
            tables.discover(spark)
            if self._applies or kind not in KINDS:
                tables.require_whole()
        self._followed.warn_of_absence(number)
        if self._applies:
            self._followers.recover(spark, number, columns)
        self._has_begun = True
        if self._interval is not None and self._followers.backlog().batches:
            self._start(spark, self._interval)

    def write_batch(self, batch: DataFrame, batch_id: int) -> BatchReport:
        """Write one batch. May be repeated after any failure.

        The source is read once. Whatever forbids one of the writes (a foreign table) is found
        before the first of them. A batch of nothing but its watermark writes nothing. Raises the
        error that ended the followers.

        `batch` contains the rows of the source, or manifests of data files that contain them.
        """
        phases = Phases()
        if not is_manifest(batch):
            rows = batch.persist()
            try:
                return self._write_rows(rows, batch_id, phases)
            finally:
                rows.unpersist()
        landed = LandedBatch.collect(batch, batch_id, self._storage)
        try:
            summary = landed.summary()
            now = None if summary is None else self._find_rows().batch(landed, batch_id, summary)
            return self._write_batch(batch.sparkSession, now, batch_id, phases, landed)
        except BaseException:
            landed.remove_leftovers()
            raise

    def _write_rows(self, rows: DataFrame, batch_id: int, phases: Phases) -> BatchReport:
        summary = read_summary(rows)
        now = None if summary is None else Batch(batch_id, summary, rows.schema, lambda _: rows)
        return self._write_batch(rows.sparkSession, now, batch_id, phases, None)

    def _find_rows(self) -> LandedRows:
        assert self._rows is not None, "manifests do not say which columns the rows have"
        return LandedRows(self._layout, self._tables, self._rows)

    def _write_batch(
        self,
        spark: SparkSession,
        batch: Batch | None,
        batch_id: int,
        phases: Phases,
        landed: LandedBatch | None,
    ) -> BatchReport:
        if self._thread is not None:
            self._thread.require_running()
        if batch is None:
            return BatchReport(batch_id, None)
        phases.end("tasks")
        written, summary = self._write(spark, batch, landed, phases), batch.summary
        phases.end("followers")
        latency = Latency.of(summary.happened, self._clock() if summary.happened else None)
        self._warnings.warn_inexact(summary)
        streamed = {} if landed is None else landed.streamed
        return BatchReport(
            *(batch_id, summary.watermark, summary.counts, summary.inexact, summary.unmappable),
            *(frozenset(summary.copying), written, latency, phases.seconds, streamed),
        )

    def _write(
        self, spark: SparkSession, batch: Batch, landed: LandedBatch | None, phases: Phases
    ) -> int:
        summary = batch.summary
        now = Commit(batch.number, summary.watermark, offset=summary.progress.offset)
        if not self._has_begun:
            self.begin(spark, batch.number, batch.columns)
        if self._is_first:
            # Also of a table that this batch has nothing for: later batches might have, and the
            # table would contain them twice.
            for tables in self._tables.values():
                tables.require_not_ahead(now)
            self._is_first = False
        work: dict[Kind, list[Table]] = {
            kind: kind.targets(summary, self._tables[kind]) for kind in _KINDS
        }
        if landed is not None:
            mirrors = {table.target.address for table in work[MIRROR]}
            landed.require_folders(self._find_rows().folders(summary), mirrors)
        document = batch.document.simpleString()
        for kind, found in work.items():
            for table in found:
                self._tables[kind].claim(spark, table, document, now)
        self._fill(spark, DEAD_LETTERS, self._tables[DEAD_LETTERS], work[DEAD_LETTERS], batch)
        self._warnings.count_dead_letters(summary)
        following = self._followed.select(work)
        self._followers.create(spark, following, batch.number - 1, batch.columns)
        log = CHANGELOG if landed is None else LandedChangelog(landed)
        self._gaps.wait()
        self._fill(spark, log, self._tables[CHANGELOG], work[CHANGELOG], batch)
        self._gaps.committed()
        self._require_allowed(summary)
        phases.end("commit")
        count = len(work[DEAD_LETTERS]) + len(work[CHANGELOG])
        commits = self._followed.commits(batch.number)
        is_reported = self._followed.report_all(following, commits, summary)
        written: dict[Kind, list[Table]] = {
            kind: [t for t in work[kind] if not (is_reported and self._followed.contains(t))]
            for kind in KINDS
        }
        if any(written.values()):
            count += self._write_now(spark, written, batch, catches_up=not is_reported)
        has_pending = is_reported and self._applies
        if landed is not None and (landed.is_repeated or not (has_pending and commits)):
            # If it is repeated, its files may contain other rows than those of the changelogs.
            landed.remove_leftovers()
            landed = None
        if has_pending:
            count += self._follow(spark, Pending.of(commits, landed))
        return count

    def _write_now(
        self,
        spark: SparkSession,
        found: Mapping[Kind, Sequence[Table]],
        batch: Batch,
        catches_up: bool,
    ) -> int:
        """Write a batch to mirrors and histories; return to how many.

        They may have followed changelogs until now. So the first time, or if it `catches_up`, all
        pending batches are applied before.
        """
        if catches_up or not self._has_caught_up:
            self._followers.apply(spark)
            self._has_caught_up = True
            # Their thread may have begun with these tables once more. It is waited for.
            self._followers.apply(spark)
        self._followers.create(spark, found, None, batch.columns)
        while self._waits():  # another program rewrites mirrors and histories
            time.sleep(_LOOK_SECONDS)
        count = self._followers.write(spark, found, batch)
        self._followers.renew_views(spark, found)
        return count

    def _leaves(self, table: Table) -> bool:
        """Whether the followers leave a table alone: it is written with each batch."""
        return not self._followed.contains(table) and (
            self._has_caught_up or self._followed.is_written_directly(table)
        )

    def _fill(
        self,
        spark: SparkSession,
        writer: Writer,
        tables: Tables,
        found: Sequence[Table],
        batch: Batch,
    ) -> None:
        if not found:  # most batches have no dead letters, and most pipelines no history
            return
        targets = [table.target for table in found]
        is_small = self._sizes.are_small(spark, targets, batch.summary.count)
        with settings(spark, small_write_settings.SETTINGS if is_small else {}):
            at_once(spark, partial(_write, writer, tables, batch), found)
        for target in targets:
            self._checkpoints.committed(spark, target)

    def _follow(self, spark: SparkSession, pending: Pending | None) -> int:
        """Hand a batch to the followers, as the changelogs state it: a batch that is repeated may
        have other rows than those that they contain."""
        self._followers.add(pending)
        if self._interval is None:
            return self._followers.apply(spark)
        if self._followers.backlog().batches:
            self._start(spark, self._interval)
        return 0

    def _start(self, spark: SparkSession, interval: float) -> None:
        if self._thread is None:
            self._thread = FollowerThread(spark, self._followers, interval, waits=self._waits)

    def backlog(self) -> Backlog:
        """How far mirrors and histories lag. Raises the error that ended the followers."""
        if self._thread is not None:
            self._thread.require_running()
        return self._followers.backlog()

    def uncheckpointed_commits(self) -> int:
        """The greatest number of commits of a table after the last checkpoint of its log."""
        return self._checkpoints.backlog()

    def finish(self) -> bool:
        """Let mirrors and histories catch up at once; whether they are still at it.

        Call it after the last batch. Raises the error that ended the followers.
        """
        return self._thread is not None and not self._thread.end(0.0, is_complete=True)

    def close(self, seconds: float | None = 0.0, is_complete: bool = False) -> bool:
        """End the threads; return whether they have ended within `seconds` (None: no limit).

        With `is_complete` the followers apply all that is pending before.
        """
        has_ended = self._thread is None or self._thread.end(seconds, is_complete)
        self._checkpoints.close(seconds)
        if has_ended:
            self._followers.discard()
        return has_ended

    def _require_allowed(self, summary: BatchSummary) -> None:
        """Raise CollectionGone before any mirror or history changes.

        The changelogs contain the event already.
        """
        for kind in KINDS:
            require_allowed(summary, self._tables[kind])


def _write(writer: Writer, tables: Tables, batch: Batch, spark: SparkSession, table: Table) -> None:
    conflict.repeated(partial(writer.write, spark, table, tables, batch), table.target)


def pipeline_of(batch: DataFrame) -> str:
    """The id of the streaming query that a `foreachBatch` batch belongs to: it is kept in the
    checkpoint, so it survives restarts and is new with a new checkpoint. Raises RuntimeError
    outside of a streaming query."""
    pipeline = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    if not pipeline:
        raise RuntimeError("pipeline_of was called outside of a streaming query's foreachBatch.")
    return str(pipeline)
