"""Status, metrics and reports of a pipeline."""

from cdc.monitoring.pipeline_status import Tables, View, look
from cdc.monitoring.progress import Display
from cdc.monitoring.spark_gauges import Gauges, prometheus_settings
from cdc.monitoring.table_stats import Landed, Made, landed

__all__ = [
    "Display",
    "Gauges",
    "Landed",
    "Made",
    "Tables",
    "View",
    "landed",
    "look",
    "prometheus_settings",
]
