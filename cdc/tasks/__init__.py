"""What runs in a Spark task: a split becomes rows, and rows become Arrow batches."""

from cdc.tasks.task import discover_once, discover_source, query_source, record_batches

__all__ = ["discover_once", "discover_source", "query_source", "record_batches"]
