"""What the server gives at best: the same ranges and slices, read in as many processes, and the
bytes thrown away."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any, TypeAlias

import bson
import pymongo
from bson.codec_options import CodecOptions
from bson.max_key import MaxKey
from bson.raw_bson import RawBSONDocument

from cdc.model import Namespace, SnapshotSplit, StreamSplit

_RAW: CodecOptions[RawBSONDocument] = CodecOptions(document_class=RawBSONDocument)
_BATCH = 10_000


Pool: TypeAlias = ProcessPoolExecutor


def pool(processes: int) -> Pool:
    """Processes that are there before anything is measured."""
    found = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"))
    list(found.map(abs, range(processes)))
    return found


def documents(uri: str, splits: list[SnapshotSplit], workers: ProcessPoolExecutor) -> int:
    """How many bytes of replies the splits are."""
    return sum(workers.map(partial(_documents, uri), splits))


def events(uri: str, slices: list[StreamSplit], workers: ProcessPoolExecutor) -> int:
    """How many events the slices hold, with both images."""
    return sum(workers.map(partial(_events, uri), slices))


def entries(uri: str, slices: list[StreamSplit], workers: ProcessPoolExecutor) -> int:
    """How many entries of the oplog the slices hold, each read with its pre-image."""
    return sum(workers.map(partial(_entries, uri), slices))


def _documents(uri: str, split: SnapshotSplit) -> int:
    lower, upper = map(RawBSONDocument, (split.range.lower, split.range.upper))
    find: dict[str, Any] = {"find": split.namespace.coll, "hint": {"_id": 1}, "min": lower}
    if not split.range.is_last:
        find["max"] = upper
    find["readConcern"] = {"level": "snapshot", "atClusterTime": split.at}
    with pymongo.MongoClient(uri) as client:
        replies = _replies(client, split.namespace.db, {**find, "batchSize": _BATCH}, _BATCH)
        return sum(len(reply.raw) for reply in replies)


def _events(uri: str, split: StreamSplit) -> int:
    stage = {
        "startAtOperationTime": split.after,
        "fullDocument": "whenAvailable",
        "fullDocumentBeforeChange": "whenAvailable",
    }
    pipeline = [{"$changeStream": stage}, *bson.decode(split.pipeline)["pipeline"]]
    command = {"aggregate": 1, "pipeline": pipeline, "cursor": {"batchSize": 0}}
    count = 0
    assert split.database is not None
    with pymongo.MongoClient(uri) as client:
        for reply in _replies(client, split.database, command, 1000):
            batch = reply["cursor"].get("nextBatch", [])
            count += sum(split.contains(each["clusterTime"]) for each in batch)
            if batch and batch[-1]["clusterTime"] >= split.last:
                break
    return count


def _entries(uri: str, split: StreamSplit) -> int:
    namespace = Namespace.parse(split.collections)
    with pymongo.MongoClient(uri) as client:
        listed = client[namespace.db].command("listCollections", filter={"name": namespace.coll})
        uuid = listed["cursor"]["firstBatch"][0]["info"]["uuid"]
        time = {"$gt": split.after, "$lte": split.upto}
        lower, upper = (
            {"nsUUID": uuid, "ts": each, "applyOpsIndex": MaxKey()}
            for each in (split.after, split.upto)
        )
        images = {"_id": {"$gt": lower, "$lte": upper}}
        finds = {
            "local": {"find": "oplog.rs", "filter": {"ts": time, "ns": str(namespace)}},
            "config": {"find": "system.preimages", "filter": images},
        }
        counts = [
            sum(map(_count, _replies(client, db, {**find, "batchSize": _BATCH}, _BATCH)))
            for db, find in finds.items()
        ]
    assert counts[0] == counts[1], f"{counts[1]} pre-images of {counts[0]} changes"
    return counts[0]


def _count(reply: RawBSONDocument) -> int:
    cursor = reply["cursor"]
    return len(cursor["nextBatch" if "nextBatch" in cursor else "firstBatch"])


def _replies(
    client: pymongo.MongoClient[Any], db: str, command: dict[str, Any], size: int
) -> Iterator[RawBSONDocument]:
    database = client.get_database(db, codec_options=_RAW)
    reply = database.command(command, codec_options=_RAW)
    yield reply
    while cursor := int(reply["cursor"]["id"]):
        collection = reply["cursor"]["ns"].partition(".")[2]
        more = {"getMore": cursor, "collection": collection, "batchSize": size}
        reply = database.command(more, codec_options=_RAW)
        yield reply
