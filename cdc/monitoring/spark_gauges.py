"""Gauges of a running replication in Spark's own metrics system.

Spark reports them to each metrics sink that is configured, such as Prometheus. This module opens
no port. A gauge with an unknown value is NaN.
"""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Mapping

from pyspark.sql import SparkSession

from cdc.errors import BadOption
from cdc.pipeline import PHASES, Status, under_spark_submit

# The meaning of each gauge by its name. In Prometheus, Spark adds a prefix to the names.
GAUGES: Mapping[str, str] = {
    "batch": "number of the last batch that is in all its changelogs",
    "backlog_batches": "batches that mirrors and histories do not contain yet",
    "backlog_seconds": "seconds since the first of these batches stood in its changelogs",
    "lag_seconds": "seconds from T of the last committed batch to the live edge of the source now",
    "mirror_freshness_seconds": "the same from T of the mirror or history that is least fresh",
    "change_stream_slices": "slices that a change stream had to read instead of the oplog",
    "events_per_second": "changes per second in the batches of the last ten seconds",
    "freshness_newest_seconds": "latency in seconds of the newest change of the last batch",
    "freshness_oldest_seconds": "latency in seconds of the oldest change of the last batch",
    "oplog_hours_left": "hours until the next changes leave the oplog",
    "oplog_percent_left": "the same, as a percentage of the time that the oplog covers",
    "snapshot_percent": "approximate percentage of documents that are copied; 100: nothing is left",
    "inexact_rows": "rows marked exact = false since the program began",
    "planning_seconds": "how long the source and Spark planned the last batch",
    "tasks_seconds": "how long its tasks read MongoDB and wrote data files",
    "commit_seconds": "how long the commits of its dead letters and changelogs took",
    "followers_seconds": "how long mirrors and histories took, if they are written with the batch",
    "logs_seconds": "how long Spark wrote the offset and commit logs of the checkpoint",
    "other_seconds": "the rest of the time from the begin of its trigger to the end",
    "uncheckpointed_commits": "commits of a table after the last checkpoint of its log, at most",
}
_SINK = "spark.metrics.conf.driver.sink.prometheusServlet"


def prometheus_settings(port: int) -> dict[str, str]:
    """Settings of a session that serves its gauges to Prometheus at /metrics/prometheus.

    Spark serves them, and its own pages, on this port of 127.0.0.1 only. Sets SPARK_LOCAL_IP to
    127.0.0.1 if it is not set. Raises BadOption under spark-submit and if the port is in use.
    """
    if under_spark_submit():
        raise BadOption(
            "--metrics-port has no effect under spark-submit: the JVM already runs.",
            "Pass the settings under Monitoring in the README to spark-submit.",
        )
    _require_free(port)
    os.environ["SPARK_LOCAL_IP"] = os.environ.get("SPARK_LOCAL_IP") or "127.0.0.1"
    return {
        "spark.ui.enabled": "true",
        "spark.ui.killEnabled": "false",
        "spark.ui.port": str(port),
        "spark.port.maxRetries": "0",
        "spark.metrics.namespace": "mongodb_cdc",
        f"{_SINK}.class": "org.apache.spark.metrics.sink.PrometheusServlet",
        f"{_SINK}.path": "/metrics/prometheus",
    }


def _require_free(port: int) -> None:
    """Raise BadOption if a port is in use; Spark would print a stack trace."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Spark binds
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise BadOption(
                f"Port {port} of 127.0.0.1 cannot be used: {error.strerror}.",
                "Choose another --metrics-port.",
            ) from error


class Gauges:
    """The gauges of a session, registered with Spark. Only one thread may call `show`."""

    def __init__(self, spark: SparkSession) -> None:
        context, jvm = spark.sparkContext._jsc.sc(), spark._jvm
        assert jvm is not None
        self._accumulators = {
            name: context.doubleAccumulator(f"mongodb_cdc.{name}") for name in GAUGES
        }
        self._shown: Status | None = None
        self._set(dict.fromkeys(GAUGES))
        named = {f"mongodb_cdc.{name}": value for name, value in self._accumulators.items()}
        # A Scala object: Java sees it as the static field MODULE$ of a class.
        source = getattr(jvm, "org.apache.spark.metrics.source.DoubleAccumulatorSource$")
        getattr(source, "MODULE$").register(context, jvm.PythonUtils.toScalaMap(named))

    def show(self, status: Status) -> None:
        if status != self._shown:
            self._shown = status
            self._set(values(status))

    def _set(self, values: Mapping[str, float | None]) -> None:
        for name, value in values.items():
            accumulator = self._accumulators[name]
            accumulator.reset()
            accumulator.add(math.nan if value is None else float(value))


def values(status: Status) -> dict[str, float | None]:
    """The value of each gauge in `GAUGES`; None: unknown."""
    metrics, latency, backlog = status.metrics, status.latency, status.backlog
    left = None if metrics is None else metrics.oplog_left
    phases = {} if status.timing is None else status.timing.phases
    return {
        **{f"{name}_seconds": _seconds(phases.get(name)) for name in PHASES},
        "batch": status.batch,
        "backlog_batches": None if backlog is None else backlog.batches,
        "backlog_seconds": None if backlog is None else backlog.seconds,
        "lag_seconds": None if metrics is None else metrics.lag_seconds,
        "change_stream_slices": sum(status.streamed.values()),
        "events_per_second": None if metrics is None else metrics.events_per_second,
        "mirror_freshness_seconds": status.freshness.mirror,
        "freshness_newest_seconds": None if latency is None else latency.newest,
        "freshness_oldest_seconds": None if latency is None else latency.oldest,
        "oplog_hours_left": None if left is None else left.hours,
        "oplog_percent_left": None if left is None else left.percent,
        "snapshot_percent": None if metrics is None else metrics.snapshot_percent,
        "inexact_rows": sum(status.inexact.values()),
        "uncheckpointed_commits": status.uncheckpointed,
    }


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000
