"""Spark's data source `mongodb-cdc`: translation between Spark and the packages below.

It decides nothing. Stream: offset ⇄ JSON, planner → splits → partitions, rows → Arrow batches.
Batch: the same splits, all at one cluster time. `inquiry` queries the source without Spark.
"""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from cdc import options as declared
from cdc.errors import BadOption
from cdc.options import SourceOptions
from cdc.source.batch_readers import (
    FilteredSnapshotReader,
    FilteredWindowReader,
    SnapshotReader,
    WindowReader,
)
from cdc.source.columns import require_readable, row_schema
from cdc.source.pushdown import is_offered
from cdc.source.sql_table import options_of, require_options, table_options, with_options
from cdc.source.stream_reader import ChangeReader
from cdc.source.translation import plain_errors

NAME = "mongodb-cdc"


class MongoCdcSource(DataSource):
    """`spark.read` and `spark.readStream` with format `mongodb-cdc`."""

    @classmethod
    def name(cls) -> str:
        return NAME

    @plain_errors
    def schema(self) -> StructType | str:
        stored = table_options(self.options)
        options = declared.parse(self.options if stored is None else stored)
        columns = row_schema(options.document_format)
        return columns if stored is None else with_options(columns, stored)

    @plain_errors
    def reader(self, schema: StructType) -> DataSourceReader:
        options = self._parse_options(schema)
        if options.from_ is None:
            return (FilteredSnapshotReader if is_offered() else SnapshotReader)(options, schema)
        return (FilteredWindowReader if is_offered() else WindowReader)(options, schema)

    @plain_errors
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return ChangeReader(self._parse_options(schema), schema)

    @plain_errors
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        raise _read_only_error()

    @plain_errors
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        raise _read_only_error()

    def _parse_options(self, schema: StructType) -> SourceOptions:
        given = {**options_of(schema), **self.options}
        require_options(given)
        options = declared.parse(given)
        require_readable(schema, options.document_format)
        return options


def _read_only_error() -> BadOption:
    return BadOption(
        f"The format {NAME} reads MongoDB and does not write to it.",
        "Write with another connector, for example mongo-spark.",
    )


class SqlNamedSource(MongoCdcSource):
    """The same source by a name that SQL accepts without backticks: `USING mongodb_cdc`."""

    @classmethod
    def name(cls) -> str:
        return NAME.replace("-", "_")
