"""MongoDB change data capture for Spark.

The path of a document from MongoDB to Delta:

1. `mongo.plan.planner` reads the live edge T1 and ends the batch there, or at an earlier DDL event;
2. `mongo.plan.next_scan` finds the next key ranges of the collection being copied;
3. `model.hand_over` is the rule that combines both in one checkpointed offset;
4. `mongo.read.snapshot` reads each range exactly as of T1, in parallel Spark tasks;
5. `mongo.read.change_stream` reads the changes (T0, T1] of everything copied before, completely and
   once;
6. `model.change` makes rows of both, and `model.encoding` converts documents to VARIANT; for large
   replies `arrow` and `kernel` make the same columns at once;
7. `source` passes the rows to Spark as Arrow batches;
8. `delta` writes the tables. A changelog gets all rows, a mirror the last change of each key, and a
   history every change as a version with its interval of validity.

After every batch a mirror is exact as of T1. The copy therefore needs no separate hand-over step.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Register the data source `mongodb-cdc` in a Spark session.

    Needed only if Spark cannot discover the installed package (see `pyspark_mongodb_cdc`).
    """
    from cdc.source import MongoCdcSource

    _extend_planner_path(Path(__file__).parents[1], spark)
    spark.dataSource.register(MongoCdcSource)


def _extend_planner_path(place: Path, spark: SparkSession) -> None:
    """Make a zip of the job (`--py-files`) importable in the process that plans a stream.

    Spark 4.2 passes the path of the zip to tasks. The planning process gets the path of a folder
    that does not exist.
    """
    if not place.is_dir():
        environment = spark.sparkContext.environment
        paths = [str(place), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, dict.fromkeys(paths)))
