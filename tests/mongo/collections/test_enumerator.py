"""A collection is cut into adjacent ranges that hold each of its documents once."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from typing import Any

import bson
import pytest
from bson.raw_bson import RawBSONDocument
from pymongo.database import Database
from pymongo.errors import OperationFailure

from cdc.errors import TransientError
from cdc.model import MAX_KEY, MIN_KEY, Copying, KeyRange, Namespace
from cdc.mongo.collections import (
    Size,
    choose_strategy,
    count_splits,
    enumerator,
    estimate_size,
    split_points,
)
from tests.mongo.abilities import abilities
from tests.mongo.capture import Capture, Client, Document, asked, contents, failing, filled

Begin = Callable[..., Capture]
MIB = 2**20


@pytest.fixture
def large(database: Database[Document]) -> Any:
    """Three MiB in 60 documents."""
    coll = filled(database, "a-b.c", [])
    coll.insert_many([{"_id": n, "pad": "x" * 52_000} for n in range(60)])
    return coll


@pytest.fixture
def many(database: Database[Document]) -> Any:
    """Six MiB in so many documents that not all of their keys are read to cut them."""
    coll = filled(database, "many", [])
    coll.insert_many([{"_id": n, "pad": "x" * 480} for n in range(12_000)])
    return coll


def ranges(coll: Any, lower: bytes = MIN_KEY, most: int = 100, size: int = MIB) -> list[KeyRange]:
    """As the connector's own client asks."""
    client = Capture(uri(coll), f"{coll.database.name}.{coll.name}").source.client
    [listed] = coll.database.list_collections(filter={"name": coll.name})
    namespace = Namespace(coll.database.name, coll.name)
    copying = Copying(namespace, bytes(listed["info"]["uuid"]), None, lower)
    return enumerator.ranges(client, copying, most, size)


def uri(coll: Any) -> str:
    host, port = coll.database.client.address
    return f"mongodb://{host}:{port}/?replicaSet=rs0"


def check(found: list[KeyRange], lower: bytes = MIN_KEY) -> None:
    assert found[0].lower == lower
    assert all(left.upper == right.lower for left, right in itertools.pairwise(found))
    inner = [bson.decode(each.upper)["_id"] for each in found[:-1]]
    assert inner == sorted(set(inner))


def held(coll: Any, part: KeyRange) -> int:
    """How many documents the connector would read for a range."""
    bounds = {"min": RawBSONDocument(part.lower), "hint": {"_id": 1}}
    if not part.is_last:
        bounds["max"] = RawBSONDocument(part.upper)
    command = {"find": coll.name, "batchSize": 100_000, "projection": {"_id": 1}, **bounds}
    return len(coll.database.command(command)["cursor"]["firstBatch"])


def test_the_server_cuts_by_size(large: Any) -> None:
    """Guards: splitVector; dots and dashes in the name."""
    found = ranges(large)
    check(found)
    assert [held(large, each) for each in found[:-1]] == [20, 21]
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
    assert found == ranges(large)


def test_the_server_is_asked_for_the_cuts_of_one_batch(many: Any) -> None:
    """Guards: splitVector begins at the frontier, and stops with the batch."""
    frontier = bson.encode({"_id": 2000})
    found = ranges(many, frontier, most=2)
    check(found, frontier)
    sizes = [held(many, each) for each in found]
    assert len(sizes) == 2
    assert all(1900 < size < 2200 for size in sizes), sizes


