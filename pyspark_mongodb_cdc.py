"""Spark looks for installed modules named `pyspark_…` and registers their `DefaultSource`."""

from cdc.source import MongoCdcSource as DefaultSource

__all__ = ["DefaultSource"]
