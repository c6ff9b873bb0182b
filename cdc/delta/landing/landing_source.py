"""The source as `replicate` reads it: its tasks write data files and yield manifests."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from cdc import options as declared
from cdc.delta.landing.destinations import Destinations
from cdc.options import SourceOptions
from cdc.source import NAME, ChangeReader, MongoCdcSource
from cdc.tasks import MANIFEST, land, share_names

LANDING = f"{NAME}-landing"
_DESTINATIONS, _ROWS = "landing.destinations", "landing.rows"
_FILE_SIZE = "landing.file.size.mb"


def landing_options(
    destinations: Destinations, rows: StructType, file_size_mb: int
) -> dict[str, str]:
    """The options that `LandingSource` has on top of those of the source.

    Args:
        destinations: which rows go where.
        rows: the columns of the source.
        file_size_mb: the size at which a data file is complete.
    """
    return {_DESTINATIONS: destinations.text(), _ROWS: rows.json(), _FILE_SIZE: str(file_size_mb)}


class LandingSource(MongoCdcSource):
    """The stream of `mongodb-cdc`, with a manifest for each partition in place of its rows."""

    @classmethod
    def name(cls) -> str:
        return LANDING

    def schema(self) -> str:
        return MANIFEST

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        names = (_DESTINATIONS, _ROWS, _FILE_SIZE)
        destinations, rows, file_size = (self.options[name] for name in names)
        given = {name: value for name, value in self.options.items() if name not in names}
        columns = StructType.fromJson(json.loads(rows))
        return _LandingReader(declared.parse(given), columns, destinations, int(file_size) * 2**20)


class _LandingReader(ChangeReader):
    def __init__(
        self, options: SourceOptions, rows: StructType, destinations: str, file_bytes: int
    ) -> None:
        super().__init__(options, rows)
        self._rows = share_names(to_arrow_schema(rows, timezone="UTC"))
        self._destinations, self._file_bytes = destinations, file_bytes

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        destinations = Destinations.parse(self._destinations)
        streamed = Counter[str]()
        rows = self.read_as(partition, self._rows, lambda reason: streamed.update([reason]))
        # A key of Spark's streaming engine (MicroBatchExecution.BATCH_ID_KEY).
        context = TaskContext.get()
        batch = context.getLocalProperty("streaming.sql.batchId") if context else None
        if batch is None:
            raise RuntimeError("Spark does not state the batch that the task belongs to.")
        divide = partial(destinations.divide, int(batch))
        manifest = land(rows, divide, self._file_bytes, destinations.storage)
        yield replace(manifest, streamed=streamed).to_arrow()
