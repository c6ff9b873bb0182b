"""Status, metrics and reports of a pipeline."""

from cdc.monitoring.contents import find_lacks
from cdc.monitoring.display import Display
from cdc.monitoring.html_report import render_page
from cdc.monitoring.panel import Limits
from cdc.monitoring.pipeline_status import Problem, Tables, View, read_status
from cdc.monitoring.progress import Copy
from cdc.monitoring.status_server import StatusServer
from cdc.monitoring.summary import age, known, lag_of, second, summarize
from cdc.monitoring.table_stats import TableCommit, TableStats, read_table_stats

__all__ = [
    "Copy",
    "Display",
    "Limits",
    "Problem",
    "StatusServer",
    "TableCommit",
    "TableStats",
    "Tables",
    "View",
    "age",
    "find_lacks",
    "known",
    "lag_of",
    "read_status",
    "read_table_stats",
    "render_page",
    "second",
    "summarize",
]
