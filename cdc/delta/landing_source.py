"""The source as `replicate` reads it: the stream of `mongodb-cdc` as manifests of data files.

Spark creates the source in a process of its own, which does nothing else. So nothing but PySpark is
imported here: the libraries for MongoDB, Arrow and Delta take half a CPU second.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceStreamReader
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from cdc.delta.landing import Destinations

LANDING = "mongodb-cdc-landing"
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


class LandingSource(DataSource):
    """The stream with a manifest for each partition in place of its rows.

    Its schema is `cdc.tasks.MANIFEST`, which the query has to set.
    """

    @classmethod
    def name(cls) -> str:
        return LANDING

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from cdc.delta.landing import LandingReader

        names = (_DESTINATIONS, _ROWS, _FILE_SIZE)
        destinations, rows, file_size = (self.options[name] for name in names)
        given = {name: value for name, value in self.options.items() if name not in names}
        columns = StructType.fromJson(json.loads(rows))
        return LandingReader(given, columns, destinations, int(file_size) * 2**20)
