"""A small pipeline as a release leaves it: what it writes to the server, and the program that makes
a sample of it.

    PYTHONPATH=CHECKOUT_OF_THE_RELEASE python tests/end_to_end/release_sample.py FOLDER

runs that release, so nothing but PyMongo and the release itself is imported here. `FOLDER` then
contains `pipeline.toml`, the tables and the checkpoint. `test_release_before.py` lets this release
go on from there.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pymongo.database import Database

Document = dict[str, Any]
DB = "release"
ORDERS, TYPED, ODD = "orders", "typed", "odd/name ü"
COLLECTIONS = (ORDERS, TYPED, ODD)
CONFIGURATION = f"""
[source]
collections = [["{DB}", "{ORDERS}"], ["{DB}", "{TYPED}"], ["{DB}", "{ODD}"]]
heartbeat.interval = 1
max.events.per.batch = 1000
[table]
history = "{{db}}/{{coll}}/history"
dead_letters = "_dead_letters"
track_history_columns = []
[[override]]
match = "{DB}.{TYPED}"
columns = {{ n = "bigint", city = "string from address.city" }}
"""


def create(database: Database[Document]) -> None:
    """The collections, which a first batch copies."""
    for name in COLLECTIONS:
        database.create_collection(name, changeStreamPreAndPostImages={"enabled": True})
        database[name].insert_many(
            {"_id": key, "n": key, "address": {"city": f"c{key}"}} for key in range(6)
        )


def change(database: Database[Document]) -> None:
    """The changes of a batch that the release completed."""
    for name in COLLECTIONS:
        database[name].update_one({"_id": 1}, {"$set": {"n": 10, "address.city": "x"}})
        database[name].delete_one({"_id": 2})
        database[name].insert_one({"_id": 7, "n": 7, "extra": [1, None, "two"]})


def change_last(database: Database[Document]) -> None:
    """The changes of the last batch, within which a release may have been killed."""
    for name in COLLECTIONS:
        database[name].update_one({"_id": 1}, {"$inc": {"n": 1}})
        database[name].delete_one({"_id": 7})
        database[name].replace_one({"_id": 3}, {"n": "three"})


PHASES: tuple[Callable[[Database[Document]], None], ...] = (create, change, change_last)


def main(folder: str) -> None:
    from cdc.demo import ReplicaSet

    place = Path(folder)
    place.mkdir()
    (place / "pipeline.toml").write_text(CONFIGURATION)
    with ReplicaSet(name="rs0") as replica_set, replica_set.client() as client:
        for phase in PHASES:
            phase(client[DB])
            command = [sys.executable, "-m", "cdc.cli.replicate", "--available-now"]
            command += ["--config", str(place / "pipeline.toml"), "-o", f"uri={replica_set.uri}"]
            subprocess.run(
                [*command, "-o", f"sink.path={place / 'lake'}"], check=True, env={**os.environ}
            )
    for path in place.rglob("*"):
        # Checksums of files that a test changes, and what is no part of a checkpoint.
        if path.name.endswith(".crc"):
            path.unlink()
    shutil.rmtree(place / "lake/_checkpoint/sources", ignore_errors=True)
    for offset in sorted((place / "lake/_checkpoint/offsets").iterdir()):
        print(offset.name, json.loads(offset.read_text().splitlines()[-1])["time"])


if __name__ == "__main__":
    main(*sys.argv[1:])
