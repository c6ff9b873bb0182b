"""The metrics keep to the conventions of Prometheus, and dashboard and alerts to the metrics."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.parser import text_string_to_metric_families

from cdc.delta.sink import Latency
from cdc.demo.mongod import find_free_ports
from cdc.model import Namespace, Timestamp
from cdc.mongo.inspect import COPYING, STREAMING, WAITING, Freshness, Metrics
from cdc.mongo.topology import Remaining
from cdc.monitoring import Copy
from cdc.monitoring.prometheus import METRICS, PREFIX, read_samples, serve
from cdc.pipeline import Status
from tests.documents import ROOT

ORDERS, NEW, ODD = Namespace("shop", "orders"), Namespace("shop", "new"), Namespace("shop", 'o"\n')
NOTHING = Status(None, None, None, {})
COPIES = {
    ORDERS: Copy(100, STREAMING, 100),
    NEW: Copy(100, WAITING, 0),
    ODD: Copy(200, COPYING, 50),
}
RUNNING = Status(
    7,
    Metrics(Timestamp(9, 1), Timestamp(12, 5), 3, 1.5, Remaining(2.0, 85.0, ""), 62.5),
    Latency(0.5, 2.5),
    {ORDERS: 4},
    freshness=Freshness(3, 12),
    streamed={"DDL": 2},
    rows={ORDERS: {"insert": 5, "drop": 1}},
    unmappable={ORDERS: 1},
)
# A metric in an expression, with the labels that it is selected by.
_SELECTED = re.compile(rf"{PREFIX}(\w+)(?:\{{(.*?)\}})?")
_BY = re.compile(r"by \(([^)]*)\)")


def test_names_end_in_their_unit_and_counters_in_total() -> None:
    for name in METRICS:
        assert re.fullmatch("[a-z_]+", name)
        assert not re.search("percent|hours|milli|_ms|per_second", name)
        assert name.endswith(("_seconds", "_ratio", "_total", "_up", "_batches", "_commits")) or (
            name == "batch"
        )


def test_each_metric_has_samples_with_its_labels_and_no_other() -> None:
    for status in (NOTHING, RUNNING):
        found = read_samples(status, COPIES)
        assert set(found) == set(METRICS)
        for name, samples in found.items():
            assert {len(labels) for labels in samples} <= {len(METRICS[name].labels)}, name


def test_what_is_unknown_has_no_sample_and_what_has_not_begun_no_lag() -> None:
    assert "lag_seconds" not in _read(NOTHING)
    assert "mongodb_cdc_batch" not in _read(NOTHING)
    found = _read(RUNNING)
    assert {each["collection"] for each, _ in found["mongodb_cdc_lag_seconds"]} == {
        "shop.orders",
        str(ODD),
    }
    assert all(value == 3 for _, value in found["mongodb_cdc_lag_seconds"])


def test_counters_begin_at_zero_and_values_are_seconds_and_ratios() -> None:
    found = _read(RUNNING)
    rows = {(s["collection"], s["op"]): n for s, n in found["mongodb_cdc_rows_total"]}
    assert rows["shop.orders", "insert"] == 5
    assert rows["shop.orders", "drop"] == 1
    assert rows["shop.orders", "delete"] == rows["shop.new", "read"] == 0
    dead = {s["collection"]: n for s, n in found["mongodb_cdc_dead_letters_total"]}
    assert dead == {"shop.orders": 1, "shop.new": 0, str(ODD): 0}
    copied = {s["collection"]: n for s, n in found["mongodb_cdc_copied_ratio"]}
    assert copied == {"shop.orders": 1, "shop.new": 0, str(ODD): 0.25}
    assert found["mongodb_cdc_oplog_left_seconds"] == [({"pipeline": "p"}, 7200.0)]
    assert found["mongodb_cdc_oplog_left_ratio"] == [({"pipeline": "p"}, 0.85)]
    assert found["mongodb_cdc_snapshot_ratio"] == [({"pipeline": "p"}, 0.625)]
    assert found["mongodb_cdc_mirror_freshness_seconds"] == [({"pipeline": "p"}, 12)]
    latency = {s["change"]: n for s, n in found["mongodb_cdc_latency_seconds"]}
    assert latency == {"newest": 0.5, "oldest": 2.5}
    assert found["mongodb_cdc_change_stream_slices_total"] == [
        ({"pipeline": "p", "reason": "DDL"}, 2)
    ]


def _read(status: Status) -> dict[str, list[tuple[dict[str, str], float]]]:
    """The samples as a Prometheus reads them from the endpoint."""
    [port] = find_free_ports(1)
    with serve("p", "127.0.0.1", port) as exporter:
        assert _fetch(port) == []
        exporter.show(status, COPIES)
        families = _fetch(port)
    kinds = {family.name: family.type for family in families}
    assert set(kinds.values()) <= {"gauge", "counter"}
    samples = [sample for family in families for sample in family.samples]
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for sample in samples:
        is_counter = kinds.get(sample.name.removesuffix("_total")) == "counter"
        assert is_counter == sample.name.endswith("_total")
        assert sample.labels["pipeline"] == "p"
        found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def _fetch(port: int) -> list[Family]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as reply:
        return list(text_string_to_metric_families(reply.read().decode()))


# --- dashboard and alerts ------------------------------------------------------------------------


def _dashboard() -> Any:
    return json.loads((ROOT / "conf/grafana.json").read_text())


def _alerts() -> Any:
    [group] = yaml.safe_load((ROOT / "conf/alerts.yaml").read_text())["groups"]
    return group["rules"]


def _expressions() -> Iterator[str]:
    for panel in _dashboard()["panels"]:
        yield from (target["expr"] for target in panel["targets"])
    for variable in _dashboard()["templating"]["list"][1:]:
        yield variable["definition"]
    yield from (rule["expr"] for rule in _alerts())


@pytest.mark.parametrize("expression", list(_expressions()))
def test_an_expression_names_metrics_that_there_are_by_labels_that_they_have(
    expression: str,
) -> None:
    found = _SELECTED.findall(expression)
    assert found or expression == 'up{job="mongodb-cdc"} == 0'
    for name, selectors in found:
        labels = {"pipeline", *METRICS[name].labels}
        assert set(re.findall(r"(\w+)[=!]", selectors)) <= labels
        for group in _BY.findall(expression):
            assert set(re.findall(r"\w+", group)) <= labels


def test_the_dashboard_shows_each_metric_of_the_chosen_pipelines_and_collections() -> None:
    texts = [t["expr"] for panel in _dashboard()["panels"] for t in panel["targets"]]
    shown = [found for text in texts for found in _SELECTED.findall(text)]
    assert {name for name, _ in shown} == set(METRICS)
    for name, selectors in shown:
        assert 'pipeline=~"$pipeline"' in selectors
        assert ('collection=~"$collection"' in selectors) == ("collection" in METRICS[name].labels)
    names = [each["name"] for each in _dashboard()["templating"]["list"]]
    assert names == ["datasource", "pipeline", "collection"]


def test_lag_mirrors_and_oplog_have_thresholds_on_the_dashboard_that_alerts_have_too() -> None:
    limits = {
        name: {
            step["value"]
            for panel in _dashboard()["panels"]
            if any(f"{PREFIX}{name}" in target["expr"] for target in panel["targets"])
            for step in panel["fieldConfig"]["defaults"].get("thresholds", {}).get("steps", [])
        }
        for name in METRICS
    }
    for rule in _alerts():
        found = re.search(rf"{PREFIX}(\w+)\)? [<>] ([\d.]+)$", rule["expr"])
        if found and "increase" not in rule["expr"]:
            assert float(found[2]) in limits[found[1]], rule["alert"]


def test_each_alert_has_a_severity_and_says_what_to_do() -> None:
    assert len(_alerts()) > 5
    for rule in _alerts():
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"]["remedy"].endswith(".")
        assert "$labels." in rule["annotations"]["summary"]
