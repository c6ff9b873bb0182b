"""A stretch of the oplog in which only documents were changed is not read as a change stream."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from pymongo.database import Database

from cdc.demo import ReplicaSet
from cdc.model import Namespace, Selection
from cdc.mongo.connection import member
from cdc.mongo.connection.privileges import required_needs
from cdc.mongo.plan.oplog_scan import has_only_row_changes
from tests.mongo.access import Guarded
from tests.mongo.capture import Capture, Client, Document, asked, filled, last_write
from tests.mongo.forgetful import forgetful, push_out

Work = Callable[[Database[Document]], Any]
Looked = Callable[[Work], bool]
TIMEOUT_MS = 5000


@pytest.fixture
def looked(mongod: ReplicaSet, mongo: Client, database: Database[Document]) -> Looked:
    """Whether it is quiet while something is done to the database's collection `a`."""
    filled(database, "a", [1, 2, 3])

    def looked(work: Work) -> bool:
        after = last_write(mongo)
        work(database)
        opener = partial(member, mongod.uri, TIMEOUT_MS)
        return has_only_row_changes(opener, after, last_write(mongo))

    return looked


def _create_in_transaction(database: Database[Document]) -> None:
    with database.client.start_session() as session, session.start_transaction():
        database["a"].insert_one({"_id": 4}, session=session)
        database["created"].insert_one({"_id": 4}, session=session)


def test_changes_of_documents_are_quiet(looked: Looked) -> None:
    def changes(database: Database[Document]) -> None:
        database["a"].insert_many([{"_id": n} for n in range(10, 20)])
        database["a"].update_many({}, {"$set": {"n": 1}})
        database["a"].find_one_and_delete({"_id": 10})
        with database.client.start_session() as session, session.start_transaction():
            for number in range(20):
                document = {"_id": number + 100, "large": "x" * 2**20}
                database["a"].insert_one(document, session=session)

    assert looked(changes)


@pytest.mark.parametrize(
    "work",
    [
        pytest.param(lambda db: db["a"].drop(), id="drop"),
        pytest.param(lambda db: db["a"].rename("b"), id="rename"),
        pytest.param(lambda db: db.client.drop_database(db.name), id="dropDatabase"),
        pytest.param(lambda db: db.create_collection("c"), id="create"),
        pytest.param(lambda db: db["a"].create_index("n"), id="createIndexes"),
        pytest.param(lambda db: db.command("collMod", "a", validationLevel="off"), id="modify"),
        pytest.param(_create_in_transaction, id="a transaction that creates a collection"),
    ],
)
def test_whatever_may_report_more_is_not_quiet(looked: Looked, work: Work) -> None:
    """Among changes of documents, which alone would be."""

    def among_changes(database: Database[Document]) -> None:
        database["other"].insert_many([{"_id": n} for n in range(5)])
        work(database)
        database["other"].delete_many({})

    assert not looked(among_changes)


def test_nothing_is_quiet_where_the_user_may_not_read_the_oplog(guarded: Guarded) -> None:
    coll = filled(guarded.client["quiet"], "a", [1])
    after = last_write(guarded.client)
    coll.insert_one({"_id": 2})
    uri = guarded.user(required_needs(Selection.of([Namespace("quiet", "a")])))
    assert not has_only_row_changes(
        partial(member, uri, TIMEOUT_MS), after, last_write(guarded.client)
    )


def test_what_the_oplog_has_thrown_away_was_not_quiet() -> None:
    """Guards: history that is lost is found out when a batch is planned."""
    with forgetful() as server, server.client() as client:
        filled(client["shop"], "orders", [1])
        gone = last_write(client)
        push_out(client, gone)
        opener = partial(member, server.uri, TIMEOUT_MS)
        kept = last_write(client)
        client["shop"]["orders"].insert_one({"_id": 2})
        end = last_write(client)
        assert has_only_row_changes(opener, kept, end)
        assert not has_only_row_changes(opener, gone, end)


def test_a_backlog_of_changes_is_planned_without_a_change_stream(
    capture: Callable[..., Capture], database: Database[Document]
) -> None:
    coll = filled(database, "a", [1])
    pipeline = capture("a", mode="latest")
    pipeline.batch()
    coll.insert_many([{"_id": n} for n in range(10, 500)])
    with asked(database) as operations:
        end = pipeline.plan()
    assert not [each for each in operations if "aggregate" in each["command"]]
    coll.drop()
    assert len(pipeline.read(end).rows) == 490
    pipeline.run()
    assert [op for op, _ in pipeline.batches[-1].ops] == ["drop"]
