"""Conversions between Spark's objects and ours: options, limits, splits and errors."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import ParamSpec, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxBytes, ReadMaxRows
from pyspark.sql.types import StructType

from cdc.errors import CdcError
from cdc.kernel import freeze_objects
from cdc.logs import escape_default_logs
from cdc.model import ControlSplit, Split, join_neighbours
from cdc.mongo.connection import Pace
from cdc.mongo.inspect import Wanted
from cdc.mongo.plan import Limits, Start, start_of
from cdc.mongo.topology import Source
from cdc.options import SourceOptions
from cdc.source.columns import arrow_schema, row_schema, select_columns
from cdc.tasks import record_batches

P = ParamSpec("P")
T = TypeVar("T")
# Beside what it reads, a task costs some 20 ms of CPU, in Spark and in its Python process, and a
# cursor 3 ms.
_LEAST_MB = 32
# Nobody knows here how many cores there are.
_LEAST_TASKS = 16
# Parts of a batch. Two cores need eight splits, so that one that has read a split finds another.
LEAST_SPLITS, _LEAST_SLICES = 8, 4
_SPLITS_PER_CORE = 4
# A batch of a copy must end within the server's history of five minutes. A replica set needs one
# or two for so many splits of 64 MiB. Each slice is a cursor on the server.
_MOST_SPLITS, _MOST_SLICES = 1_000, 64
# `pyspark.util.handle_worker_exception` omits the stack trace if it is set.
_HIDES = "SPARK_HIDE_TRACEBACK"

escape_default_logs()  # for Spark's Python processes too: they print to the same place as its JVM


class Partition(InputPartition):
    """The splits of a task. It reads them one after the other, at most at `bytes_per_second`."""

    def __init__(self, splits: Sequence[Split], bytes_per_second: float | None = None) -> None:
        super().__init__(None)
        self.splits, self.bytes_per_second = splits, bytes_per_second


def make_partitions(splits: Sequence[Split], options: SourceOptions) -> list[Partition]:
    """Divide splits into partitions: one for each split, but at most `max.cursors` that read.

    Small neighbouring splits of a copy count as one, if there are many: see `_join_small`.

    Each reading partition gets an equal share of `max.mb.per.second`, because all may run at once
    and they do not communicate. Control splits join the last partition: a task of their own would
    take longer than their few rows.
    """
    reading = _join_small(
        [each for each in splits if not isinstance(each, ControlSplit)], options.split_size_mb
    )
    control = [each for each in splits if isinstance(each, ControlSplit)]
    count = min(len(reading), options.max_cursors or len(reading))
    rate = options.max_mb_per_second
    share = rate * 2**20 / count if rate and count else None
    groups = [reading[first::count] for first in range(count)]
    if groups:
        groups[-1] += control
    elif control:
        groups = [list[Split](control)]
    return [Partition(group, share) for group in groups]


def _join_small(splits: Sequence[Split], split_size_mb: int) -> list[Split]:
    """Join neighbouring splits up to a size that is worth a task and a cursor."""
    most = min(_LEAST_MB // split_size_mb, len(splits) // _LEAST_TASKS)
    return join_neighbours(splits, most)


def read_rows(
    partition: InputPartition, options: SourceOptions, schema: StructType, may_be_void: bool
) -> Iterator[pa.RecordBatch]:
    """Read the columns of `schema`, which are some of the source's, in a task."""
    own, wanted = arrow_schema(row_schema(options.document_format)), arrow_schema(schema)
    for batch in read_partition(partition, options, own, may_be_void):
        yield select_columns(batch, wanted)


def read_partition(
    partition: InputPartition,
    options: SourceOptions,
    schema: pa.Schema,
    may_be_void: bool,
    note: Callable[[str], None] = lambda reason: None,
) -> Iterator[pa.RecordBatch]:
    """Read the rows of a partition, in a task; see `cdc.tasks.task.record_batches`."""
    assert isinstance(partition, Partition)
    pace = Pace(partition.bytes_per_second)
    for split in partition.splits:
        yield from record_batches(split, options, schema, may_be_void, pace, note)
    pace.wait()
    freeze_objects("all that a task needs")


def make_wanted(
    source: Source, options: SourceOptions, is_new: bool = True, follows: bool = True
) -> Wanted:
    """Convert the options to a request to preflight, see `Wanted`.

    Args:
        source: The source, for the time of a start.
        options: The options of the run.
        is_new: Whether the run has no checkpoint.
        follows: Whether the run reads changes.
    """
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


def make_limits(options: SourceOptions) -> Limits:
    """Return the limits of a micro-batch that the options set."""
    return Limits(
        options.max_events_per_batch,
        options.max_mb_per_batch * 2**20,
        options.stream_parallelism or _LEAST_SLICES,
    )


def fit_to_cores(options: SourceOptions, cores: int) -> dict[str, str]:
    """Return those of the options for the number of parts of a batch that are absent, as text.

    `cores` is how many tasks Spark runs at once.
    """
    fitting = dict[str, str]()
    if options.snapshot_splits_per_batch is None:
        splits = min(max(_SPLITS_PER_CORE * cores, LEAST_SPLITS), _MOST_SPLITS)
        fitting["snapshot.splits.per.batch"] = str(splits)
    if options.stream_parallelism is None:
        fitting["stream.parallelism"] = str(min(max(cores, _LEAST_SLICES), _MOST_SLICES))
    return fitting


def apply_limit(own: Limits, limit: ReadLimit) -> Limits:
    """Replace our limit by Spark's: of rows or of bytes; the other limit stays.

    Any other limit of Spark, such as that of Trigger.Once, means no limit at all.
    """
    if isinstance(limit, ReadMaxRows):
        return own._replace(events=limit.max_rows)
    if isinstance(limit, ReadMaxBytes):
        return own._replace(bytes=limit.max_bytes)
    return own.unlimited


def plain_errors(method: Callable[P, T]) -> Callable[P, T]:
    """Let Spark show only the message and the remedy of a CdcError of `method`.

    A process of Spark ends with the error that it reports. So the setting changes no other error.
    """

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(*args, **kwargs)
        except CdcError:
            if "pyspark.worker_util" in sys.modules:  # only in processes of Spark
                os.environ[_HIDES] = "1"
            raise

    return call
