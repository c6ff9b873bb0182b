"""An offset that an earlier release has stored goes on where it stood, on a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bson.json_util
import pytest
from bson.int64 import Int64
from pyspark.sql.streaming.datasource import ReadAllAvailable

from cdc import options as declared
from cdc import source
from cdc.demo import ReplicaSet
from cdc.model import Offset, timestamp
from cdc.tasks import task
from tests.mongo.capture import Client, Document, until

SAMPLES = Path(__file__).parents[2] / "model/offsets"
COLLATION = {"locale": "en", "strength": 2}
# By collection: one document below the samples' frontiers, if there is one in it, and one after.
DOCUMENTS: dict[str, list[Any]] = {
    "shop.orders": ["Anna", "zoe"],
    "shop.items": [Int64(1), Int64(2**60)],
    "shop.carts": [1, 9],
    "log.a-b.c": [1, 9],
}
# What each sample has still to copy.
COPIED = {
    "initial": {(name, key) for name, keys in DOCUMENTS.items() for key in keys},
    "streaming": set(),
    "copying_with_collation": {("shop.orders", "zoe")},
    "again_while_copying": {
        ("shop.items", Int64(2**60)),
        *(("shop.carts", key) for key in (1, 9)),
        *(("log.a-b.c", key) for key in (1, 9)),
    },
}


@pytest.fixture(scope="module")
def shop() -> Iterator[ReplicaSet]:
    with ReplicaSet() as replica_set, replica_set.client() as client:
        for name, keys in DOCUMENTS.items():
            db, _, coll = name.partition(".")
            collation = {"collation": COLLATION} if name == "shop.orders" else {}
            client[db].create_collection(coll, **collation)
            client[db][coll].insert_many({"_id": key} for key in keys)
        yield replica_set


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("name", COPIED)
def test_a_stored_offset_goes_on_where_it_stood(shop: ReplicaSet, name: str, version: int) -> None:
    with shop.client() as client:
        stored = _today(json.loads((SAMPLES / f"v{version}_{name}.json").read_text()), client)
        options = {"uri": shop.uri, "collections": stored["collections"], "heartbeat.interval": "0"}
        options["document.format"] = "json"
        parsed = declared.parse(options)
        reader = source.ChangeReader(parsed, None)  # type: ignore[arg-type]
        client["shop"]["orders"].delete_one({"_id": "Bob"})
        client["shop"]["orders"].insert_one({"_id": "Bob"})
        reported: list[Any] = []
        at = stored

        def has_caught_up() -> bool:
            nonlocal at
            end = reader.latestOffset(at, ReadAllAvailable())
            for partition in reader.partitions(at, end):
                for split in partition.splits:  # type: ignore[attr-defined]
                    reported.extend(task.read_split(split, parsed, True))
            at = json.loads(json.dumps(end))
            rows = {row.op for row in reported}
            return Offset.from_json(at).is_streaming and ("insert" in rows or _is_after(reported))

        until(has_caught_up, 60)
        reader.stop()
    read = [
        (f"{r.db}.{r.coll}", json.loads(r.document_key)["_id"]) for r in reported if r.op == "read"
    ]
    found = {(name, _plain(key)) for name, key in read} - {("shop.orders", "Bob")}
    assert len(read) == len(set(map(str, read)))
    assert found == COPIED[name]


def _is_after(reported: list[Any]) -> bool:
    """Whether the new document came with the copy."""
    return any(row.op == "read" and "Bob" in row.document_key for row in reported)


def _today(stored: Document, client: Client) -> Document:
    """The same, of now and of the collections that there are: their history would be lost."""
    hello = client.admin.command("hello")["lastWrite"]["majorityOpTime"]["ts"]
    stored["time"] = timestamp.text(hello)
    for each in [*stored["scans"], *([stored["copying"]] if stored["copying"] else [])]:
        db, _, coll = each["namespace"].partition(".")
        [info] = client[db].list_collections(filter={"name": coll})
        each["uuid"] = bytes(info["info"]["uuid"]).hex()
    return stored


def _plain(key: Any) -> Any:
    return bson.json_util.object_hook(key) if isinstance(key, dict) else key
