"""A cursor that its reader abandons is closed, wherever Python collects the reader."""

from __future__ import annotations

import gc
import time
from collections.abc import Generator
from typing import Any

import pytest
from pymongo.database import Database

from cdc.demo import ReplicaSet
from cdc.model import Namespace
from cdc.mongo.connection import member
from cdc.mongo.connection.members import Member

_COMMENT = "abandoned"


@pytest.mark.timeout(30)
def test_a_reader_that_is_collected_while_the_driver_holds_a_lock_does_not_block_it(
    mongod: ReplicaSet, database: Database[Any]
) -> None:
    database["many"].insert_many([{"_id": number} for number in range(10)])
    reader = member(mongod.uri, 10_000)
    batches = _read_in_a_cycle(reader.configure(_COMMENT), Namespace(database.name, "many"))
    assert _cursors(database) == 1
    with reader._client._topology._lock:
        del batches
        gc.collect()
    reader.end()
    until = time.monotonic() + 10
    while _cursors(database):
        assert time.monotonic() < until
        time.sleep(0.05)


def _read_in_a_cycle(reader: Member, namespace: Namespace) -> list[Any]:
    """Return a begun reader that only the garbage collector can collect."""
    batches: Generator[Any] = reader.find(namespace, {"batchSize": 2})
    next(batches)
    cycle: list[Any] = [batches]
    cycle.append(cycle)
    return cycle


def _cursors(db: Database[Any]) -> int:
    """How many cursors of the reader are open."""
    stages = [
        {"$currentOp": {"idleCursors": True}},
        {"$match": {"type": "idleCursor", "cursor.originatingCommand.comment": _COMMENT}},
    ]
    return len(list(db.client.admin.aggregate(stages)))
