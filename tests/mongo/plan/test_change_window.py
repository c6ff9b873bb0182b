"""The changes of a window of time, read as a batch: windows that adjoin hold each change once."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import pytest
from bson.timestamp import Timestamp
from pymongo.database import Database
from pyspark.sql.datasource import Filter
from pyspark.sql.types import StructType

from cdc import options as declared
from cdc.demo import ReplicaSet
from cdc.errors import BadOption
from cdc.model import Change, timestamp
from cdc.source.batch_readers import FilteredWindowReader
from cdc.tasks import task
from tests.mongo.capture import Document, filled, id_of


def window(
    uri: str, collections: str, filters: Iterable[Filter] = (), **bounds: Any
) -> list[Change]:
    """The rows of a window that are read for a query with these filters, in order."""
    given = {"uri": uri, "collections": collections, "document.format": "bson"}
    given |= {name.strip("_").replace("_", "."): text(each) for name, each in bounds.items()}
    options = declared.parse(given)
    reader = FilteredWindowReader(options, StructType())
    reader.pushFilters(list(filters))
    splits = [split for part in reader.partitions() for split in part.splits]  # type: ignore[attr-defined]
    rows = [row for split in splits for row in task.read_split(split, options, may_be_void=False)]
    return sorted(rows, key=lambda row: row.position)


def text(value: Any) -> str:
    return timestamp.text(value) if isinstance(value, Timestamp) else str(value)


def now(database: Database[Document]) -> Timestamp:
    moment: Timestamp = database.client.admin.command("ping")["operationTime"]
    return moment


def reported(rows: list[Change]) -> list[tuple[str, Any]]:
    """Without `create`, which servers before 6.0 do not report."""
    reported = [row for row in rows if row.op != "create"]
    return [(row.op, id_of(row) if row.document_key else row.coll) for row in reported]


def test_windows_that_adjoin_hold_each_change_once(
    mongod: ReplicaSet, database: Database[Document]
) -> None:
    """Guards: a change at the very time at which one window ends and the next one begins."""
    coll = filled(database, "a", [])
    start = now(database)
    times = [start]
    for number in range(4):
        coll.insert_one({"_id": number})
        times.append(now(database))
    with database.client.start_session() as session, session.start_transaction():
        coll.update_one({"_id": 1}, {"$set": {"n": 1}}, session=session)
        coll.delete_one({"_id": 2}, session=session)
    times.append(now(database))
    coll.rename("b")
    times += [now(database), timestamp.after(now(database))]
    names = f"{database.name}.a"
    whole = window(mongod.uri, names, from_=start, to=times[-1])
    expected = [*(("insert", n) for n in range(4)), ("update", 1), ("delete", 2), ("rename", "a")]
    assert reported(whole) == expected
    edges = {*times, *map(timestamp.before, times[1:])}
    parts = [
        window(mongod.uri, names, from_=low, to=high)
        for low, high in itertools.pairwise(sorted(edges))
    ]
    assert [row for part in parts for row in part] == whole


def test_a_window_without_an_end_reaches_to_the_live_edge(
    mongod: ReplicaSet, database: Database[Document]
) -> None:
    coll = filled(database, "a", ["before"])
    start = timestamp.after(now(database))
    coll.insert_one({"_id": "inside"})
    assert reported(window(mongod.uri, f"{database.name}.a", from_=start)) == [("insert", "inside")]


def test_a_collection_that_is_gone_reports_its_past(
    mongod: ReplicaSet, database: Database[Document]
) -> None:
    start = now(database)
    filled(database, "a", [1])
    database.client.drop_database(database.name)
    filled(database, "a", [2])
    rows = window(mongod.uri, f"{database.name}.a", from_=start)
    expected = [("insert", 1), ("drop", "a"), ("dropDatabase", None), ("insert", 2)]
    assert reported(rows) == expected, "the server ends a stream at dropDatabase"


def test_a_window_up_to_now_waits_for_a_server_that_nobody_writes_to() -> None:
    """Guards: an hourly job that runs on the hour."""
    quicker = {"periodicNoopIntervalSecs": 2}
    with ReplicaSet(set_parameters=quicker) as server, server.client() as client:
        client.shop.orders.insert_one({"_id": 1})
        time.sleep(1)
        moment = datetime.now(UTC).isoformat()
        assert reported(window(server.uri, "shop.orders", from_="5:1", to=moment)) == [
            ("insert", 1)
        ]


@pytest.mark.parametrize(
    ("bounds", "match"),
    [
        ({"from_": "4000000000:1"}, "'from' is later than the server's time"),
        ({"to": "2105-01-01"}, "'to' is later than the server's time"),
        ({"from_": "5:2", "to": "5:2"}, "not later than 'from'"),
        ({"from_": "5:1", "snapshot_at": "5:1"}, "exclude each other"),
    ],
)
def test_a_window_that_cannot_be_is_refused(
    mongod: ReplicaSet, database: Database[Document], bounds: dict[str, str], match: str
) -> None:
    filled(database, "a", [1])
    with pytest.raises(BadOption, match=match):
        window(mongod.uri, f"{database.name}.a", **{"from_": now(database), **bounds})
