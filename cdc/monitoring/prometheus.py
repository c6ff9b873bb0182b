"""The metrics of a running replication for Prometheus, at an HTTP endpoint of its own.

Names and labels follow the conventions of Prometheus: seconds and ratios, and counters that end in
`_total` and count from the start of the program. A value that is unknown has no sample.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from cdc.delta.landing import ROW_OPS
from cdc.errors import BadOption
from cdc.model import Namespace
from cdc.mongo.inspect import WAITING
from cdc.monitoring import Copy
from cdc.pipeline import Status

PREFIX = "mongodb_cdc_"


class Metric(NamedTuple):
    """The meaning of a metric, and its labels besides `pipeline`."""

    meaning: str
    labels: tuple[str, ...] = ()


METRICS: Mapping[str, Metric] = {
    "lag_seconds": Metric(
        "Seconds from T of the last committed batch to the live edge of the source now. A batch"
        " covers all collections whose copy has begun, so they have one lag.",
        ("collection",),
    ),
    "rows_total": Metric("Rows written to changelogs, copied ones included.", ("collection", "op")),
    "inexact_rows_total": Metric("Those of the rows marked exact = false.", ("collection",)),
    "dead_letters_total": Metric("Images that could not be mapped.", ("collection",)),
    "copied_ratio": Metric(
        "Approximate ratio of documents that are copied; 1: nothing is left.", ("collection",)
    ),
    "snapshot_ratio": Metric("The same of all collections together."),
    "mirror_freshness_seconds": Metric(
        "Seconds from T of the least fresh mirror or history to the live edge of the source now."
    ),
    "backlog_batches": Metric("Batches that mirrors and histories do not contain yet."),
    "backlog_seconds": Metric("Seconds since the first of these batches is in its changelogs."),
    "latency_seconds": Metric(
        "Seconds from a change in MongoDB until its changelog contained it, of the newest and the"
        " oldest change of the last batch with changes.",
        ("change",),
    ),
    "batch": Metric("Number of the last batch that is in all its changelogs."),
    "running_batch_seconds": Metric("How long the present batch is being written; 0: none is."),
    "batch_phase_seconds": Metric("How long each phase of the last batch took.", ("phase",)),
    "change_stream_slices_total": Metric(
        "Slices that a change stream had to read instead of the oplog, by the reason.", ("reason",)
    ),
    "oplog_left_seconds": Metric("Seconds until the next changes leave the oplog."),
    "oplog_left_ratio": Metric("The same, as a ratio of the time that the oplog covers."),
    "source_up": Metric("Whether the source answers: 1 or 0."),
    "uncheckpointed_commits": Metric(
        "Commits after the last checkpoint of a table's log, of the table with the most of them."
    ),
}
Samples = Mapping[tuple[str, ...], float | None]


def read_samples(status: Status, copies: Mapping[Namespace, Copy]) -> dict[str, Samples]:
    """The samples of each metric in `METRICS`, by the values of its labels; None: unknown.

    Args:
        status: the status of the replication.
        copies: the captured collections.
    """
    metrics, latency, backlog = status.metrics, status.latency, status.backlog
    lag = None if metrics is None else metrics.lag_seconds
    percent = None if metrics is None else metrics.snapshot_percent
    left = None if metrics is None else metrics.oplog_left
    phases = {} if status.timing is None else status.timing.phases
    names = {*copies, *status.rows}
    return {
        "lag_seconds": {
            (str(name),): lag for name, copy in copies.items() if copy.phase != WAITING
        },
        # Without a first sample of 0, Prometheus would not see the first rows as an increase.
        "rows_total": {
            (str(name), op): counts.get(op, 0)
            for name in names
            for counts in (status.rows.get(name, {}),)
            for op in (*ROW_OPS, *counts)
        },
        "inexact_rows_total": {(str(name),): status.inexact.get(name, 0) for name in names},
        "dead_letters_total": {(str(name),): status.unmappable.get(name, 0) for name in names},
        "copied_ratio": {(str(name),): copy.ratio for name, copy in copies.items()},
        "snapshot_ratio": {(): None if percent is None else percent / 100},
        "mirror_freshness_seconds": {(): status.freshness.mirror},
        "backlog_batches": {(): None if backlog is None else backlog.batches},
        "backlog_seconds": {(): None if backlog is None else backlog.seconds},
        "latency_seconds": {} if latency is None else _keyed(latency._asdict()),
        "batch": {(): status.batch},
        "running_batch_seconds": {(): 0.0 if status.running is None else status.running.seconds},
        "batch_phase_seconds": {(name,): spent / 1000 for name, spent in phases.items()},
        "change_stream_slices_total": _keyed(status.streamed),
        "oplog_left_seconds": {(): None if left is None else 3600 * left.hours},
        "oplog_left_ratio": {(): None if left is None else left.percent / 100},
        "source_up": {(): None if metrics is None else float(metrics.live_edge is not None)},
        "uncheckpointed_commits": {(): status.uncheckpointed},
    }


def _keyed(values: Mapping[str, float]) -> Samples:
    return {(name,): value for name, value in values.items()}


class Exporter(Collector):
    """Answers Prometheus with the last status that was shown; before that, with no samples.

    `pipeline` is the name of the pipeline, which is the first label of each sample.
    """

    def __init__(self, pipeline: str) -> None:
        self._pipeline = pipeline
        self._shown: tuple[Status, Mapping[Namespace, Copy]] | None = None

    def show(self, status: Status, copies: Mapping[Namespace, Copy]) -> None:
        """Show a status and the captured collections, which do not change any more."""
        self._shown = status, copies

    def collect(self) -> Iterable[Family]:
        if self._shown is None:
            return
        for name, samples in read_samples(*self._shown).items():
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            metric = METRICS[name]
            family = kind(PREFIX + name, metric.meaning, labels=("pipeline", *metric.labels))
            for labels, value in samples.items():
                if value is not None:
                    family.add_metric([self._pipeline, *labels], value)
            yield family


@contextmanager
def serve(pipeline: str, address: str, port: int) -> Iterator[Exporter]:
    """Answer requests at http://ADDRESS:PORT/metrics while the `with` block runs.

    Args:
        pipeline: the name of the pipeline.

    Raises BadOption if the port cannot be used.
    """
    registry, exporter = CollectorRegistry(), Exporter(pipeline)
    registry.register(exporter)
    try:
        server, thread = start_http_server(port, address, registry)
    except OSError as error:
        raise BadOption(
            f"Port {port} of {address} cannot be used: {error.strerror}.",
            "Choose another --metrics-port, or correct --metrics-address.",
        ) from error
    try:
        yield exporter
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
