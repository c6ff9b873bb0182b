"""One batch into all its tables: what a `foreachBatch` function calls."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from cdc.delta.followers import CopiedMirror, history, mirror
from cdc.delta.landing import (
    Facts,
    Happened,
    LandedBatch,
    changelog,
    dead_letters,
    is_manifest,
    read_facts,
    require_allowed,
)
from cdc.delta.tables import (
    Commit,
    Layout,
    LogCheckpoints,
    Table,
    Tables,
    at_once,
    conflict,
    settings,
    small_write_settings,
)
from cdc.errors import TooManyDeadLetters
from cdc.model import Namespace, Timestamp

_log = logging.getLogger(__name__)


class _Writer(Protocol):
    """A module that fills one kind of table."""

    def targets(self, facts: Facts, tables: Tables) -> list[Table]: ...

    def write(
        self,
        spark: SparkSession,
        batch: DataFrame,
        table: Table,
        facts: Facts,
        batch_id: int,
        tables: Tables,
    ) -> None: ...


# In the order of writing: what a mirror says has always been told by the changelog before, and what
# could not be mapped is safe before anything tells that it was there.
_WRITERS: Mapping[str, _Writer] = {
    "dead_letters": dead_letters,
    "changelog": changelog,
    "mirror": mirror,
    "history": history,
}


class Freshness(NamedTuple):
    """Seconds from the commit in MongoDB to the moment at which the change stood in all its tables,
    both by the server's clock: of the newest and of the oldest change of a batch."""

    newest: float
    oldest: float


@dataclass(frozen=True, slots=True)
class BatchReport:
    """What a batch held: its watermark (None if it had no row at all), rows per namespace and op,
    those of them that are not exact, images that could not be mapped, the collections whose copy is
    not complete after it, and how many tables were written. `freshness` is None where it held no
    change, or the server's clock is not known; of a batch that is written again, it is that of the
    last time. `seconds`: how long it took to read and to write it."""

    batch_id: int
    watermark: Timestamp | None
    counts: Mapping[Namespace, Mapping[str, int]]
    inexact: Mapping[Namespace, int]
    unmappable: Mapping[Namespace, int]
    copying: frozenset[Namespace]
    tables: int
    freshness: Freshness | None
    seconds: float


