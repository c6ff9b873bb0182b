"""Views in a catalog that belong to a pipeline.

A view names its pipeline in its properties, as a table does. What somebody else has created is
neither replaced nor removed.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import SparkSession

from cdc.delta.log import Target
from cdc.delta.sql import literal
from cdc.errors import TableOwnedElsewhere

_SUFFIX = "_live"


def live_view(mirror: Target) -> Target:
    """The place of the view beside a mirror in a catalog, whether there is one or not."""
    assert mirror.is_name, "only a catalog has views"
    return Target(f"{mirror.address[:-1]}{_SUFFIX}`", is_name=True)


def put_view(spark: SparkSession, place: Target, owner: Mapping[str, str], query: str) -> None:
    """Let the view contain what `query` selects; create it if nothing is there.

    Readers get the former query or the new one. Raises TableOwnedElsewhere if the name belongs to
    anything else than a view of this `owner` (its properties), and PySparkException or Py4JError
    if the catalog has no views or refuses them.
    """
    if not spark.catalog.tableExists(place.address):
        pairs = ", ".join(f"{literal(name)} = {literal(value)}" for name, value in owner.items())
        spark.sql(f"CREATE VIEW {place.address} TBLPROPERTIES ({pairs}) AS {query}")
    elif is_owned(spark, place, owner):
        spark.sql(f"ALTER VIEW {place.address} AS {query}")
    else:
        raise TableOwnedElsewhere(
            f"The name {place.address} belongs to a table or view that this pipeline did not make.",
            "Drop or rename it, or choose another name for the mirror.",
        )


def drop_view(spark: SparkSession, place: Target, owner: Mapping[str, str]) -> bool:
    """Remove the view of this `owner`; return whether there was one. Anything else stays."""
    if not is_owned(spark, place, owner):
        return False
    spark.sql(f"DROP VIEW IF EXISTS {place.address}")
    return True


def is_foreign_view(spark: SparkSession, place: Target, owner: Mapping[str, str]) -> bool:
    """Whether the name belongs to a view that is not of this `owner`."""
    is_there = place.is_name and bool(spark.catalog.tableExists(place.address))
    return is_there and place.is_view(spark) and not is_owned(spark, place, owner)


def text_of_view(spark: SparkSession, place: Target, owner: Mapping[str, str]) -> str | None:
    """The query of the view of this `owner`; None if there is none."""
    if not is_owned(spark, place, owner):
        return None
    facts = spark.sql(f"DESCRIBE TABLE EXTENDED {place.address}").collect()
    return next((row.data_type for row in facts if row.col_name == "View Text"), None)


def is_owned(spark: SparkSession, place: Target, owner: Mapping[str, str]) -> bool:
    """Whether there is a view whose properties contain `owner`."""
    if not spark.catalog.tableExists(place.address) or not place.is_view(spark):
        return False
    found = spark.sql(f"SHOW TBLPROPERTIES {place.address}").collect()
    return owner.items() <= {row.key: row.value for row in found}.items()
