"""A running pipeline: its streaming query, its sink, and its end."""

from __future__ import annotations

import hashlib
import platform
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import cdc
from cdc import options as declared
from cdc.delta.sink import BatchReport, Sink, pipeline_of
from cdc.errors import TransientError
from cdc.mongo.clock import ServerClock
from cdc.mongo.leftovers import end_cursors
from cdc.source import NAME
from cdc.task import source_of
from jobs.checkpoint import is_here
from jobs.config import Config
from jobs.metrics import Meter, Status

# How long a query may take to end that is given up, or has nothing to write.
GIVEN_UP_SECONDS = 5.0


class Replication:
    """A running pipeline: its streaming query, started from its checkpoint if it has one.

    `on_batch` is called in the query's thread after each batch is in all its tables.
    """

    def __init__(
        self,
        spark: SparkSession,
        config: Config,
        available_now: bool = False,
        on_batch: Callable[[BatchReport], None] | None = None,
    ) -> None:
        cdc.register(spark)
        self._config, self._on_batch = config, on_batch
        self._sink: Sink | None = None
        self._meter = Meter()
        self._writing, self._is_stopped = threading.Lock(), False
        self._comment = _comment(config)
        self._end_leftovers()
        options = {**config.source, "emit.watermark": "true", "comment": self._comment}
        rows = spark.readStream.format(NAME).options(**options).load()
        writer = rows.writeStream.foreachBatch(self._write)
        writer = writer.option("checkpointLocation", config.checkpoint)
        if available_now:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=config.trigger)
        self.query: StreamingQuery = writer.start()

    def _write(self, batch: DataFrame, batch_id: int) -> None:
        with self._writing:
            if self._is_stopped:
                # To return would tell Spark that the batch is written.
                raise TransientError("The replication was stopped before this batch was written.")
            if self._sink is None:
                self._sink = self._opened(pipeline_of(batch))
            report = self._sink.write_batch(batch, batch_id)
            self._meter.batch(report)
            if self._on_batch is not None:
                self._on_batch(report)

    def _opened(self, pipeline: str) -> Sink:
        clock = ServerClock(partial(source_of, declared.parse(self._config.source)))
        limit = self._config.dead_letters_limit
        return Sink(pipeline, self._config.layout, clock=clock.now, dead_letters_limit=limit)

    def stop(self, seconds: float | None = None) -> bool:
        """Stops behind the batch being written, if there is one; raises the error that had ended
        the query before. A batch that is not written within so many seconds is given up, and
        planned again by the next run.

        Returns whether the query has ended. One that has not, a few seconds later, is busy with
        what nobody can interrupt; this process should end.
        """
        is_between = self._writing.acquire(timeout=-1 if seconds is None else seconds)
        self._is_stopped, is_active = True, self.query.isActive
        if is_between:
            # Spark waits for the query's thread, and that may be about to write.
            self._writing.release()
        given_up = None if seconds is None else GIVEN_UP_SECONDS
        has_ended = not is_active or _is_done(self.query.stop, given_up)
        self._end_leftovers()
        error = None if is_active else self.query.exception()
        if error is not None:
            raise error
        return is_between and has_ended

    def _end_leftovers(self) -> None:
        """Of this process, which Spark's end of the planner leaves, and of one that was killed."""
        end_cursors(partial(source_of, declared.parse(self._config.source)), self._comment)

    def status(self) -> Status:
        """How far it is, how fast, and how safe: as its last trigger and its last batch saw it."""
        return self._meter.status(self.query.lastProgress)


def _is_done(call: Callable[[], object], seconds: float | None) -> bool:
    """Whether a call that nobody can interrupt returns within so many seconds; raises its error if
    it does. None: however long it takes."""
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


def _comment(config: Config) -> str:
    """Of the cursors of the one job that may run on a checkpoint; a folder of that name on another
    machine, or in another directory, is another one."""
    name = config.checkpoint
    if is_here(name):
        name = f"{platform.node()}:{Path(name).resolve()}"
    mark = hashlib.sha256(name.encode()).hexdigest()[:12]
    return f"{declared.parse(config.source).comment} {mark}"
