"""What monitoring sees of a running replication: gauges in Spark's own metrics system.

They go wherever Spark's metrics go, to Prometheus or any other sink that is configured; nothing of
ours listens anywhere. A gauge whose value is not known is NaN.
"""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Mapping

from pyspark.sql import SparkSession

from cdc.errors import BadOption
from jobs.metrics import Status
from jobs.session import under_spark_submit

# Name and unit of each, and what it is. In Prometheus the names begin with what Spark puts there.
GAUGES: Mapping[str, str] = {
    "batch": "number of the last batch that is in all its tables",
    "lag_seconds": "how far the live edge of the source is ahead of T",
    "events_per_second": "changes in the batches of the last ten seconds",
    "freshness_newest_seconds": "from the last batch's newest change to its commit",
    "freshness_oldest_seconds": "from the last batch's oldest change to its commit",
    "oplog_hours_left": "how long the oplog still holds the next changes",
    "oplog_percent_left": "the same, as a share of the time that the oplog reaches back",
    "snapshot_percent": "how much of all documents has been copied, about; 100: nothing is left",
    "inexact_rows": "rows marked exact = false since the program began",
}
_SINK = "spark.metrics.conf.driver.sink.prometheusServlet"


def served(port: int) -> dict[str, str]:
    """Settings of a session whose gauges Prometheus may fetch from /metrics/prometheus of that port
    of this machine alone; Spark's own pages are there too. Raises BadOption under spark-submit."""
    if under_spark_submit():
        raise BadOption(
            "--metrics-port comes too late under spark-submit: the JVM is up already.",
            "Give spark-submit the settings that the README names under Monitoring.",
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
    """Spark would say it in a stack trace."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Spark binds
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise BadOption(
                f"Port {port} of 127.0.0.1 cannot be served: {error.strerror}.",
                "Choose another --metrics-port.",
            ) from error


class Gauges:
    """Registered with Spark once, and set from then on. Calls are of one thread."""

    def __init__(self, spark: SparkSession) -> None:
        context, jvm = spark.sparkContext._jsc.sc(), spark._jvm
        assert jvm is not None
        self._held = {name: context.doubleAccumulator(f"mongodb_cdc.{name}") for name in GAUGES}
        self._shown: Status | None = None
        self._set(dict.fromkeys(GAUGES))
        named = jvm.PythonUtils.toScalaMap({f"mongodb_cdc.{n}": a for n, a in self._held.items()})
        # A Scala object, to Java the one instance of a class.
        source = getattr(jvm, "org.apache.spark.metrics.source.DoubleAccumulatorSource$")
        getattr(source, "MODULE$").register(context, named)

    def show(self, status: Status) -> None:
        if status != self._shown:
            self._shown = status
            self._set(values(status))

    def _set(self, found: Mapping[str, float | None]) -> None:
        for name, value in found.items():
            held = self._held[name]
            held.reset()
            held.add(math.nan if value is None else float(value))


def values(status: Status) -> dict[str, float | None]:
    """By the names of `GAUGES`; None: not known."""
    metrics, fresh = status.metrics, status.freshness
    left = None if metrics is None else metrics.oplog_left
    return {
        "batch": status.batch,
        "lag_seconds": None if metrics is None else metrics.lag_seconds,
        "events_per_second": None if metrics is None else metrics.events_per_second,
        "freshness_newest_seconds": None if fresh is None else fresh.newest,
        "freshness_oldest_seconds": None if fresh is None else fresh.oldest,
        "oplog_hours_left": None if left is None else left.hours,
        "oplog_percent_left": None if left is None else left.percent,
        "snapshot_percent": None if metrics is None else metrics.snapshot_percent,
        "inexact_rows": sum(status.inexact.values()),
    }
