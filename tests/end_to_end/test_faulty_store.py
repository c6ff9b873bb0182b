"""A pipeline into an object store that refuses requests, loses answers, and does not answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

from cdc.demo import ReplicaSet
from tests.object_store import object_store
from tests.soak import choose_seed, soak
from tests.store_faults import StoreFaults

_COPIED = 500


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_faults_of_an_object_store_lose_and_double_no_change(
    mongod: ReplicaSet, mongo: MongoClient[dict[str, Any]], tmp_path: Path
) -> None:
    """Guards: a commit that is written although the store refused it, and made again; a data file
    that a commit names and that was never completed; a lost listing taken for an empty table."""
    _run(mongod, mongo, tmp_path, choose_seed(), 0)


@pytest.mark.soak
def test_long_faults_of_an_object_store_lose_and_double_no_change(
    mongod: ReplicaSet, mongo: MongoClient[dict[str, Any]], tmp_path: Path
) -> None:
    _run(mongod, mongo, tmp_path, *soak())


def _run(
    mongod: ReplicaSet,
    mongo: MongoClient[dict[str, Any]],
    folder: Path,
    seed: int,
    seconds: float,
) -> None:
    mongo.drop_database("faulty")
    images = {"enabled": True}
    mongo.faulty.create_collection("orders", changeStreamPreAndPostImages=images)
    mongo.faulty.orders.insert_many([{"_id": number, "n": number} for number in range(_COPIED)])
    faults = StoreFaults(seed)
    with object_store(faults) as store:
        given = mongod.uri, str(folder / "cp"), store.endpoint, str(seed), str(seconds)
        done = store.run("tests.end_to_end.faulty_store_program", *given)
    mongo.drop_database("faulty")
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads((folder / "cp" / "found.json").read_text())
    print(found, dict(faults.counted))
    assert faults.counted.total() >= 10
    assert found["equal"]
    # The copy contains the writes of the rounds before it, the changelog those of the others.
    streamed = found["changes"]["update"] // 10
    changes = {"insert": 20 * streamed, "update": 10 * streamed, "delete": 10 * streamed}
    assert found["changes"] == changes
    assert found["copied"] == _COPIED + 10 * (found["rounds"] - streamed)
    assert found["positions"] == sum(found["changes"].values())