@pytest.mark.parametrize("code", [13, 50])
def test_sampling_cuts_where_the_server_refuses_to(large: Any, mongo: Client, code: int) -> None:
    """Guards: splitVector needs a privilege that a reader does not have (13), or more time than a
    command may take (50)."""
    with failing(mongo, "alwaysOn", failCommands=["splitVector"], errorCode=code):
        found = ranges(large, size=MIB // 2)
        check(found)
        # 3 MiB, so 6 splits would do.
        assert len(found) == 8
        assert {held(large, each) for each in found[1:-1]} == {7, 8}
        middle = bson.encode({"_id": 30})
        rest = ranges(large, middle, size=MIB // 2)
        check(rest, middle)
        assert len(rest) == 4
        assert len(ranges(large, most=2, size=MIB // 2)) == 2


@pytest.mark.parametrize(
    ("least", "count"), [(1, 1), (2, 2), (3, 4), (5, 8), (7, 8), (8, 8), (9, 16), (100, 104)]
)
def test_a_sample_is_cut_so_that_no_core_is_idle_at_the_end(least: int, count: int) -> None:
    """Guards: seven splits on two cores, of which one waits for the last."""
    size = Size(10**6, least * MIB - 1, "collStats")
    assert count_splits("sampling", size, MIB) == count
    assert count_splits("splitVector", size, MIB) == least


def test_a_sample_is_drawn_once_for_many_batches(many: Any, mongo: Client) -> None:
    """Guards: random reads of a large collection; even splits; nothing but the index is read."""
    with (
        failing(mongo, "alwaysOn", failCommands=["splitVector"], errorCode=13),
        asked(many.database) as operations,
    ):
        found, lower = [], MIN_KEY
        while lower != MAX_KEY:
            found += ranges(many, lower, most=2)
            lower = found[-1].upper
    check(found)
    sizes = [held(many, each) for each in found]
    # Six would do; the last one would be read while all other cores but one are idle.
    assert len(sizes) == 8, sizes
    # The server's random cursor is not even on pages that have never been written out.
    assert max(sizes) < 10_000, sizes
    [draw] = [each for each in operations if "aggregate" in each["command"]]
    assert draw["docsExamined"] < 600


@pytest.mark.parametrize(
    ("walked", "sampled", "strategy"),
    [(11_999, 100, "sampling"), (12_000, 100, "splitVector"), (11_999, 4, "splitVector")],
)
def test_a_large_collection_is_sampled_because_a_walk_through_its_index_takes_longer(
    many: Any,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    walked: int,
    sampled: int,
    strategy: str,
) -> None:
    """Guards: tasks that wait for the planner. A walk cuts what is small, and what has so many
    splits that those of a sample would be uneven. `plan` says what a run does."""
    monkeypatch.setattr(split_points, "_WALKED_DOCUMENTS", walked)
    monkeypatch.setattr(split_points, "_MOST_SAMPLED_SPLITS", sampled)
    caplog.set_level(logging.INFO, logger="cdc.mongo.collections.split_points")
    check(ranges(many))
    assert f"by {strategy}: " in caplog.text
    client = Capture(uri(many), many.full_name).source.client
    namespace = Namespace(many.database.name, many.name)
    size = estimate_size(client, namespace)
    assert choose_strategy(client, namespace, size, MIB).strategy == strategy


def test_a_large_collection_that_cannot_be_sampled_is_walked(
    many: Any, mongo: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Guards: one giant split."""
    monkeypatch.setattr(split_points, "_WALKED_DOCUMENTS", 0)
    caplog.set_level(logging.INFO, logger="cdc.mongo.collections.split_points")
    with failing(mongo, "alwaysOn", failCommands=["aggregate"], errorCode=13):
        assert len(ranges(many)) > 4
    assert "by splitVector: " in caplog.text


def test_a_sample_of_few_documents_is_all_of_their_keys(large: Any, mongo: Client) -> None:
    """Guards: $sample of more than a twentieth of a collection would read all of it."""
    with (
        failing(mongo, "alwaysOn", failCommands=["splitVector"], errorCode=13),
        asked(large.database) as operations,
    ):
        ranges(large, size=MIB // 2)
    [draw] = [each for each in operations if "find" in each["command"]]
    assert draw["keysExamined"] >= 60
    assert draw["docsExamined"] == 0


@pytest.mark.parametrize("refused", [["splitVector"], ["splitVector", "collStats"]])
def test_the_rest_after_a_late_frontier_is_cut_as_the_beginning(
    many: Any, mongo: Client, refused: list[str]
) -> None:
    """Guards: a sample of the whole collection is not spread over what is left of it."""
    frontier = bson.encode({"_id": 11_000})
    with failing(mongo, "alwaysOn", failCommands=refused, errorCode=13):
        found = ranges(many, frontier)
    check(found, frontier)
    assert 1 <= len(found) <= 3


@pytest.mark.parametrize("is_dropped", [True, False])
def test_a_collection_that_was_refilled_is_sampled_anew(
    many: Any, mongo: Client, monkeypatch: pytest.MonkeyPatch, is_dropped: bool
) -> None:
    """Guards: cuts that all lie below the new keys, or that another collation does not order."""
    with failing(mongo, "alwaysOn", failCommands=["splitVector"], errorCode=13):
        ranges(many)
        if is_dropped:
            many.drop()
        else:
            many.delete_many({})
            monkeypatch.setattr(split_points, "_SAMPLE_SECONDS", 0.0)
        many.insert_many([{"_id": n, "pad": "x" * 480} for n in range(100_000, 112_000)])
        found = ranges(many)
    sizes = [held(many, each) for each in found]
    assert max(sizes) < 11_000, sizes


@pytest.mark.parametrize(
    ("refused", "strategy", "why"),
    [
        ([], "splitVector", "walks the _id index"),
        (["splitVector"], "sampling", "splitVector is refused (code 13), size by collStats"),
        (["splitVector", "collStats"], "sampling", "collStats is refused (code 13)"),
        (["splitVector", "find"], "single", "sampling is refused (code 13)"),
    ],
)
def test_the_log_says_which_strategy_was_taken_and_why(
    large: Any,
    mongo: Client,
    caplog: pytest.LogCaptureFixture,
    refused: list[str],
    strategy: str,
    why: str,
) -> None:
    """Guards: an operator who wonders about one giant split."""
    caplog.set_level(logging.INFO, logger="cdc.mongo.collections.split_points")
    with failing(mongo, "alwaysOn", failCommands=refused or ["none"], errorCode=13):
        ranges(large)
    [text] = [record.getMessage() for record in caplog.records]
    assert f"by {strategy}: " in text
    assert why in text
    assert str(large.full_name) in text


@pytest.mark.parametrize("size", [2, 4])
def test_a_small_collection_is_one_range_and_the_log_says_so(
    large: Any, mongo: Client, caplog: pytest.LogCaptureFixture, size: int
) -> None:
    """Guards: single split, with splitVector and without."""
    caplog.set_level(logging.INFO, logger="cdc.mongo.collections.split_points")
    refused = ["none"] if size == 2 else ["splitVector"]
    with failing(mongo, "alwaysOn", failCommands=refused, errorCode=13):
        assert ranges(large, size=size * MIB) == [KeyRange(MIN_KEY, MAX_KEY)]
    assert "by single: " in caplog.text


REFUSALS = [["none"], ["splitVector"], ["splitVector", "collStats"]]
PREFIX = "p" * 400


@pytest.mark.parametrize("refused", REFUSALS)
@pytest.mark.parametrize(
    ("name", "key", "options"),
    [
        ("equal-prefixes", lambda n: f"{PREFIX}{n:09}", {}),
        ("equal.prefixes.in.documents", lambda n: {"a": PREFIX, "b": n}, {}),
        ("coll.name", lambda n: [n, str(n), float(n) + 0.5, bson.Int64(n)][n % 4], {}),
        ("coll-a1", lambda n: f"{'aA'[n % 2]}{n}", {"collation": {"locale": "en", "strength": 2}}),
        ("clustered", lambda n: n, {"clusteredIndex": {"key": {"_id": 1}, "unique": True}}),
    ],
)
def test_any_keys_are_cut_into_ranges_that_hold_each_document_once(
    mongo: Client,
    database: Database[Document],
    refused: list[str],
    name: str,
    key: Callable[[int], Any],
    options: Document,
) -> None:
    """Guards: equal prefixes, mixed types, collations, clustered collections, names."""
    if "clusteredIndex" in options and not abilities(mongo).names_the_incarnation:
        with pytest.raises(OperationFailure, match="clusteredIndex"):  # there are none before 5.3
            database.create_collection(name, **options)
        return
    coll = database.create_collection(name, **options)
    coll.insert_many([{"_id": key(n), "pad": "x" * 900} for n in range(11_000)])
    with failing(mongo, "alwaysOn", failCommands=refused, errorCode=13):
        found = ranges(coll, size=2 * MIB)
    assert found[0].lower == MIN_KEY
    assert found[-1].upper == MAX_KEY
    assert all(left.upper == right.lower for left, right in itertools.pairwise(found))
    sizes = [held(coll, each) for each in found]
    assert sum(sizes) == 11_000
    assert min(sizes) > 0
    assert len(sizes) >= 4
    assert max(sizes) < 10_000, sizes


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
