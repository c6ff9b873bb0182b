"""Spark finds one source in each module named `pyspark_…`; this is the one named `mongodb_cdc`."""

from cdc.source import SqlNamedSource as DefaultSource

__all__ = ["DefaultSource"]
