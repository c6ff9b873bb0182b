"""A running pipeline: its streaming query, its sink and its stop."""

from __future__ import annotations

import hashlib
import logging
import platform
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructField, StructType

from cdc.checkpoint import Folder, HadoopFiles, gap, is_held, is_local
from cdc.delta.followers import Backlog, has_followers
from cdc.delta.landing import Destinations, obstacles
from cdc.delta.landing_source import LANDING, LandingSource, landing_options
from cdc.delta.sink import BatchReport, Sink, pipeline_of
from cdc.errors import BadOption, TransientError
from cdc.model import NEVER, Timestamp
from cdc.mongo.inspect import LiveEdge, ServerClock
from cdc.mongo.topology import Source, end_cursors, has_unique_keys
from cdc.pipeline.config import REPLICATE, SPARK, TASKS, Config
from cdc.pipeline.layouts import record_layout
from cdc.pipeline.run_metrics import Meter, Status
from cdc.pipeline.running_batch import BatchClock
from cdc.pipeline.spark import connect, mismatch
from cdc.source import NAME, fit_to_cores, register, row_schema
from cdc.tasks import MANIFEST, discover_once, is_remote

_log = logging.getLogger(__name__)
# How long a stop waits for the end of a query that writes nothing or is abandoned.
GIVEN_UP_SECONDS = 5.0
_POLL_SECONDS = 0.1


