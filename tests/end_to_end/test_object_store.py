"""A pipeline into a server that speaks S3: tasks write by pyarrow, Spark commits by S3A."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

from cdc.demo import ReplicaSet
from tests.end_to_end.object_store_program import UPLOADS
from tests.object_store import object_store


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_tables_in_an_object_store_equal_the_source_also_after_a_replay(
    mongod: ReplicaSet, mongo: MongoClient[dict[str, Any]], tmp_path: Path
) -> None:
    """Guards: rows written twice or left out; probes and files of a replay that stay; a wrong key
    that is printed, or that leads to Spark's way without a word; uploads of killed tasks that stay
    for ever, and those of running tasks and of others that `maintain` aborts; a store that does not
    let uploads be listed or aborted, which ends `maintain` or is not reported."""
    mongo.drop_database("stored")
    images = {"enabled": True}
    mongo.stored.create_collection("orders", changeStreamPreAndPostImages=images)
    mongo.stored.orders.insert_many([{"_id": number, "n": number} for number in range(500)])
    with object_store() as store:
        given = mongod.uri, str(tmp_path / "cp"), store.endpoint
        program, limited = "tests.end_to_end.object_store_program", json.dumps(store.limited)
        done = store.run(program, *given, S3_LIMITED=limited)
    mongo.drop_database("stored")
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads((tmp_path / "cp" / "found.json").read_text())
    assert found["equal"]
    assert found["equal again"]
    assert found["before"][0] == {"changelog": 650, "mirror": 450}
    assert found["replayed"] == found["before"]
    assert found["before"][1]
    assert not any("probe" in name for name in found["before"][1])
    assert found["held"] == [True, False]

    begun, ended = sorted(sum(UPLOADS.values(), ())), UPLOADS["aborted"]
    expected = dict.fromkeys((f"s3a://lake/{key}" for key in ended), "2010-11-10T20:48:33+00:00")
    assert found["dry run"] == [expected, begun]
    assert found["maintained"] == [expected, [key for key in begun if key not in ended]]
    for url, time in expected.items():
        assert done.stderr.count(f"unfinished upload of {time}: {url}\n") == 2

    # The store refuses one of both to each of two users, and `maintain` does the rest.
    left = sorted([*begun, *(key for key in begun if key not in ended)])
    refused = "s3:ListBucketMultipartUploads", "s3:AbortMultipartUpload"
    assert found["limited"] == {each: [[None, None], left] for each in refused}
    lines = [each for each in done.stderr.splitlines() if "are left to the store" in each]
    begin, kinds = "unfinished uploads in s3a://lake", ("AccessDeniedException", "S3Exception")
    for line, action, kind in zip(lines, refused, kinds, strict=True):
        assert line.endswith(f"{begin} are left to the store: it refuses {action} ({kind})")

    assert not found["by tasks"]
    assert "Spark writes all rows, because pyarrow cannot write" in done.stderr
    by_tasks, connecting = found["errors"]
    assert "Tasks cannot write" in by_tasks
    for text in (by_tasks, connecting):
        assert "'access.key' and 'secret.key'" in text
    everything = json.dumps(found) + done.stderr + done.stdout
    assert "wrong-and-secret" not in everything
    assert store.secret_key not in everything
    offsets = (tmp_path / "cp" / "offsets").rglob("*")
    secret = store.secret_key.encode()
    for _, limited in store.limited.values():
        assert limited not in everything
    assert not any(secret in each.read_bytes() for each in offsets if each.is_file())
