"""The memory of a task that lands large changes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pymongo.database import Database

from cdc.demo import ReplicaSet
from cdc.model import timestamp

ROOT = Path(__file__).parents[2]
_BYTES, _CHANGES = 7 * 2**20, 6
# What a worker may have above what it has before it reads: of 400 MB in all, which 14 MB of images
# per change must fit into. PySpark's worker has up to 200 MB before.
_MOST_MEGABYTES = 200

_LAND = """
import re, sys
from pathlib import Path
from pyspark.sql.pandas.types import to_arrow_schema
from cdc import options as declared
from cdc.kernel import loading
from cdc.source import WindowReader, row_schema
from cdc.tasks import Part, Storage, land, record_batches, share_names

def most():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024

uri, collection, method, begin, end, folder = sys.argv[1:]
loading.columns(), loading.oplog()
given = {"uri": uri, "collections": collection, "read.by": method, "from": begin, "to": end}
options, schema = declared.parse(given), row_schema("variant")
[split] = [each for part in WindowReader(options, schema).partitions() for each in part.splits]
arrow = share_names(to_arrow_schema(schema, timezone="UTC"))
Path("/proc/self/clear_refs").write_text("5")
before = most()
rows = record_batches(split, options, arrow, may_be_void=False)
manifest = land(rows, lambda namespace, batch: [Part(folder, batch)], 2**27, Storage())
print(sum(each.rows for each in manifest.files), round(most() - before))
"""


@pytest.mark.parametrize("method", ["oplog", "change_stream"])
def test_changes_with_images_of_14_mb_fit_into_a_task(
    mongod: ReplicaSet, database: Database[dict[str, Any]], tmp_path: Path, method: str
) -> None:
    """Guards: the next change in memory while one is encoded, and copies of images."""
    images = {"changeStreamPreAndPostImages": {"enabled": True}}
    large = database.create_collection("large", **images)
    large.insert_one({"_id": 0, "n": 0, "x": "x" * _BYTES})
    begin = _now(database)
    for _ in range(_CHANGES):
        large.update_one({"_id": 0}, {"$inc": {"n": 1}})
    given = [mongod.uri, large.full_name, method, begin, _now(database), str(tmp_path / "table")]
    found = subprocess.run(
        [sys.executable, "-c", _LAND, *given],
        cwd=ROOT,
        env={**os.environ, "SPARK_REUSE_WORKER": "1"},  # as Spark starts a worker
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout
    rows, megabytes = map(int, found.split())
    assert rows == _CHANGES
    assert megabytes <= _MOST_MEGABYTES, f"{megabytes} MB"


def _now(database: Database[dict[str, Any]]) -> str:
    """The time after all that was written so far, as an option."""
    last = database.client.admin.command("hello")["lastWrite"]["majorityOpTime"]["ts"]
    return timestamp.text(type(last)(last.time, last.inc + 1))
