"""Access to the checkpoint and the tables of a pipeline: without Spark where that is possible.

Without Spark a program answers in a second; Spark's JVM alone takes several to start.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from pyspark.sql import SparkSession

from cdc.checkpoint import Files, HadoopFiles, LocalFiles, is_local
from cdc.delta.log import LocalReader, NeedsSpark, SparkReader, TableReader
from cdc.pipeline.config import Config
from cdc.pipeline.spark import has_default, under_spark_submit
from cdc.tasks import is_remote

_ABSOLUTE = re.compile(r"file:/")
# Either may name another file system for paths without a scheme.
_HADOOP_FOLDERS = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")
_DEFAULT_SYSTEM = "spark.hadoop.fs.defaultFS"


@dataclass(frozen=True, slots=True)
class Access:
    """How the files of a checkpoint and the tables are read.

    Each use may raise NeedsSpark if it is access without Spark.
    """

    files: Files
    tables: TableReader


def access_by_spark(spark: SparkSession) -> Access:
    """Access to any file system and catalog that Spark reaches."""
    return Access(HadoopFiles(spark), SparkReader(spark))


def access_locally(config: Config) -> Access:
    """Access without Spark. Raises NeedsSpark unless checkpoint and tables are on this machine."""
    if under_spark_submit():
        raise NeedsSpark("spark-submit started it")
    if any(route.is_name for options in config.layout.all() for route in options.routes.values()):
        raise NeedsSpark("a table is in a catalog")
    for path in (config.checkpoint, config.base):
        if not is_local(path) or is_remote(path):
            raise NeedsSpark(f"{path} is not on the local file system")
        if not _ABSOLUTE.match(path) and (setting := _find_default_system(config)):
            raise NeedsSpark(f"{setting} may name a file system for {path}")
    return Access(LocalFiles(), LocalReader())


def _find_default_system(config: Config) -> str | None:
    """The setting that may put paths without a scheme on another file system; None if none."""
    for name in _HADOOP_FOLDERS:
        if os.environ.get(name):
            return name
    is_set = _DEFAULT_SYSTEM in config.spark or has_default(_DEFAULT_SYSTEM)
    return _DEFAULT_SYSTEM if is_set else None
