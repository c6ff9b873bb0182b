"""Random writes of all kinds have the same rows by the oplog and by a change stream."""

from __future__ import annotations

import random
import time
from collections import Counter
from typing import Any

import pytest
from pymongo.database import Database

from cdc.kernel import oplog_reply
from cdc.mongo.plan import Limits
from tests.mongo.capture import Document
from tests.mongo.random_writes import CAPTURED, KINDS, LARGE_KINDS, Writer
from tests.mongo.read.test_oplog import RECORDING, Begin, both, require_same
from tests.mongo.read.test_oplog import encoders as encoders_fixture
from tests.mongo.read.test_oplog import methods as methods_fixture
from tests.slow import slow_but
from tests.soak import soak

encoders, methods = encoders_fixture, methods_fixture
# Writes between two comparisons: their rows, with both images, are in memory at once.
_ROUND = 3000


def collections_of(database: Database[Document]) -> list[Any]:
    return [database.create_collection(name, **RECORDING) for name in ("a", "b")]


@pytest.mark.parametrize("common_keys", slow_but([True], [True, False]))
def test_random_writes_have_the_same_rows_by_both_methods(
    capture: Begin,
    database: Database[Document],
    encoders: None,
    methods: list[str],
    common_keys: bool,
) -> None:
    writer = Writer(collections_of(database), 1, common_keys)
    by_oplog, by_stream = both(capture, "a", "b")
    writer.write(2000)
    by_oplog.run()
    assert methods == ["oplog"]
    assert len(require_same(by_oplog, by_stream)) > 1100
    # Otherwise an operator that the server always refuses would be compared by no test.
    assert writer.done.keys() >= KINDS, KINDS - writer.done.keys()


@pytest.mark.slow
def test_writes_that_are_too_large_for_one_entry_or_one_reply_have_the_same_rows(
    capture: Begin, database: Database[Document], encoders: None, methods: list[str]
) -> None:
    writer = Writer(collections_of(database), 3)
    by_oplog, by_stream = both(capture, "a", "b")
    made = writer.write_large_transaction() + writer.write_large_document()
    by_oplog.run()
    assert methods == ["oplog"]
    assert len(require_same(by_oplog, by_stream)) >= made
    assert writer.done.keys() == LARGE_KINDS


@pytest.mark.parametrize(
    "options",
    [
        {"collation": {"locale": "en", "strength": 1}},
        {"clusteredIndex": {"key": {"_id": 1}, "unique": True}},
        {"capped": True, "size": 10 * 2**20},
    ],
    ids=lambda options: next(iter(options)),
)
def test_collections_of_all_kinds_have_the_same_rows(
    capture: Begin,
    database: Database[Document],
    encoders: None,
    methods: list[str],
    options: dict[str, Any],
) -> None:
    """A collation decides which keys are equal on the server, but not what the oplog contains."""
    coll = database.create_collection("a", **RECORDING, **options)
    by_oplog, by_stream = both(capture, "a")
    Writer([coll], 6).write(400)
    by_oplog.run()
    assert methods == ["oplog"]
    assert len(require_same(by_oplog, by_stream)) > 200


@pytest.mark.soak
def test_random_writes_for_long_have_the_same_rows_by_both_methods(
    capture: Begin, database: Database[Document], methods: list[str], monkeypatch: Any
) -> None:
    seed, seconds = soak()
    chance, ends = random.Random(seed), time.monotonic() + seconds
    captured = chance.choice(({}, *CAPTURED.values()))
    settings: dict[str, Any] = {"limits": Limits(10**6, 2**30, 3), **captured}
    collections = collections_of(database)
    writers = [
        # A change stream filters changes that are too large for a command.
        Writer(collections, chance.randrange(10**9), common_keys, has_large=not captured)
        for common_keys in (True, False)
    ]
    by_oplog, by_stream = both(capture, "a", "b", **settings)
    done, rows, made = Counter[str](), 0, 0
    while time.monotonic() < ends:
        monkeypatch.setattr(oplog_reply, "WORTH", chance.choice((0, 4096, 2**62)))
        made += chance.choice(writers).write(chance.randint(1, _ROUND))
        by_oplog.run()
        assert "change stream" not in methods
        rows += len(require_same(by_oplog, by_stream))
        for each in (by_oplog, by_stream):
            each.batches.clear()
        methods.clear()
    for writer in writers:
        done += writer.done
    refused = sum(writer.refused for writer in writers)
    print(f"{captured} {made:,} writes, {rows:,} rows, {refused:,} refused, {done}")
    assert rows
