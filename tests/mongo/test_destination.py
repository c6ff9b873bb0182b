"""Writing documents back: the bytes, going on after a kill, and what a target may hold before."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import bson
import pytest
from pymongo.database import Database

from cdc.demo import ReplicaSet
from cdc.errors import CdcError, TargetNotEmpty
from cdc.model import Namespace
from cdc.model.bson import element
from cdc.mongo.destination import Destination
from tests.model import mixed
from tests.model.nesting import nested
from tests.model.test_merge_key import OTHERS, SPECIAL_NUMBERS, Element, array, of, text
from tests.model.test_merge_key import document as of_elements
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
    twice = of_elements((b"_id", NO_TIME), (b"a", NO_TIME), (b"a", NO_TIME))[1]
    dollar = of_elements((b"_id", of(-1)), (b"a", NO_TIME), (b"$a", NO_TIME))[1]
    inner = bson.encode({"$ref": "a", "$id": 1})
    pointer = of_elements((b"_id", (element.DOCUMENT, inner)), (b"t", NO_TIME))[1]
    documents += [twice, pointer]
    assert not target.begin(IDENTITY, force=False)
    left_out = target.write(enumerate([dollar, *documents]))
    # Servers before 5.0 take no such name.
    assert left_out in ({}, {0: "the server refuses it (code 52)"})
    assert unfinished(database)
    target.finish()
    assert held(database) == sorted(documents if left_out else [dollar, *documents])
    assert not unfinished(database)


def test_a_restore_that_was_killed_goes_on_where_it_was(
    target: Destination, database: Database[Document]
) -> None:
    documents = [with_id(n, v=NO_TIME if n % 9 == 0 else (element.NULL, b"")) for n in range(2100)]

    def until_killed() -> Iterator[tuple[int, bytes]]:
        yield from enumerate(documents[:1700])
        raise KeyboardInterrupt

    target.begin(IDENTITY, force=False)
    with pytest.raises(KeyboardInterrupt):
        target.write(until_killed())
    assert len(held(database)) == 1000
    assert target.begin(IDENTITY, force=False)
    target.write(enumerate(documents))
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
    target.write(enumerate([own]))
    with pytest.raises(TargetNotEmpty):
        target.begin({**IDENTITY, "at": "6:1"}, force=False)
    assert target.begin(IDENTITY, force=True)
    assert held(database) == [own]
    database["mongodb_cdc_restores"].update_one({}, {"$set": {"emptied": False}})
    target.begin(IDENTITY, force=True)
    assert held(database) == []


def test_a_failover_is_waited_for(
    target: Destination, mongo: Client, database: Database[Document]
) -> None:
    documents = [with_id(n, v=NO_TIME if n % 2 else (element.NULL, b"")) for n in range(20)]
    target.begin(IDENTITY, force=False)
    with failing(mongo, {"times": 3}, failCommands=["insert", "update"], errorCode=11602):
        assert target.write(enumerate(documents)) == {}
    assert held(database) == sorted(documents)


def test_a_document_that_the_server_refuses_is_left_out_and_no_other_is(
    target: Destination, database: Database[Document]
) -> None:
    """Guards: of some that are too deep, or damaged, the server refuses the whole command; a reason
    holds nothing of a document."""
    database.create_collection("back", validator={"secret": {"$ne": "y"}})
    database["back"].create_index("secret", unique=True, sparse=True)
    one, a_bool = of(1), (element.BOOL, b"\x02")
    refused = {
        "16 MiB": [with_id(0, v=text(b"x" * size)) for size in (2**24, 2**24 + 2**15, 50 * 2**20)],
        "code 11000": [with_id(1, secret=text(b"x"))],
        "code 121": [with_id(2, secret=text(b"y")), with_id(3, secret=text(b"y"), t=NO_TIME)],
        "code 15": [
            with_id(4, v=nested("documents", 181)),
            with_id(5, v=nested("arrays", 250)),
            with_id(6, v=nested("scopes", 200), t=NO_TIME),
        ],
        "code 22": [with_id(7, v=a_bool), with_id(8, v=a_bool, t=NO_TIME)],
        "the server refuses it": [of_elements((b"_id", array(one)))[1]],
        "corrupt": [b"", b"\1", with_id(9)[:-1], of_elements((b"t", NO_TIME))[1] + b"\0"],
        "without _id": [of_elements((b"t", NO_TIME))[1]],
    }
    target.begin(IDENTITY, force=False)
    fine = [with_id(n, v=NO_TIME if n % 9 == 0 else one) for n in range(100, 1300)]
    fine += [with_id(98, secret=text(b"x")), with_id(99, v=nested("all of them", 90))]
    assert target.write(enumerate(fine)) == {}
    expected = [(reason, data) for reason, all_of in refused.items() for data in all_of]
    written = [*fine[:600], *(data for _, data in expected), *fine[600:]]
    left_out = target.write(enumerate(written))
    assert held(database) == sorted(fine)
    assert sorted(left_out) == list(range(600, 600 + len(expected)))
    for number, (reason, _) in enumerate(expected, 600):
        assert reason in left_out[number]
        assert "secret" not in left_out[number]


def test_a_target_that_takes_no_document_ends_the_run(
    target: Destination, database: Database[Document]
) -> None:
    target.begin(IDENTITY, force=False)
    database.create_collection("back", viewOn="other", pipeline=[])
    with pytest.raises(CdcError, match="code 166"):
        target.write(enumerate([with_id(1)]))


def test_a_restore_that_left_documents_out_goes_on_with_these_or_by_force_anew(
    target: Destination, database: Database[Document]
) -> None:
    documents = [with_id(1, a=of(1)), with_id(2)]
    database.create_collection("back", validator={"a": 1})
    target.begin(IDENTITY, force=False)
    assert list(target.write(enumerate(documents))) == [1]
    target.finish(is_whole=False)
    database.command("collMod", "back", validator={})
    assert target.begin(IDENTITY, force=False)
    assert held(database) == documents[:1]
    assert target.write(enumerate(documents)) == {}
    target.finish(is_whole=False)
    assert not target.begin(IDENTITY, force=True)
    assert held(database) == []
    target.finish()
    assert not unfinished(database)
