"""Writing documents back: the bytes, going on after a kill, and what a target may hold before."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import bson
import pytest
from bson.raw_bson import RawBSONDocument
from pymongo.database import Database

from cdc.errors import CdcError, TargetNotEmpty
from cdc.model import element
from cdc.model.selection import Namespace
from cdc.mongo.restore import Destination
from jobs.mongod import ReplicaSet
from tests.model import mixed
from tests.model.test_key import OTHERS, SPECIAL_NUMBERS, Element
from tests.model.test_key import document as of_elements
from tests.mongo.capture import RAW, Client, Document, failing

IDENTITY = {"collection": "shop.orders", "at": "5:1"}
NO_TIME = (element.TIMESTAMP, bytes(8))


@pytest.fixture
def target(mongod: ReplicaSet, database: Database[Document]) -> Destination:
    return Destination(mongod.uri, Namespace(database.name, "back"), 5000, 20.0)


def with_id(number: int, **fields: Element) -> bytes:
    named = [(name.encode(), item) for name, item in fields.items()]
    return of_elements((b"_id", (element.INT32, struct.pack("<i", number))), *named)[1]


def held(database: Database[Document]) -> list[bytes]:
    found: Any = database.get_collection("back", codec_options=RAW)
    return sorted(bytes(document.raw) for document in found.find())


def unfinished(database: Database[Document]) -> list[Document]:
    return list(database["mongodb_cdc_restores"].find())


def test_documents_of_every_type_are_written_byte_for_byte(
    target: Destination, database: Database[Document]
) -> None:
    """Guards: a zero timestamp, which an insert would fill in; names with dollars; the same name
    twice; text that is not UTF-8."""
    values = [NO_TIME, *SPECIAL_NUMBERS, *OTHERS, *mixed.values(seed=3, count=300)]
    documents = [with_id(n, v=item) for n, item in enumerate(values)]
    twice = of_elements((b"_id", NO_TIME), (b"a", NO_TIME), (b"$a", NO_TIME), (b"a", NO_TIME))[1]
    inner = bson.encode({"$ref": "a", "$id": 1})
    pointer = of_elements((b"_id", (element.DOCUMENT, inner)), (b"t", NO_TIME))[1]
    documents += [twice, pointer]
    assert not target.begin(IDENTITY, force=False)
    assert target.write(iter(documents)) == len(documents)
    assert unfinished(database)
    target.finish()
    assert held(database) == sorted(documents)
    assert not unfinished(database)


def test_a_restore_that_was_killed_goes_on_where_it_was(
    target: Destination, database: Database[Document]
) -> None:
    documents = [with_id(n, v=NO_TIME if n % 9 == 0 else (element.NULL, b"")) for n in range(2100)]

    def until_killed() -> Iterator[bytes]:
        yield from documents[:1700]
        raise KeyboardInterrupt

    target.begin(IDENTITY, force=False)
    with pytest.raises(KeyboardInterrupt):
        target.write(until_killed())
    assert len(held(database)) == 1000
    assert target.begin(IDENTITY, force=False)
    target.write(iter(documents))
    target.finish()
    assert held(database) == sorted(documents)


def test_what_the_target_holds_is_deleted_by_force_only(
    target: Destination, database: Database[Document]
) -> None:
    """Guards: also what another restore has left, and one that was killed while it emptied."""
    own = with_id(1)
    database["back"].insert_many([{"_id": 1, "mine": True}, {"_id": 2}])
    database["back"].create_index("mine")
    with pytest.raises(TargetNotEmpty):
        target.begin(IDENTITY, force=False)
    assert not unfinished(database)
    assert len(held(database)) == 2
    target.begin(IDENTITY, force=True)
    assert held(database) == []
    assert len(list(database["back"].list_indexes())) == 2
    target.write(iter([own]))
    with pytest.raises(TargetNotEmpty):
        target.begin({**IDENTITY, "at": "6:1"}, force=False)
    assert target.begin(IDENTITY, force=True)
    assert held(database) == [own]
    database["mongodb_cdc_restores"].update_one({}, {"$set": {"emptied": False}})
    target.begin(IDENTITY, force=True)
    assert held(database) == []


def test_a_failover_is_waited_for_and_a_refusal_is_not(
    target: Destination, mongo: Client, database: Database[Document]
) -> None:
    """Guards: the driver's own text of a refusal holds documents."""
    documents = [with_id(n, v=NO_TIME if n % 2 else (element.NULL, b"")) for n in range(20)]
    target.begin(IDENTITY, force=False)
    with failing(mongo, {"times": 3}, failCommands=["insert", "update"], errorCode=11602):
        target.write(iter(documents))
    assert held(database) == sorted(documents)
    database["back"].create_index("secret", unique=True, sparse=True)
    raw = [RawBSONDocument(bson.encode({"_id": n, "secret": "x"})) for n in (50, 51)]
    with pytest.raises(CdcError) as refused:
        target.write(bytes(each.raw) for each in raw)
    assert "code 11000" in str(refused.value)
    assert "secret" not in str(refused.value)
