"""One expression that selects as many collections as `COLLECTIONS` says."""

from __future__ import annotations

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from cdc.demo import ReplicaSet
from tests.mongo.capture import Capture

_OUT = Path("build/collections.json")
_MB = 2**20
# Else the server has two files open of each collection, more of 10,000 than many machines permit.
_FEW_FILES = "file_manager=(close_handle_minimum=250,close_idle_time=2,close_scan_interval=1)"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_with_thousands_of_collections_each_document_comes_once_by_offsets_of_constant_size() -> (
    None
):
    """10,000 with `COLLECTIONS=10000`. What it takes is written to build/collections.json."""
    count = int(os.environ.get("COLLECTIONS", "1000"))
    few = ("--wiredTigerEngineConfigString", _FEW_FILES)
    with ReplicaSet(cache_gigabytes=1.0, arguments=few) as server, server.client() as client:
        names = [f"c{number:05d}" for number in range(count)]
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(lambda name: client["many"][name].insert_one({"_id": name}), names))
        process, began = psutil.Process(), time.monotonic()
        before = process.memory_info().rss
        splits = max(50, count // 40)
        pipeline = Capture(
            server.uri,
            r"many\..*",
            documents_per_split=None,
            splits_per_batch=splits,
            images="off",
        )
        start = time.monotonic() - began
        planning, sizes = list[float](), list[int]()
        while not pipeline.offset.is_streaming:
            pipeline.now()
            began = time.monotonic()
            end = pipeline.plan_now()
            planning.append(time.monotonic() - began)
            sizes.append(len(json.dumps(end.to_json())))
            pipeline.read(end)
        copied = len(pipeline.batches)
        assert sorted(row.coll or "" for row in pipeline.rows if row.op == "read") == names
        client["many"][names[count // 2]].update_one({"_id": names[count // 2]}, {"$set": {"n": 1}})
        pipeline.now()
        began = time.monotonic()
        end = pipeline.plan_now()
        streaming = time.monotonic() - began
        assert [op for op, _ in pipeline.read(end).ops] == ["update"]
        # A batch's offset names what the batch copies, and nothing else of so many.
        assert max(sizes) <= 200 * splits + 500
        assert len(json.dumps(end.to_json())) <= 500
        found = {
            "collections": count,
            "start_seconds": round(start, 2),
            "batches_of_the_copy": copied,
            "splits_per_batch": splits,
            "planning_seconds": {"most": round(max(planning), 2), "streaming": round(streaming, 3)},
            "offset_bytes": {"copying": max(sizes), "streaming": len(json.dumps(end.to_json()))},
            "rss_mb": {"before": before // _MB, "after": process.memory_info().rss // _MB},
        }
    _OUT.parent.mkdir(exist_ok=True)
    _OUT.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found))
