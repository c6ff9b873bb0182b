"""Pipelines through a stand-in for a router, and what the shards themselves report.

None of this has met a real mongos.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import bson
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp

from cdc.model import Change, Namespace, Offset, key_of, merge_key, resume_token
from tests.mongo.capture import Capture, Contents, until
from tests.mongo.cluster import Cluster
from tests.mongo.topology.test_sharded_cluster import Orders, replayed

RAW: CodecOptions[RawBSONDocument] = CodecOptions(document_class=RawBSONDocument)


class Routed(Capture):
    """A pipeline through routers, that waits for what the test wrote to the shards directly."""

    def __init__(self, cluster: Cluster, uri: str, *names: str, **settings: Any) -> None:
        self.cluster = cluster
        super().__init__(uri, ",".join(names), **settings)
        self.open_member = lambda: self.source.open("")

    def now(self) -> Timestamp:
        known = max(_newest(self.cluster, shard) for shard in self.cluster.shards)
        edges: list[Timestamp] = []
        until(lambda: edges.append(self._edge(known)) or edges[-1] >= known)
        return edges[-1]

    def plan_copy(self) -> Offset:
        """The end of the next batch that copies. On a busy machine a listing may not be confirmed
        in time; then the batch before it copies nothing."""
        for _ in range(20):
            if (end := self.plan()).scans:
                return end
            self.read(end)
        raise AssertionError("no listing is confirmed, or nothing is left to copy")


def _newest(cluster: Cluster, shard: str) -> Timestamp:
    time: Timestamp = cluster.clients[shard].admin.command("ping")["$clusterTime"]["clusterTime"]
    return time


class Oracle:
    """What the events of each shard, read from the shard itself, have done up to a time.

    It begins with an empty collection, so it has to be made before the first document.
    """

    def __init__(self, cluster: Cluster, db: str, coll: str) -> None:
        self.cluster, self.db, self.coll = cluster, db, coll
        self._since = max(_newest(cluster, shard) for shard in cluster.shards)

    def contents(self, at: Timestamp) -> Contents:
        """The documents by document key, in the order of the times of their events."""
        events = [each for shard in self.cluster.shards for each in self._events(shard, at)]
        held: Contents = {}
        for event in sorted(events, key=lambda event: event["_id"]["_data"]):
            key = str(bson.decode(event["documentKey"].raw))
            held.pop(key, None)
            if event["operationType"] != "delete":
                held[key] = bytes(event["fullDocument"].raw)
        by_id = {merge_key(key_of(document)): document for document in held.values()}
        assert len(by_id) == len(held), "twins need another test"
        return by_id

    def _events(self, shard: str, at: Timestamp) -> list[Any]:
        client = self.cluster.clients[shard]
        while _newest_entry(client) <= at:
            client.admin.command({"appendOplogNote": 1, "data": {}})
        found = []
        coll = client[self.db].get_collection(self.coll, codec_options=RAW)
        options = {"full_document": "whenAvailable", "start_at_operation_time": self._since}
        with coll.watch(**options, max_await_time_ms=10) as stream:
            while True:
                event = stream.try_next()
                if event is not None and event["clusterTime"] <= at:
                    found.append(event)
                token = stream.resume_token
                if token and resume_token.time_of(token["_data"]) > at:
                    break
        return [each for each in found if "documentKey" in each]


def _newest_entry(client: Any) -> Timestamp:
    time: Timestamp = client.admin.command("hello")["lastWrite"]["majorityOpTime"]["ts"]
    return time


def assert_as_the_events_left_it(pipeline: Capture, orders: Orders, oracle: Oracle) -> None:
    """What a sink holds is what the events up to the offset's time did, below its frontier."""
    offset, held = pipeline.offset, oracle.contents(pipeline.offset.time)
    below = 10**9 if offset.passes_whole(Namespace(orders.db, "orders")) else -1
    if offset.copying:
        below = bson.decode(offset.copying.below)["_id"]
    expected = {key: doc for key, doc in held.items() if bson.decode(doc)["_id"] < below}
    assert replayed(pipeline, orders) == expected
    assert all(row.exact for row in pipeline.rows)


def assert_unbroken(pipeline: Capture) -> None:
    """The before-image of each change is what the row before it left of the document."""
    last: dict[Any, Any] = {}
    for row in sorted(pipeline.rows, key=lambda row: row.position):
        if row.key is not None:
            if row.op != "read":
                assert row.before == last.pop(row.key, None), row
            assert row.key not in last, "a document was copied twice, or inserted over another"
            if row.op != "delete":
                last[row.key] = row.after


def insert_twins(orders: Orders, ids: Iterable[Any]) -> None:
    """A document with each `_id` on each shard."""
    for number, each in enumerate(ids):
        for shard, region in (("s1", 1), ("s2", 6)):
            twin = {"_id": each, "region": region, "number": number, "pad": "x" * 300}
            orders.run(shard, {"insert": orders.name, "documents": [twin]})


def documents(cluster: Cluster, orders: Orders) -> Counter[bytes]:
    return Counter(cluster.contents(orders.db, orders.name))


def copied(rows: Iterable[Change]) -> Counter[bytes]:
    return Counter(bytes(row.after) for row in rows if row.op == "read")  # type: ignore[arg-type]


def newest_time(cluster: Cluster) -> Timestamp:
    return max(_newest(cluster, shard) for shard in cluster.shards)
