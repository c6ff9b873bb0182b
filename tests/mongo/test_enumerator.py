"""A collection is cut into adjacent ranges that hold each of its documents once."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import bson
import pytest
from pymongo.database import Database

from cdc.errors import TransientError
from cdc.model.selection import Namespace
from cdc.model.split import MAX_KEY, MIN_KEY, KeyRange
from cdc.mongo import enumerator
from tests.mongo.capture import Capture, Client, Document, contents, failing, filled

Begin = Callable[..., Capture]
MIB = 2**20


@pytest.fixture
def large(database: Database[Document]) -> Any:
    """Three MiB in 60 documents; splitVector cuts at half of the size asked for."""
    coll = filled(database, "a-b.c", [])
    coll.insert_many([{"_id": n, "pad": "x" * 52_000} for n in range(60)])
    return coll


def ranges(coll: Any, lower: bytes = MIN_KEY, most: int = 100, size: int = MIB) -> list[KeyRange]:
    """As the connector's own client asks."""
    client = Capture(uri(coll), f"{coll.database.name}.{coll.name}").source.client
    return enumerator.ranges(client, Namespace(coll.database.name, coll.name), lower, most, size)


def uri(coll: Any) -> str:
    host, port = coll.database.client.address
    return f"mongodb://{host}:{port}/?replicaSet=rs0"


def check(found: list[KeyRange], lower: bytes = MIN_KEY) -> None:
    assert found[0].lower == lower
    assert all(left.upper == right.lower for left, right in itertools.pairwise(found))
    inner = [bson.decode(each.upper)["_id"] for each in found[:-1]]
    assert inner == sorted(set(inner))


def test_the_server_cuts_by_size(large: Any) -> None:
    """Guards: splitVector; dots and dashes in the name."""
    found = ranges(large)
    check(found)
    assert len(found) == 6
    assert found[-1].upper == MAX_KEY


def test_a_batch_of_ranges_ends_where_the_next_begins(large: Any) -> None:
    """Guards: at most `most` ranges, from the frontier on, until the rest fits."""
    found, lower = [], MIN_KEY
    while lower != MAX_KEY:
        part = ranges(large, lower, most=2)
        check(part, lower)
        assert 1 <= len(part) <= 2
        found += part
        lower = part[-1].upper
    check(found)
    assert len(found) == 6


def test_sampling_cuts_where_the_server_refuses_to(large: Any, mongo: Client) -> None:
    """Guards: splitVector needs a privilege that a reader does not have (13)."""
    with failing(mongo, "alwaysOn", failCommands=["splitVector"], errorCode=13):
        found = ranges(large, size=MIB // 2)
        check(found)
        assert 3 <= len(found) <= 9
        middle = bson.encode({"_id": 30})
        rest = ranges(large, middle, size=MIB // 2)
        check(rest, middle)
        assert len(ranges(large, most=2, size=MIB // 2)) == 2


def test_a_size_that_the_server_does_not_take_is_sampled(large: Any) -> None:
    """Guards: InvalidOptions (72) of splitVector is not the passing 72 of a lagging member."""
    assert ranges(large, size=2 * 2**30) == [KeyRange(MIN_KEY, MAX_KEY)]
    assert len(ranges(large, size=MIB // 2)) > 2


def test_a_collection_that_cannot_be_cut_is_one_range(large: Any, mongo: Client) -> None:
    """Guards: cuts are a matter of balance only."""
    refused = ["splitVector", "collStats", "aggregate"]
    with failing(mongo, "alwaysOn", failCommands=refused, errorCode=13):
        assert ranges(large) == [KeyRange(MIN_KEY, MAX_KEY)]


def test_a_passing_failure_of_the_server_is_not_taken_for_a_refusal(
    large: Any, mongo: Client
) -> None:
    """Guards: one split of a terabyte would come of a moment's failure."""
    with (
        failing(mongo, {"times": 1}, failCommands=["splitVector"], errorCode=262),
        pytest.raises(TransientError),
    ):
        ranges(large)


@pytest.mark.parametrize("count", [0, 1])
def test_a_collection_of_no_or_one_document_is_one_range(
    database: Database[Document], count: int
) -> None:
    """Guards: never an empty range (51175), never no range."""
    coll = database.create_collection("a")
    coll.insert_many([{"_id": n} for n in range(count)]) if count else None
    assert ranges(coll) == [KeyRange(MIN_KEY, MAX_KEY)]
    frontier = bson.encode({"_id": 0})
    assert ranges(coll, frontier) == [KeyRange(frontier, MAX_KEY)]


@pytest.mark.parametrize("refused", [["none"], ["splitVector"]])
def test_a_copy_by_the_servers_own_cuts_is_whole(
    large: Any, mongo: Client, refused: list[str]
) -> None:
    """Guards: planner and enumerator together."""
    with failing(mongo, "alwaysOn", failCommands=refused, errorCode=13):
        name = f"{large.database.name}.{large.name}"
        pipeline = Capture(uri(large), name, documents_per_split=None)
        pipeline.run()
    assert len(pipeline.rows) == 60
    assert len(pipeline.namespaces_copied) > 2
    assert pipeline.replayed(large) == contents(large)
