"""The reader of the source for `replicate`: its tasks write data files and yield manifests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from cdc import options as declared
from cdc.delta.landing.destinations import Destinations
from cdc.source import ChangeReader
from cdc.tasks import land, share_names


class LandingReader(ChangeReader):
    """The reader of a stream whose tasks write what they read into data files.

    Args:
        options: those of the source.
        rows: its columns.
        destinations: which rows go where, as `Destinations.text`.
        file_bytes: the size at which a data file is complete.
    """

    def __init__(
        self, options: Mapping[str, str], rows: StructType, destinations: str, file_bytes: int
    ) -> None:
        super().__init__(declared.parse(options), rows)
        self._rows = share_names(to_arrow_schema(rows, timezone="UTC"))
        self._destinations, self._file_bytes = destinations, file_bytes

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        destinations = Destinations.parse(self._destinations)
        streamed = Counter[str]()
        rows = self.read_as(partition, self._rows, lambda reason: streamed.update([reason]))
        # A key of Spark's streaming engine (MicroBatchExecution.BATCH_ID_KEY).
        context = TaskContext.get()
        batch = context.getLocalProperty("streaming.sql.batchId") if context else None
        if context is None or batch is None:
            raise RuntimeError("Spark does not state the batch that the task belongs to.")
        divide = partial(destinations.divide, int(batch))
        manifest = land(rows, divide, self._file_bytes, destinations.storage)
        manifest = replace(manifest, streamed=streamed)
        yield manifest.to_arrow(int(batch), context.partitionId())