class Sink:
    """The tables of one pipeline. One per streaming query, used by one thread.

    With more dead letters than the limit in its lifetime it ends.

    Args:
        pipeline: the query id in the checkpoint (`pipeline_of` a batch), never a name: see
            `cdc.delta.tables.pipeline_tables.Tables`.
        layout: which tables there are.
        clock: returns the server's time in seconds, None if it is unknown.
        dead_letters_limit: how many dead letters there may be.
        rows: the columns of the source, if the batches consist of manifests.
    """

    def __init__(
        self,
        pipeline: str,
        layout: Layout,
        *,
        clock: Callable[[], float | None],
        dead_letters_limit: int | None = None,
        rows: StructType | None = None,
    ) -> None:
        self._kinds = {kind: Tables(kind, layout, pipeline) for kind in _WRITERS}
        self._clock, self._limit, self._rows = clock, dead_letters_limit, rows
        self._dead_letters = 0
        self._is_first = True
        self._warned: set[Namespace] = set()
        self._sizes = small_write_settings.Sizes()
        self._checkpoints = LogCheckpoints()

    def write_batch(self, batch: DataFrame, batch_id: int) -> BatchReport:
        """Write one batch, one kind of table after the other. May be repeated after any failure.

        The source is read once. Whatever forbids one of the writes (a foreign table) is found
        before the first of them. A batch of nothing but its watermark writes nothing.

        `batch` contains the rows of the source, or manifests of data files that contain them.
        """
        began = time.monotonic()
        if not is_manifest(batch):
            rows = batch.persist()
            try:
                return self._write_facts(rows, read_facts(rows), batch_id, began, _WRITERS)
            finally:
                rows.unpersist()
        assert self._rows is not None, "manifests do not say which columns the rows have"
        landed = LandedBatch.collect(batch)
        writers: dict[str, _Writer] = {
            **_WRITERS,
            "changelog": changelog.LandedChangelog(landed),
            "mirror": CopiedMirror(landed),
        }
        try:
            rows = landed.document_rows(batch.sparkSession, self._rows)
            facts = landed.facts()
            return self._write_facts(rows, facts, batch_id, began, writers, landed.folders())
        finally:
            landed.remove_leftovers()

    def _write_facts(
        self,
        rows: DataFrame,
        facts: Facts | None,
        batch_id: int,
        began: float,
        writers: Mapping[str, _Writer],
        folders: Collection[str] = (),
    ) -> BatchReport:
        if facts is None:
            return BatchReport(batch_id, None, {}, {}, {}, frozenset(), 0, None, 0.0)
        written = self._write(rows, facts, batch_id, writers, folders)
        freshness = self._freshness(facts.happened)
        self._warn(facts)
        return BatchReport(
            batch_id,
            facts.watermark,
            facts.counts,
            facts.inexact,
            facts.unmappable,
            frozenset(facts.copying),
            written,
            freshness,
            time.monotonic() - began,
        )

    def _write(
        self,
        batch: DataFrame,
        facts: Facts,
        batch_id: int,
        writers: Mapping[str, _Writer],
        folders: Collection[str],
    ) -> int:
        spark, document = batch.sparkSession, batch.schema["after"].dataType.simpleString()
        now = Commit(batch_id, facts.watermark, offset=facts.said.offset)
        self._discover(spark, now)
        work = [
            (kind, tables, writers[kind].targets(facts, tables))
            for kind, tables in self._kinds.items()
        ]
        addresses = {table.target.address for _, _, found in work for table in found}
        if lost := set(folders) - addresses:
            raise RuntimeError(f"Data files lie where no table of this batch is: {lost}")
        for _, tables, found in work:
            for table in found:
                tables.claim(spark, table, document, now)
        for kind, tables, found in work:
            if kind == "mirror":
                self._require_allowed(facts)
            if found:  # most batches have no dead letters, and most pipelines no history
                targets = [table.target for table in found]
                is_small = self._sizes.are_small(spark, targets, facts.count)
                with settings(spark, small_write_settings.SETTINGS if is_small else {}):
                    write = partial(_write, writers[kind], batch, facts, batch_id, tables)
                    at_once(spark, write, found)
                for table in found:
                    self._checkpoints.committed(spark, table.target)
            if kind == "dead_letters":
                self._count_dead_letters(facts)
        return sum(len(found) for _, _, found in work)

    def close(self) -> None:
        """End the thread that writes checkpoints."""
        self._checkpoints.close()

    def _require_allowed(self, facts: Facts) -> None:
        """Before the first table that holds documents: the others tell of it in any case."""
        for kind in ("mirror", "history"):
            require_allowed(facts, self._kinds[kind])

    def _count_dead_letters(self, facts: Facts) -> None:
        """Raises TooManyDeadLetters above the limit: they are safe then, and nothing else is
        written."""
        for namespace, images in sorted(facts.unmappable.items()):
            _log.warning("%s: %d images could not be mapped: dead letters", namespace, images)
        self._dead_letters += sum(facts.unmappable.values())
        if self._limit is not None and self._dead_letters > self._limit:
            raise TooManyDeadLetters(
                f"{self._dead_letters} images of this run could not be mapped, which is more than"
                f" the {self._limit} of dead.letters.limit.",
                "See the reasons in the table of dead letters; raise the limit to go on, the"
                " changes follow with stand-ins in place of those images.",
            )

    def _freshness(self, happened: Happened | None) -> Freshness | None:
        now = self._clock() if happened else None
        if happened is None or now is None:
            return None
        return Freshness(now - happened.newest, now - happened.oldest)

    def _warn(self, facts: Facts) -> None:
        """Once for each collection: what to do about it is the same every time."""
        for namespace in sorted(facts.inexact.keys() - self._warned):
            self._warned.add(namespace)
            _log.warning(
                "%s: %d rows are marked exact = false: images are missing, or were taken later; let"
                " the server record them (changeStreamPreAndPostImages)",
                namespace,
                facts.inexact[namespace],
            )

    def _discover(self, spark: SparkSession, now: Commit) -> None:
        """Raises ForeignOffset if any table is ahead of the checkpoint, also one that this batch
        has nothing for: those behind it might have, and would tell it twice."""
        if self._is_first:
            for tables in self._kinds.values():
                tables.discover(spark)
                tables.require_not_ahead(now)
            self._is_first = False


def _write(
    writer: _Writer,
    batch: DataFrame,
    facts: Facts,
    batch_id: int,
    tables: Tables,
    spark: SparkSession,
    table: Table,
) -> None:
    again = partial(writer.write, spark, batch, table, facts, batch_id, tables)
    conflict.repeated(again, table.target)


def pipeline_of(batch: DataFrame) -> str:
    """The id of the streaming query that a `foreachBatch` batch belongs to: it is kept in the
    checkpoint, so it survives restarts and is new with a new checkpoint. Raises RuntimeError
    outside of a streaming query."""
    pipeline = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    if not pipeline:
        raise RuntimeError("pipeline_of was called outside of a streaming query's foreachBatch.")
    return str(pipeline)
