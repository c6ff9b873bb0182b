"""Status, metrics and reports of a pipeline."""

from cdc.monitoring.pipeline_status import Tables, View, read_status
from cdc.monitoring.progress import Display
from cdc.monitoring.spark_gauges import Gauges, prometheus_settings
from cdc.monitoring.table_stats import TableCommit, TableStats, read_table_stats

__all__ = [
    "Display",
    "Gauges",
    "TableCommit",
    "TableStats",
    "Tables",
    "View",
    "prometheus_settings",
    "read_status",
    "read_table_stats",
]
