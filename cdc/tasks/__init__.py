"""What runs in a Spark task: a split becomes rows, and rows become Arrow batches."""

from cdc.tasks.task import discover_source, query_source, record_batches, source_of

__all__ = ["discover_source", "query_source", "record_batches", "source_of"]
