"""The example rows of the page on changelogs are rows that a server's changes make."""

from __future__ import annotations

import re

from pymongo.database import Database

from cdc.demo import ReplicaSet
from cdc.model import Change
from tests.documents import section
from tests.mongo.capture import Capture, Client, Document

# Columns of the table; the others are the same in each row, or vary from run to run.
_COLUMNS = ("op", "key", "document_key", "before", "after", "update_description", "description")
_UUID = re.compile(r'"\$binary": \{"base64": "[^"]*", "subType": "04"\}')


def changes(server: ReplicaSet, mongo: Client, database: Database[Document]) -> list[Change]:
    """The rows of a collection that is copied, changed in each way, dropped, made and renamed."""
    images = {"enabled": True}
    orders = database.create_collection("orders", changeStreamPreAndPostImages=images)
    orders.insert_many([{"_id": 1, "state": "new"}, {"_id": 2, "state": "new"}])
    capture = Capture(
        server.uri, f"{database.name}.orders", document_format="json", images="required"
    )
    capture.run()
    orders.insert_one({"_id": 3, "state": "new"})
    orders.update_one({"_id": 1}, {"$set": {"state": "paid"}})
    orders.replace_one({"_id": 2}, {"state": "sent", "by": "post"})
    with mongo.start_session() as session, session.start_transaction():
        orders.delete_one({"_id": 3}, session=session)
    orders.drop()
    database.create_collection("orders", changeStreamPreAndPostImages=images)
    orders.rename("archive")
    capture.run()
    return sorted(capture.rows, key=lambda row: (row.position, row.key or ""))


def shown(row: Change, database: str) -> str:
    """A row of the table."""
    cells = (str(getattr(row, name) or "") for name in _COLUMNS)
    text = " | ".join(f"`{cell}`" if cell else "" for cell in cells)
    return f"| {_UUID.sub('…', text.replace(database, 'shop'))} |"


def test_each_example_row_is_one_that_the_source_emits(
    mongod: ReplicaSet, mongo: Client, database: Database[Document]
) -> None:
    rows = changes(mongod, mongo, database)
    made = [shown(row, database.name) for row in rows]
    found = re.findall(r"^\| `.*$", section("A row of each op"), re.M)
    assert found == made, "\n".join(made)
    assert all(row.exact and row.db == database.name and row.coll == "orders" for row in rows)
    assert [row.op for row in rows if row.txn] == ["delete"]
