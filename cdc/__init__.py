"""MongoDB change data capture for Spark. The path of a document from MongoDB to Delta:

1. `mongo.planner` asks for the live edge T1 and ends the batch there, or at a DDL event before it;
2. `mongo.enumerator` cuts the next key ranges of the collection being copied;
3. `model.hand_over.advance` is the rule that joins the two into one checkpointed offset;
4. `mongo.snapshot` reads each range exactly as of T1, in parallel Spark tasks;
5. `mongo.stream` reads the changes of what was already done, (T0, T1], whole and once;
6. `model.change` makes both into rows, `model.variant` makes documents into VARIANT; of large
   replies `arrow`, by `kernel`, makes whole columns at once, the same ones;
7. `source` hands the rows to Spark as Arrow batches;
8. `delta.changelog` appends all of them, `delta.mirror` merges the last change of each key, and
   `delta.history` keeps all of them as versions, each with the interval in which it held.

So after every batch a mirror is exact as of T1, and the copy needs no hand-over step of its own.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Makes `format("mongodb-cdc")` known to a session; needed only where the package is not
    installed for Spark to discover (see `pyspark_mongodb_cdc`)."""
    from cdc.source import MongoCdcSource

    _let_planners_find(Path(__file__).parents[1], spark)
    spark.dataSource.register(MongoCdcSource)


def _let_planners_find(place: Path, spark: SparkSession) -> None:
    """A zip that came with the job (`--py-files`): Spark 4.2 tells tasks of it, but has the process
    that plans a stream look for it in a folder that is not there."""
    if not place.is_dir():
        environment = spark.sparkContext.environment
        paths = [str(place), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, dict.fromkeys(paths)))
