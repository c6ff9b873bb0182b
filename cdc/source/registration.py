"""Registration of the data source in a Spark session."""

from __future__ import annotations

import os
from pathlib import Path

from pyspark.sql import SparkSession

from cdc.logs import LEVEL_VARIABLE
from cdc.source.data_source import MongoCdcSource, SqlNamedSource


def register(spark: SparkSession) -> None:
    """Register the data source `mongodb-cdc`, also named `mongodb_cdc`, in a Spark session.

    The session also offers filters of queries to Python sources from then on, so that a batch read
    reads less. Needed only if Spark cannot discover the installed package (see
    `pyspark_mongodb_cdc`), or does not offer its filters.
    """
    _extend_planner_path(Path(__file__).parents[2], spark)
    if level := os.environ.get(LEVEL_VARIABLE):
        spark.sparkContext.environment[LEVEL_VARIABLE] = level
    for source in (MongoCdcSource, SqlNamedSource):
        spark.dataSource.register(source)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")


def _extend_planner_path(place: Path, spark: SparkSession) -> None:
    """Make a zip of the job (`--py-files`) importable in the process that plans a stream.

    Spark 4.2 passes the path of the zip to tasks. The planning process gets the path of a folder
    that does not exist.
    """
    if not place.is_dir():
        environment = spark.sparkContext.environment
        paths = [str(place), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, dict.fromkeys(paths)))
