"""The Python API: one pipeline as an object, for notebooks, schedulers and own programs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Self

from bson.timestamp import Timestamp
from pyspark.sql import DataFrame, SparkSession

from cdc.checkpoint import WrittenBatch, checkpoint
from cdc.delta.followers import has_followers
from cdc.delta.log import Target
from cdc.delta.reading import as_of, live
from cdc.delta.sink import BatchReport
from cdc.errors import BadOption
from cdc.model import Namespace, timestamp
from cdc.mongo.inspect import Examination
from cdc.monitoring import TableCommit, View, read_status, read_table_stats, summarize
from cdc.pipeline import (
    BackfillRequest,
    BackfillResult,
    Config,
    Part,
    Replication,
    RestoreResult,
    Verdict,
    end,
    mirrored_until,
    restore,
    select_namespaces,
    session,
    starting,
    verify,
)
from cdc.pipeline import config as configuration
from cdc.source import plan


class Pipeline:
    """One pipeline: the collections, tables and checkpoint that its configuration names.

    Nothing is read, written or started before a method is called. Collections are named as text,
    `db.coll`. Methods raise errors of `cdc.errors`, whose `remedy` says what to do, besides what
    their description names.

    In a `with` block, the Spark session that the pipeline has started ends with the block.

    Attributes:
        config: the checked configuration.
    """

    def __init__(self, config: Config, spark: SparkSession | None = None) -> None:
        self.config = config
        self._spark, self._is_own = spark, False

    @classmethod
    def from_toml(
        cls,
        path: str,
        options: Mapping[str, Any] | None = None,
        spark: SparkSession | None = None,
    ) -> Self:
        """Load a pipeline from its TOML file.

        Args:
            path: the file; `conf/example.toml` shows all options.
            options: options by name, such as `{"sink.trigger": "5 seconds"}`, which override those
                of the file.
            spark: the session to use, with Delta. By default the first method that needs Spark
                takes the active session, or starts one.

        Raises BadOption if the file cannot be read, or if an option is missing, unknown or wrong.
        """
        return cls(configuration.load(path, _as_texts(options or {})), spark)

    @classmethod
    def from_options(cls, options: Mapping[str, Any], spark: SparkSession | None = None) -> Self:
        """Make a pipeline of options by name, without a file.

        Names have their section in front, except those of `[source]`:
        `{"uri": "env:MONGODB_URI", "collections": "shop.orders", "sink.path": "/lake"}`. Raises
        BadOption.
        """
        return cls(configuration.load(None, _as_texts(options)), spark)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_own and self._spark is not None:
            end(self._spark)
            self._spark, self._is_own = None, False

    @property
    def spark(self) -> SparkSession:
        """The Spark session with Delta that the methods use; started if there is none yet."""
        if self._spark is None:
            self._is_own = SparkSession.getActiveSession() is None
            self._spark = session("mongodb-cdc", config=self.config)
        return self._spark

    @contextmanager
    def run(
        self,
        available_now: bool = False,
        on_batch: Callable[[BatchReport], None] | None = None,
    ) -> Iterator[Replication]:
        """Replicate while the `with` block runs, from the checkpoint on if there is one.

        At the end of the block the replication stops after the batch that is being written.

        Args:
            available_now: process the changes up to now, then end; `wait()` of the replication
                returns then.
            on_batch: called in a thread after all tables contain a batch.

        Raises at once what would prevent a start, such as CheckpointInUse, and in the block or at
        its end the error that ended the replication.
        """
        running = self._spark or SparkSession.getActiveSession()
        with starting(self.config, lambda _: self.spark, running) as (spark, _):
            replication = Replication(spark, self.config, available_now, on_batch)
            try:
                yield replication
            finally:
                replication.stop()

    def plan(self) -> Examination:
        """Check what a new run would find: privileges, collections, oplog. Does not need Spark.

        The errors that would prevent a start are in `problems` of the result.
        """
        return plan(self.config.options, has_followers(self.config.layout))

    def status(self) -> View:
        """Return the status of the pipeline, whether it runs or not. Does not need Spark."""
        return read_status(self.config)

    def summary(self) -> dict[str, str]:
        """Return what `mongodb-cdc status` prints of the whole pipeline, as text by label."""
        return summarize(self.status())

    def batches(self) -> list[WrittenBatch]:
        """Return the newest batches of the checkpoint, at most 90, the oldest of them first.

        Does not need Spark. The checkpoint must be on a local disk.
        """
        return checkpoint.batches(self.config.checkpoint)

    def verify(self, *collections: str, is_live: bool = False) -> list[Verdict]:
        """Compare collections with their mirrors, as of the mirrors' times.

        Args:
            collections: names; all collections of the pipeline by default.
            is_live: compare with the live views instead.

        Raises NotComparable if there is no time at which to compare.
        """
        chosen = select_namespaces(self.config, collections)
        return [verify(self.spark, self.config, each, is_live) for each in chosen]

    def backfill(
        self,
        collection: str,
        *,
        into: Collection[str] = (),
        least: str | None = None,
        below: str | None = None,
        condition: str | None = None,
        start: str | None = None,
        end: str | None = None,
        at: str | None = None,
        repair: bool = False,
        is_dry: bool = False,
        run_id: str | None = None,
    ) -> BackfillResult:
        """Read documents, or the changes of a time window, again into tables.

        A running replication may continue meanwhile. The arguments are the options of `mongodb-cdc
        backfill`.

        Args:
            collection: `db.coll`.
            into: `mirror`, `changelog` or both; `mirror` by default.
            least: read documents from this `_id` on, in Extended JSON.
            below: read documents below this `_id`.
            condition: read documents that match this `$match` filter, in Extended JSON.
            start: read changes from this time on instead, into the changelog.
            end: read changes before this time, and at most up to the job's last batch.
            at: read documents as of this time, into the changelog alone.
            repair: delete from the mirror the documents that the source lacks.
            is_dry: write nothing, and report what would be written.
            run_id: calls with one id add documents to the changelog only once.

        Times are ISO-8601 or `seconds:increment`. Raises BadOption for arguments that contradict
        each other, before anything is read.
        """
        part = Part(least, below, condition)
        request = BackfillRequest(
            collection, tuple(into), part, start, end, at, repair, is_dry, run_id
        )
        request.check(self.config)
        return request.execute(self.spark, self.config)

    def restore(
        self,
        collection: str,
        time: Timestamp | datetime | str,
        to_uri: str,
        into: str | None = None,
        force: bool = False,
    ) -> RestoreResult:
        """Write a collection as of a time back into MongoDB, from its changelog.

        Args:
            collection: `db.coll`.
            time: see `as_of`.
            to_uri: the connection string of the target, or `env:NAME` or `file:PATH`.
            into: the collection to write into, `db.coll`; the same name by default.
            force: delete the content of the target first.
        """
        own, target = self._parse(collection), Namespace.parse(into or collection)
        at = _parse_time(time)
        return restore(self.spark, self.config, own, at, to_uri, target, force)

    def live(self, collection: str) -> DataFrame:
        """Return a collection as its changelog reports it now, however far its mirror lags.

        The rows have the columns of the mirror and stay as of this call. Raises NotCovered if the
        mirror contains no batch yet.
        """
        return live(self.spark, self.config.layout, self._parse(collection)).rows

    def as_of(self, collection: str, time: Timestamp | datetime | str) -> DataFrame:
        """Return the documents of a collection as of a time, from its changelog.

        Args:
            collection: `db.coll`.
            time: a cluster time; `seconds:increment` or ISO-8601 as text; or a `datetime` with a
                time zone. The last two mean: before all changes of that second.

        `exact` is false for a document that may have been another one at that time. Raises
        NotCovered if the changelog does not cover the time.
        """
        namespace, at = self._parse(collection), _parse_time(time)
        changelog = self.table("changelog", collection)
        return as_of(self.spark, changelog, namespace, at)

    def table(self, kind: str, collection: str) -> Target:
        """Return the place of a table: `changelog`, `mirror`, `history` …

        `read(spark)` of the result returns its rows, `sql(spark)` its name in SQL. Raises BadOption
        if the pipeline has no such table.
        """
        return self.config.require_table(kind, self._parse(collection)).target

    def commits(self, kind: str, collection: str) -> list[TableCommit]:
        """Return the newest batches in a table, at most 200, the oldest of them first.

        Does not need Spark. Empty if the table does not exist yet, or is in a catalog.
        """
        stats = read_table_stats(self.table(kind, collection))
        return [] if stats is None else list(reversed(stats.commits))

    def mirrored_until(self, collection: str) -> Timestamp | None:
        """Return the time up to which the collection's mirror contains all changes.

        None if it does not contain the whole copy yet, or if there is no mirror.
        """
        return mirrored_until(self.spark, self.config, self._parse(collection))

    def _parse(self, collection: str) -> Namespace:
        return self.config.parse_captured(collection)


def _as_texts(options: Mapping[str, Any]) -> list[str]:
    return [f"{name}={configuration.to_text(value)}" for name, value in options.items()]


def _parse_time(time: Timestamp | datetime | str) -> Timestamp:
    if isinstance(time, datetime):
        if time.tzinfo is None:
            raise BadOption(f"The time {time} has no time zone.", "Write datetime(…, tzinfo=UTC).")
        return timestamp.parse(time.isoformat())
    return timestamp.parse(time) if isinstance(time, str) else time
