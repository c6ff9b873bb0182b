"""MongoDB change data capture for Spark.

The path of a document from MongoDB to Delta:

1. `mongo.plan.planner` reads the live edge T1 and ends the batch there, or at an earlier DDL event;
2. `mongo.plan.next_scan` finds the next key ranges of the collection being copied;
3. `model.hand_over` is the rule that combines both in one checkpointed offset;
4. `mongo.read.snapshot` reads each range exactly as of T1, in parallel Spark tasks;
5. `mongo.read.oplog` reads the changes (T0, T1] of everything copied before, completely and once;
   `mongo.read.change_stream` reads what the oplog does not give;
6. `model.change` makes rows of both, and `model.encoding` converts documents to VARIANT; for large
   replies `arrow` and `kernel` make the same columns at once;
7. `tasks.landing` writes the rows to data files of the changelogs; with `write.by = spark`, and for
   the data source alone, `source` passes them to Spark as Arrow batches;
8. `delta` commits each batch to the changelogs. Followers apply whole batches to mirrors (the last
   change of each key) and histories (every change as a version with its interval of validity).

A mirror is exact as of the T1 of the last batch that was applied to it. The copy therefore needs no
separate hand-over step.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from cdc.api import Pipeline

__all__ = ["Pipeline", "live", "register"]


def __getattr__(name: str) -> Any:
    """Import the Python API at first use: Spark imports this package to find the data source."""
    if name == "Pipeline":
        from cdc.api import Pipeline

        return Pipeline
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def register(spark: SparkSession) -> None:
    """Register the data source `mongodb-cdc`, also named `mongodb_cdc`, in a Spark session.

    Needed only if Spark cannot discover the installed package (see `pyspark_mongodb_cdc`).
    """
    from cdc.source import register as register_source

    register_source(spark)


def live(
    spark: SparkSession, config: str, collection: str, overrides: Iterable[str] = ()
) -> DataFrame:
    """Return a collection as its changelog reports it by now, however far its mirror lags.

    Args:
        spark: the session.
        config: the path of the pipeline's TOML file.
        collection: `db.coll`.
        overrides: options as `name=value`, which override those of the file.

    The rows have the columns of the mirror. They are the mirror together with the batches of the
    changelog that it does not contain yet, and they stay as of this call. Raises BadOption if the
    pipeline has no mirror or no changelog of the collection, and NotCovered if the mirror contains
    no batch yet.
    """
    from cdc.api import Pipeline
    from cdc.pipeline import config as configuration

    return Pipeline(configuration.load(config, overrides), spark).live(collection)