class Replication:
    """A running pipeline. The constructor starts its query, from the checkpoint if there is one.

    Args:
        available_now: Process the changes up to now, then end.
        on_batch: Called in the query's thread after all tables contain a batch.
    """

    def __init__(
        self,
        spark: SparkSession,
        config: Config,
        available_now: bool = False,
        on_batch: Callable[[BatchReport], None] | None = None,
    ) -> None:
        register(spark)
        connect(spark, config.storage, config.base)
        self._spark, self._config, self._on_batch = spark, config, on_batch
        self._folder = Folder(HadoopFiles(spark), config.checkpoint)
        self._sink: Sink | None = None
        self._meter = Meter(has_followers(config.layout))
        self._running = BatchClock()
        self._edge, self._asking = LiveEdge(), threading.Lock()
        self._source: Source | None = None
        self._writing, self._is_stopped, self._is_ending = threading.Lock(), False, False
        self._comment = _make_comment(config)
        self._end_leftovers()
        options = {**config.source, "emit.watermark": "true", "comment": self._comment}
        options |= fit_to_cores(config.options, spark.sparkContext.defaultParallelism)
        self._rows = row_columns(config)
        reader = spark.readStream.format(NAME)
        if writes_by_tasks(spark, config):
            reader = spark.readStream.format(LANDING).schema(MANIFEST)
            spark.dataSource.register(LandingSource)
            # A mirror has one row for a `key`, so a task may not add the row of another document.
            are_unique = has_unique_keys(config.options.shards_direct)
            with_mirrors = are_unique and config.follow_by == REPLICATE
            destinations = Destinations.discover(spark, config.layout, with_mirrors)
            options |= landing_options(destinations, self._rows, config.file_size_mb)
        self._begin(spark)
        batches = reader.options(**options).load()
        writer = batches.writeStream.foreachBatch(self._write)
        writer = writer.option("checkpointLocation", config.checkpoint)
        if available_now:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=config.trigger)
        self.query: StreamingQuery = writer.start()

    def _begin(self, spark: SparkSession) -> None:
        """Let mirrors and histories catch up, also if there will be no batch."""
        if pipeline := self._folder.pipeline():
            following = self._folder.next_batch()
            self._sink = self._open_sink(pipeline, following)
            self._sink.begin(spark, following, self._rows)
            pending = self._sink.backlog().first
            known = {each - 1 for each in (pending, following) if each}
            plans = {batch: self._folder.read_plan(batch) for batch in known}
            self._meter.resume({batch: plan.offset.time for batch, plan in plans.items() if plan})

    def _write(self, batch: DataFrame, batch_id: int) -> None:
        with self._running.measure(batch_id), self._writing:
            if self._is_stopped:
                # After a return Spark would record the batch as written.
                raise TransientError("The replication was stopped before this batch was written.")
            if self._sink is None:
                self._sink = self._open_sink(pipeline_of(batch), batch_id)
            try:
                report = self._sink.write_batch(batch, batch_id)
            except Exception:
                if self._is_stopped:
                    # Spark searches the message for its cause with a pattern that overflows the
                    # stack where the message is as long as that of a cancelled job. The end of
                    # the query's thread would then print a thousand lines.
                    raise TransientError("This batch was cancelled by a stop.") from None
                raise
            self._meter.count_batch(report)
            if self._on_batch is not None:
                self._on_batch(report)

    def _open_sink(self, pipeline: str, first: int) -> Sink:
        """Open the sink of that pipeline, for batches from `first` on."""
        clock = ServerClock(partial(discover_once, self._config.options))
        limit = self._config.dead_letters_limit
        layout = self._config.layout
        return Sink(
            *(pipeline, layout),
            clock=clock.now,
            dead_letters_limit=limit,
            rows=self._rows,
            interval=self._config.mirror_interval,
            applies=self._config.follow_by == REPLICATE,
            waits=self._waits,
            gap=partial(gap, self._folder),
            layouts=record_layout(self._folder, self._config, first),
        )

    def _waits(self) -> bool:
        """Whether another program rewrites mirrors and histories. A run that ends asks no more."""
        return not self._is_ending and is_held(self._folder)

    def is_active(self) -> bool:
        """Whether the query runs, or mirrors and histories still lack batches of a query that ended
        by itself.

        Raises the error that ended the followers.
        """
        if self.query.isActive:
            return True
        if self.query.exception() is not None or self._sink is None:
            return False
        return self._sink.finish()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until the replication has ended by itself; return whether it has.

        Args:
            seconds: how long to wait; None means without limit.

        Raises the error that ended it.
        """
        until = None if seconds is None else time.monotonic() + seconds
        while self.is_active():
            if until is not None and time.monotonic() >= until:
                return False
            time.sleep(_POLL_SECONDS)
        error = self.query.exception()
        if error is not None:
            raise error
        return True

    def stop(self, seconds: float | None = None) -> bool:
        """Stop after the batch that is being written, if there is one, and after mirrors and
        histories contain all batches.

        A batch that takes longer than `seconds` is abandoned; the next run plans it again. Mirrors
        that would take longer are completed by the next run. None means to wait without limit.
        Raises the error that had already ended the query or the followers.

        Returns whether the query has ended, some seconds later at most. Otherwise it is in an
        operation that cannot be interrupted, and this process should end.
        """
        self._is_ending, began = True, time.monotonic()
        is_between = self._writing.acquire(timeout=-1 if seconds is None else seconds)
        self._is_stopped, is_active = True, self.query.isActive
        if is_between:
            # `query.stop` waits for the query's thread, which may be waiting for this lock.
            self._writing.release()
        limit = None if seconds is None else GIVEN_UP_SECONDS
        has_ended = not is_active or _returns_within(self.query.stop, limit)
        self._end_leftovers()
        error = None if is_active else self.query.exception()
        if error is not None:
            self._abandon()
            raise error
        left = None if seconds is None else max(0.0, seconds - (time.monotonic() - began))
        is_complete = self._sink is None or self._sink.close(left, is_complete=is_between)
        return is_between and has_ended and is_complete

    def _abandon(self) -> None:
        """Let the followers of a query that failed complete what they can.

        The error of the query is the one to report.
        """
        if self._sink is not None:
            try:
                self._sink.close(self._config.stop_seconds, is_complete=True)
            except Exception as error:
                _log.warning("mirrors and histories could not be updated either: %s", error)

    def _end_leftovers(self) -> None:
        """Close the cursors that the killed planner and killed earlier runs left open."""
        end_cursors(partial(discover_once, self._config.options), self._comment)

    def status(self) -> Status:
        """Return the metrics of now, also while a batch runs.

        Asks the source for its live edge, once a second at most, and waits for the answer for 1.5 s
        at most. Raises the error that ended the followers: the next batch would raise it, but an
        idle pipeline has none.
        """
        with self._asking:
            edge = self._edge.now(self._read_edge, self._meter.committed or NEVER)
        commits = None if self._sink is None else self._sink.uncheckpointed_commits()
        status = self._meter.status(self.query.lastProgress, edge, self._read_backlog, commits)
        return replace(status, running=self._running.read(self._spark, str(self.query.runId)))

    def _read_backlog(self) -> Backlog | None:
        if self._sink is None or self._config.follow_by != REPLICATE:
            return None
        return self._sink.backlog()

    def _read_edge(self, floor: Timestamp) -> Timestamp:
        # A removed shard may be gone for good, so the source is refreshed.
        self._source = (self._source or discover_once(self._config.options)).refresh()
        return self._source.live_edge(floor)


def writes_by_tasks(spark: SparkSession, config: Config) -> bool:
    """Whether the tasks write the data files of changelogs; otherwise Spark writes the rows.

    Raises BadOption if `write.by` demands what the tables do not allow.
    """
    reasons = list(obstacles(spark, config.layout))
    if not reasons and config.write_by != SPARK and is_remote(config.base):
        problem = mismatch(spark, config.storage, config.base)
        reasons = [problem] if problem else []
    if reasons and config.write_by == TASKS:
        raise BadOption(
            f"Tasks cannot write the data files of this pipeline: {reasons[0]}.",
            "Correct it, or set write.by in [sink] to auto or spark.",
        )
    if reasons:
        _log.info("Spark writes all rows, because %s", reasons[0])
    return not reasons and config.write_by != SPARK


def row_columns(config: Config) -> StructType:
    """The columns of the source's rows as tables have them: each may be null."""
    columns = row_schema(config.options.document_format)
    return StructType([StructField(each.name, each.dataType) for each in columns])


def _returns_within(call: Callable[[], object], seconds: float | None) -> bool:
    """Whether a call that cannot be interrupted returns within `seconds`; None means no limit.

    Raises the error of the call.
    """
    errors: list[Exception] = []

    def run() -> None:
        try:
            call()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    return not thread.is_alive()


def _make_comment(config: Config) -> str:
    """Return the comment on the cursors of the only job that may run on this checkpoint.

    It contains a hash of the checkpoint's path. A local path counts with machine and directory:
    elsewhere the same path is another checkpoint.
    """
    name = config.checkpoint
    if is_local(name):
        name = f"{platform.node()}:{Path(name).resolve()}"
    digest = hashlib.sha256(name.encode()).hexdigest()[:12]
    return f"{config.options.comment} {digest}"
