"""Lag and freshness are measured to the live edge of now, whatever the source does."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from bson.timestamp import Timestamp

from cdc.demo import ReplicaSet
from cdc.model import NEVER
from cdc.mongo.inspect import Edge, LiveEdge, lag, lag_seconds
from cdc.mongo.topology import discover
from tests.mongo.capture import Client, last_write, until


def test_lag_is_the_seconds_to_the_live_edge_and_none_where_one_of_both_is_unknown() -> None:
    edge = Edge(Timestamp(100, 7))
    assert lag_seconds(edge, Timestamp(97, 9)) == 3
    assert lag_seconds(edge, Timestamp(101, 1)) == 0, "what is read may be newer than the answer"
    assert lag_seconds(edge, None) is None
    assert lag_seconds(None, Timestamp(97, 9)) is None


def test_the_lag_behind_a_silent_source_grows_with_the_clock() -> None:
    """Guards: a lag that stands still, as if the pipeline were up to date."""
    silent = Edge(Timestamp(100, 7), silence=12.9)
    assert lag_seconds(silent, Timestamp(97, 9)) == 15
    assert silent.reported is None


def test_the_live_edge_is_asked_for_once_a_second_and_never_goes_back(
    mongod: ReplicaSet, mongo: Client
) -> None:
    source, asked = discover(mongod.uri, 3000), list[Timestamp]()

    def ask(floor: Timestamp) -> Timestamp:
        asked.append(floor)
        return source.live_edge(floor)

    edge, began = LiveEdge(), time.monotonic()
    first = edge.now(ask)
    assert first is not None
    assert first.time > NEVER
    while time.monotonic() - began < 0.5:
        assert edge.now(ask) == first
    assert asked == [NEVER]
    mongo.test.foreign.insert_one({})
    written = last_write(mongo)
    until(lambda: _time_of(edge, ask) >= written)
    later = Timestamp(written.time + 50, 1)
    assert edge.now(ask, later) == Edge(later)
    assert len(asked) <= 2 + (time.monotonic() - began)


def test_a_source_that_stops_answering_is_waited_for_briefly_and_counted_as_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lag, "PATIENCE_SECONDS", 0.3)
    with ReplicaSet() as server:
        source, edge = discover(server.uri, 30_000), LiveEdge()
        until(lambda: edge.now(source.live_edge) is not None)
        server.members[0].kill()
        began = time.monotonic()
        until(lambda: _silence(edge, source.live_edge) >= 3)
        assert time.monotonic() - began < 10, "each question would have taken 30 seconds"
        known = edge.now(source.live_edge)
        assert known is not None
        assert lag_seconds(known, known.time) == int(known.silence) >= 3
        assert LiveEdge().now(source.live_edge) is None


def _time_of(edge: LiveEdge, ask: Callable[[Timestamp], Timestamp]) -> Timestamp:
    known = edge.now(ask)
    assert known is not None
    return known.time


def _silence(edge: LiveEdge, ask: Callable[[Timestamp], Timestamp]) -> float:
    known = edge.now(ask)
    assert known is not None
    return known.silence
