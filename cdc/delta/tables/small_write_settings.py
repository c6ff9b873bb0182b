"""Settings for small writes to small tables, where the overhead of Spark takes most of the time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pyspark.sql import SparkSession

from cdc.delta.log import Size, Target, stated_size

# Code that is generated and compiled for each piece of a plan, plans that are changed on the way,
# and tasks without rows. Of the tables' logs too, which is why a table must have few files.
SETTINGS = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
}
_ROWS = 10_000
_BYTES, _FILES = 16 * 2**20, 500
# A table that was measured is not measured again before so many rows were written.
_UNMEASURED_ROWS = 100_000


@dataclass(slots=True)
class Sizes:
    """The sizes of tables, as far as they decide about the settings.

    A table that was large once counts as large from then on.
    """

    _left: dict[Target, int] = field(default_factory=dict)
    _large: set[Target] = field(default_factory=set)

    def are_small(self, spark: SparkSession, targets: Sequence[Target], rows: int) -> bool:
        """Whether a write of `rows` rows is small, and all of its tables are."""
        for each in targets:
            self._left[each] = self._left.get(each, 0) - rows
        return rows <= _ROWS and all(self._is_small(spark, each) for each in targets)

    def _is_small(self, spark: SparkSession, target: Target) -> bool:
        """Measures the table only if the answer depends on it."""
        if target not in self._large and self._left[target] < 0:
            if target.exists(spark) and not _is_within(target, spark):
                self._large.add(target)
            self._left[target] = _UNMEASURED_ROWS
        return target not in self._large


def _is_within(target: Target, spark: SparkSession) -> bool:
    snapshot = target.snapshot(spark)
    # To count, Delta starts a Spark job.
    size = stated_size(snapshot) or Size(snapshot.numOfFiles(), snapshot.sizeInBytes())
    return size.bytes <= _BYTES and size.files <= _FILES
