"""The page of a status says how the pipeline is, what to do and what happened, to this machine."""

from __future__ import annotations

import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner

from cdc.checkpoint import Checkpoint
from cdc.cli import status
from cdc.errors import TransientError
from cdc.mongo.topology import Remaining
from cdc.monitoring import StatusServer, View, render_page
from cdc.monitoring.charts import Point, TimeAxis, bars, line, rates
from tests.monitoring.example_view import view


def test_a_page_shows_names_as_they_are() -> None:
    """Guards: markup in a name, and a name that the template takes for one of its own."""
    page = render_page(view(letters=1, name="a<b $facts & c"))
    assert "shop.a&lt;b&gt;$c" in page
    assert "<h1>a&lt;b $facts &amp; c</h1>" in page
    assert "a<b" not in page


@pytest.mark.parametrize(
    ("reported", "state"),
    [
        ({}, "good: Up to date, lag 5 s"),
        ({"letters": 1}, "doubtful: Needs attention, lag 5 s"),
        ({"letters": 1, "quiet": 500.0, "lag": 400}, "bad: Needs action now, lag 400 s"),
        ({"left": Remaining(3.0, 12.0, "")}, "bad: Needs action now, lag 5 s"),
    ],
)
def test_a_page_says_in_one_coloured_line_how_the_pipeline_is(
    reported: dict[str, Any], state: str
) -> None:
    page = render_page(view(**reported))
    [found] = re.findall(r'<p class="state (\w+)">(.*?)</p>', page)
    assert ": ".join(found) == state


def test_a_page_tells_what_is_copied_and_what_has_not_begun() -> None:
    seen = view()
    half = replace(seen.collections[0][0], phase="copying", copied=0.4)
    copying = replace(
        seen,
        metrics=replace(seen.metrics, snapshot_percent=41.0),
        collections=[(half, seen.collections[0][1])],
    )
    page = render_page(copying)
    assert '<p class="state copying">Copying: 41 % of the documents, lag 5 s</p>' in page
    assert 'copying 40 % <progress max="100" value="40">' in page
    new = replace(
        seen,
        checkpoint=Checkpoint(None, None, None),
        metrics=replace(seen.metrics, time=None, lag_seconds=None),
        collections=[],
    )
    page = render_page(new)
    assert '<p class="state idle">No batch is written yet</p>' in page
    assert "<svg" not in page


def test_a_page_has_the_severe_problems_first_each_with_what_to_do() -> None:
    page = render_page(view(letters=1, quiet=500.0, lag=400))
    [severe, other] = re.findall(r'<li class="(\w+)"><b>.*?</b> (.*?)</li>', page)
    assert severe == ("bad", "Check whether the job runs, and read its log.")
    assert other[0] == "doubtful"
    assert "replay-dead-letters" in other[1]


def test_the_charts_of_a_page_add_up_to_the_rows_of_the_changelog() -> None:
    changed = view(changed=["insert"])
    page = render_page(changed)
    titles = re.findall(r"<figcaption><b>(.*?)</b>", page)
    ages = ["Age of changelogs at commit", "Age of mirrors at commit"]
    assert titles == ["Changes per second", *ages]
    assert page.count('class="spark"') == 1
    [(_, tables)] = changed.collections
    axis = TimeAxis.of([each.moment for each in tables.changelog.commits], time.time())
    points = [Point(each.moment, 1) for each in tables.changelog.commits]
    assert sum(rates(points, axis)) * axis.part == pytest.approx(3)


def test_a_chart_has_a_bar_or_a_point_for_each_part_however_many_commits_there_are() -> None:
    axis = TimeAxis(0.0, 600.0)
    points = [Point(0.5 * number, 9.0 if number % 20 == 5 else 1.0) for number in range(1200)]
    assert bars("a", points, axis).count("<rect") == 60
    drawn = line("a", points, axis, "s")
    assert drawn.count("<circle") == drawn.count(": 9 s</title>") == 60
    assert bars("a", [], axis) == line("a", [], axis, "s") == ""


def test_a_page_without_foreign_content_reloads_only_if_it_is_served() -> None:
    page = render_page(view())
    assert "http" not in page
    assert "src=" not in page
    assert "<script" not in page
    assert 'http-equiv="refresh"' in render_page(view(), refresh=10)


@pytest.fixture
def server() -> Iterator[StatusServer]:
    with StatusServer("shop", view, 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def fetch(url: str, **headers: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_the_page_is_served_to_this_machine_alone(server: StatusServer) -> None:
    """Guards: a site whose name resolves to 127.0.0.1, and which reads the page in a browser."""
    assert server.server_address[0] == "127.0.0.1"
    code, page = fetch(server.url)
    assert code == 200
    assert "<h1>shop</h1>" in page
    assert 'http-equiv="refresh"' in page
    assert fetch(server.url, Host="localhost:8080")[0] == 200
    assert fetch(server.url, Host="evil.example")[0] == 403
    assert fetch(f"{server.url}other")[0] == 404


def test_a_status_that_cannot_be_read_is_a_page_with_the_error() -> None:
    def read() -> View:
        raise TransientError("No server answers <now>.", "Start it.")

    with StatusServer("shop", read, 0) as server:
        page = server.page()
    assert '<p class="state bad">The status cannot be read. No server answers &lt;now&gt;.' in page
    assert "Start it." in page


@pytest.mark.parametrize(
    ("more", "said"),
    [((), "Port {port} of 127.0.0.1 cannot be used"), (("--watch",), "cannot be combined")],
)
def test_a_page_that_cannot_be_served_is_refused_with_what_to_do(
    server: StatusServer, more: tuple[str, ...], said: str
) -> None:
    port = str(server.server_address[1])
    given = ["uri=mongodb://127.0.0.1:1", "collections=a.b", "sink.path=x"]
    options = [item for each in given for item in ("-o", each)]
    done = CliRunner().invoke(status.main, [*options, "--serve", port, *more])
    assert done.exit_code == 2, done.output
    assert said.format(port=port) in done.stderr
    assert "Remedy: " in done.stderr
