"""What the readers share: options, limits and splits, from Spark's side to that of the layers below
and back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxBytes, ReadMaxRows
from pyspark.sql.types import StructType

from cdc.kernel.loading import settled
from cdc.logs import print_plainly
from cdc.model.split import ControlSplit, Split
from cdc.mongo.cluster import Source
from cdc.mongo.pace import Pace
from cdc.mongo.preflight import Wanted
from cdc.mongo.slices import Limits
from cdc.mongo.start import Start, start_of
from cdc.options import SourceOptions
from cdc.task import record_batches

print_plainly()  # in Spark's own Python processes too, which print where its JVM does


class Partition(InputPartition):
    """Splits on their way to a task, which reads one after the other, together no more than
    `bytes_per_second`."""

    def __init__(self, splits: Sequence[Split], bytes_per_second: float | None = None) -> None:
        super().__init__(None)
        self.splits, self.bytes_per_second = splits, bytes_per_second


def partitions(splits: Sequence[Split], options: SourceOptions) -> list[Partition]:
    """A task for each split, but for no more than `max.cursors` that read; each of these gets an
    equal share of `max.mb.per.second`, for they may all run at once, and know nothing of each
    other."""
    reading = [split for split in splits if not isinstance(split, ControlSplit)]
    count = min(len(reading), options.max_cursors or len(reading))
    rate = options.max_mb_per_second
    share = rate * 2**20 / count if rate and count else None
    dealt = [Partition(reading[place::count], share) for place in range(count)]
    return dealt + [Partition([split]) for split in splits if isinstance(split, ControlSplit)]


def read(
    partition: InputPartition, options: SourceOptions, schema: StructType, may_be_void: bool
) -> Iterator[pa.RecordBatch]:
    """The rows of a partition, in a task; see `cdc.task.record_batches`."""
    assert isinstance(partition, Partition)
    arrow, pace = to_arrow_schema(schema, timezone="UTC"), Pace(partition.bytes_per_second)
    for split in partition.splits:
        yield from record_batches(split, options, arrow, may_be_void, pace)
    pace.wait()
    settled("all that a task needs")


def wanted_of(
    source: Source, options: SourceOptions, is_new: bool = True, follows: bool = True
) -> Wanted:
    """What a run with these options asks for, see `Wanted`."""
    mode, start = options.mode, options.start
    return Wanted(
        options.selection,
        options.images == "required",
        is_new,
        follows,
        start_of(source, mode, start) if is_new and follows else Start(),
        options.capture,
        options.missing_collections == "wait",
    )


def limits_of(options: SourceOptions) -> Limits:
    """What a micro-batch may hold by our own options."""
    return Limits(
        options.max_events_per_batch,
        options.max_mb_per_batch * 2**20,
        options.stream_parallelism,
    )


def limited(own: Limits, limit: ReadLimit) -> Limits:
    """What Spark allows a batch, in rows or in bytes, and of the other our own; everything where it
    asks for no less, as Trigger.Once does."""
    if isinstance(limit, ReadMaxRows):
        return own._replace(events=limit.max_rows)
    if isinstance(limit, ReadMaxBytes):
        return own._replace(bytes=limit.max_bytes)
    return own.lifted
