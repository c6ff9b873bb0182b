"""`status` reports what is in the tables of a real pipeline, without the engine that wrote them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from cdc.cli import status
from cdc.demo import ReplicaSet
from cdc.model import Namespace
from cdc.mongo.inspect import Freshness
from cdc.monitoring import pipeline_status
from tests.end_to_end.past import Past, past_of


@pytest.fixture(scope="module")
def past(
    spark: SparkSession, mongod: ReplicaSet, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Past]:
    folder = tmp_path_factory.mktemp("standing") / "lakehouse"
    with past_of(spark, mongod, Namespace("standing", "orders"), folder) as past:
        yield past


@pytest.mark.slow
def test_rows_are_those_that_spark_counts_also_where_some_are_deleted(past: Past) -> None:
    """Guards: rows that a deletion vector takes away are in the file still."""
    config = past.config(past.folder)
    view = pipeline_status.read_status(config)
    [(extent, tables)] = view.collections
    assert extent.phase == "streaming"
    for kind, found in (("mirror", tables.mirror), ("changelog", tables.changelog)):
        table = config.table(kind, past.orders)
        assert table is not None
        assert found is not None
        assert found.newest is not None
        assert found.rows == table.target.read(past.spark).count()
        assert found.newest.commit.batch == past.last
    assert view.letters == 0
    assert view.freshness == Freshness(view.metrics.lag_seconds, view.metrics.lag_seconds)
    assert view.warnings == []


def test_status_reports_rows_to_people_to_programs_and_to_a_browser(
    past: Past, tmp_path: Path
) -> None:
    given = [item for each in past.options(past.folder) for item in ("-o", each)]
    page = tmp_path / "page.html"
    done = CliRunner().invoke(
        status.main, [*given, "--json", "--html", str(page)], catch_exceptions=False
    )
    assert done.exit_code == 0, done.output
    [found] = json.loads(done.stdout)["collections"]
    assert (found["mirror"]["rows"], found["changelog"]["rows"]) == (18, 32)
    assert found["mirror"]["batch"] == past.last
    shown = CliRunner().invoke(status.main, given, catch_exceptions=False)
    assert " 18 " in shown.stdout
    assert " 32 " in shown.stdout
    read = _Page()
    read.feed(page.read_text())
    assert "standing.orders" in read.said
    assert {"18", "32", "streaming"} <= set(read.said)
    assert read.open == []
    assert not read.fetched


class _Page(HTMLParser):
    """What a page says, which of its elements are open still, and what it makes a browser fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.said, self.open, self.fetched = list[str](), list[str](), list[str]()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "link", "img", "br", "input"):
            self.open.append(tag)
        self.fetched += [
            str(value)
            for name, value in attrs
            if name in ("src", "href", "xlink:href") and not str(value).startswith("#")
        ]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.said.append(data.strip())
