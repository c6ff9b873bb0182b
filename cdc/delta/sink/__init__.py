"""One batch into the tables of a pipeline: what a `foreachBatch` function calls."""

from cdc.delta.sink.batch_report import SINK_PHASES, BatchReport, Latency
from cdc.delta.sink.sink import Sink, pipeline_of

__all__ = ["SINK_PHASES", "BatchReport", "Latency", "Sink", "pipeline_of"]
