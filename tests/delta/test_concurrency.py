"""Tables that are written at once, each by a thread of its own."""

from __future__ import annotations

from threading import Barrier

from pyspark.sql import SparkSession

from cdc.delta.log import at_once

OWN, INHERITED = "tests.own", "tests.inherited"


def test_each_write_has_the_properties_of_its_caller_and_none_of_another(
    spark: SparkSession,
) -> None:
    """Guards: by them Spark knows which query a job belongs to. It keeps for ever what it takes for
    the job of another that still runs: the driver of a long run is out of memory some day."""
    tables, all_there, found = ["a", "b", "c"], Barrier(3, timeout=60), dict[str, object]()

    def write(session: SparkSession, table: str) -> None:
        context = session.sparkContext
        context.setLocalProperty(OWN, table)
        all_there.wait()
        found[table] = context.getLocalProperty(OWN), context.getLocalProperty(INHERITED)

    spark.sparkContext.setLocalProperty(INHERITED, "everybody's")
    at_once(spark, write, tables)
    assert found == {table: (table, "everybody's") for table in tables}
    assert spark.sparkContext.getLocalProperty(OWN) is None


def test_each_write_has_settings_of_its_own(spark: SparkSession) -> None:
    """Guards: MERGE takes its transaction from the settings of the session. With that of another
    table Delta skips a batch, or commits it under a number that is not its own."""
    tables, all_there, found = ["a", "b", "c"], Barrier(3, timeout=60), dict[str, object]()

    def write(session: SparkSession, table: str) -> None:
        session.conf.set(OWN, table)
        all_there.wait()
        found[table] = session.conf.get(OWN)

    at_once(spark, write, tables)
    assert found == {table: table for table in tables}
    assert spark.conf.get(OWN, None) is None
