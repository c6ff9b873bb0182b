"""Collections that get another shard key while they are read through a router.

The router is a stand-in (`tests.mongo.stand_in`): none of this has met a real mongos. The shards
are real, and so are sharding, refining and resharding.
"""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import bson
import pytest

from cdc.errors import ContentReplaced, UnsuitableSource
from cdc.model import document_key_of, whole_key
from cdc.mongo import topology
from tests.mongo.capture import EMPTYING
from tests.mongo.cluster import Cluster
from tests.mongo.routed import Routed
from tests.mongo.stand_in import StandIn
from tests.slow import slow_but

RECORDING = {"changeStreamPreAndPostImages": {"enabled": True}}


class All:
    """A collection with the documents 0 to 19, sharded by `k`, or not at all."""

    def __init__(self, cluster: Cluster, db: str, is_sharded: bool = True) -> None:
        self.cluster, self.db, self.fields = cluster, db, ["k"] if is_sharded else []
        if is_sharded:
            cluster.shard_collection(db, "all", {"k": 1})
        else:
            cluster.clients["s1"][db].create_collection("all")
        cluster.clients["s1"][db].command({"collMod": "all", **RECORDING})
        self.insert(range(20))

    def insert(self, ids: Any) -> None:
        for k in ids:
            document = {"_id": k, "k": k, "more": -k, "n": 0}
            self._on_owner(k, {"insert": "all", "documents": [document]})

    def update(self, *ids: int) -> None:
        for k in ids:
            change = {"q": {"_id": k, "k": k, "more": -k}, "u": {"$inc": {"n": 1}}}
            self._on_owner(k, {"update": "all", "updates": [change]})

    def delete(self, *ids: int) -> None:
        for k in ids:
            delete = {"q": {"_id": k, "k": k, "more": -k}, "limit": 1}
            self._on_owner(k, {"delete": "all", "deletes": [delete]})

    def _on_owner(self, k: int, command: Any) -> None:
        """Runs on the shard that owns the document, which is a part of `fields`."""
        if not self.fields:
            assert self.cluster.clients["s1"][self.db].command(command)["n"] == 1
            return
        routing = self.cluster.routing(self.db, "all")
        field = self.fields[0]
        owner = routing.owner({"k": k, "more": -k, "_id": k}[field])
        reply = self.cluster.run(owner, self.db, command)
        assert reply["n"] == 1, reply

    def shard(self) -> None:
        coll = self.cluster.clients["s1"][self.db]["all"]
        coll.create_index([("more", 1)])
        self.cluster.shard_collection(self.db, "all", {"more": 1})
        self.fields = ["more"]

    def shard_by_id(self) -> None:
        self.cluster.shard_collection(self.db, "all", {"_id": 1})
        self.fields = ["_id"]

    def refine(self) -> None:
        self.cluster.refine(self.db, "all", {"k": 1, "more": 1})
        self.fields = ["k", "more"]

    def reshard(self) -> None:
        self.cluster.reshard(self.db, "all", {"more": 1})
        self.fields = ["more"]

    def reshard_by_id(self) -> None:
        self.cluster.reshard(self.db, "all", {"_id": 1})
        self.fields = ["_id"]

    @property
    def mirror(self) -> dict[str, bytes]:
        """What a mirror has to contain."""
        documents = self.cluster.contents(self.db, "all")
        return {whole_key(document_key_of(each, self.fields)): each for each in documents}


def mirrored(pipeline: Routed) -> dict[str, bytes]:
    """What a mirror contains of the rows: by `key`, since the last row that emptied it."""
    held = dict[str, bytes]()
    ordered = sorted(
        [*pipeline.resyncs, *pipeline.rows], key=lambda row: (row.position, row.op != "delete")
    )
    for row in ordered:
        if row.op in EMPTYING:
            held.clear()
        elif row.key is not None and row.op == "delete":
            held.pop(row.key, None)
        elif row.key is not None:
            assert row.after is not None
            held[row.key] = bytes(row.after)  # type: ignore[arg-type]
    return held


CASES = [
    (how, when)
    for how in ("shard", "refine", "reshard", "reshard_by_id")
    for when in ("streaming", "copying", "planned")
]
# Each way to another shard key but one, and each moment.
SLOW = [("refine", "streaming"), ("shard", "copying"), ("reshard", "planned")]


@pytest.mark.parametrize(
    "case",
    slow_but([], CASES, soak=[case for case in CASES if case not in SLOW]),
    ids="-".join,
)
def test_a_collection_that_gets_another_shard_key_is_copied_again(
    cluster: Cluster, db: str, router: StandIn, case: tuple[str, str]
) -> None:
    """Guards: document keys become others, so that rows of one document have different keys."""
    how, when = case
    every = All(cluster, db, is_sharded=how != "shard")
    pipeline = Routed(cluster, router.uri, f"{db}.all", documents_per_split=5)

    def happen() -> None:
        every.update(3, 13)
        every.delete(4)
        getattr(every, how)()
        every.update(3, 14)
        every.delete(5, 15)
        every.insert([30])

    if when == "streaming":
        pipeline.run()
        happen()
    else:
        pipeline.read(pipeline.plan_copy())
        end = pipeline.plan_copy()
        pipeline.read(end, meanwhile=happen if when == "planned" else lambda: None)
        if when == "copying":
            happen()
    pipeline.run()
    assert mirrored(pipeline) == every.mirror
    resyncs = [row.coll for row in pipeline.resyncs]
    assert set(resyncs) == {"all"}
    if how in ("shard", "refine"):
        assert len(resyncs) == 1, "another one states that changes are missing"
    every.update(3, 30)
    every.delete(6)
    pipeline.run()
    assert mirrored(pipeline) == every.mirror


def test_changes_before_another_shard_key_are_rows_of_the_former_document_keys(
    cluster: Cluster, db: str, router: StandIn
) -> None:
    """Guards: a change that is lost, or taken for a change of the shard key's value."""
    every = All(cluster, db)
    pipeline = Routed(cluster, router.uri, f"{db}.all")
    pipeline.run()
    every.update(3)
    every.delete(4)
    every.refine()
    pipeline.run()
    rows = [row for row in pipeline.rows if row.key is not None and row.op != "read"]
    changes = [(row.op, row.key) for row in rows]
    assert changes == [("update", '3\t{"k":3}'), ("delete", '4\t{"k":4}')]


def test_a_collection_that_is_sharded_by_its_id_keeps_its_rows(
    cluster: Cluster, db: str, router: StandIn
) -> None:
    every = All(cluster, db, is_sharded=False)
    pipeline = Routed(cluster, router.uri, f"{db}.all")
    pipeline.run()
    every.update(3)
    every.shard_by_id()
    every.update(3)
    pipeline.run()
    assert pipeline.resyncs == []
    assert mirrored(pipeline) == every.mirror


def test_a_new_collection_that_is_sharded_while_it_is_empty_is_not_copied(
    cluster: Cluster, db: str, router: StandIn
) -> None:
    """Guards: the changes that are in no row because they are before the copy."""
    cluster.clients["s1"][db]["other"].insert_one({"_id": 1})
    pipeline = Routed(cluster, router.uri, f"{db}.other", f"{db}.all")
    pipeline.run()
    every = All(cluster, db)
    every.update(3)
    pipeline.run()
    assert pipeline.resyncs == []
    assert mirrored(pipeline).items() >= every.mirror.items()
    assert [row.op for row in pipeline.rows if row.key == '3\t{"k":3}'] == ["insert", "update"]


@pytest.mark.parametrize("is_dropped", [True, False])
def test_a_new_collection_ends_no_run_that_copies_nothing(
    cluster: Cluster, db: str, router: StandIn, is_dropped: bool
) -> None:
    """Guards: its shard key taken for another one of a collection with rows. Not all shards can be
    read at the time of a hashed one."""
    cluster.clients["s1"][db]["other"].insert_one({"_id": 1})
    if is_dropped:
        All(cluster, db)
    pipeline = Routed(cluster, router.uri, f"{db}.other", f"{db}.all", mode="latest")
    pipeline.run()
    if is_dropped:
        cluster.drop_collection(db, "all")
    cluster.shard_collection(db, "all", {"k": "hashed"})
    pipeline.run()
    shard = cluster.owner_of_hash(db, "all", 3)
    cluster.run(shard, db, {"insert": "all", "documents": [{"_id": 3, "k": 3}]})
    pipeline.run()
    assert mirrored(pipeline) == {'3\t{"k":3}': bson.encode({"_id": 3, "k": 3})}


@pytest.mark.slow
def test_a_collection_that_is_dropped_and_filled_again_has_each_change(
    cluster: Cluster, db: str, router: StandIn
) -> None:
    """Guards: changes between the drop and the shard key, which would be in no row."""
    All(cluster, db)
    pipeline = Routed(cluster, router.uri, f"{db}.all")
    pipeline.run()
    cluster.drop_collection(db, "all")
    again = All(cluster, db)
    again.update(3)
    pipeline.run()
    assert mirrored(pipeline) == again.mirror
    assert "drop" in [row.op for row in pipeline.rows]
    assert [row.op for row in pipeline.rows if row.key == '3\t{"k":3}'][1:] == ["insert", "update"]


def test_a_collection_that_is_no_longer_selected_keeps_its_rows(
    cluster: Cluster, db: str, router: StandIn
) -> None:
    """Guards: a mirror that is emptied, and never filled."""
    every = All(cluster, db)
    cluster.clients["s1"][db]["other"].insert_one({"_id": 1})
    both = Routed(cluster, router.uri, f"{db}.other", f"{db}.all")
    both.run()
    every.refine()
    one = Routed(cluster, router.uri, f"{db}.other")
    one.offset, one.batches = both.offset, both.batches
    one.run()
    assert one.resyncs == []
    assert len(mirrored(one)) == 21


def test_what_cannot_be_copied_again_ends_the_run(
    cluster: Cluster, db: str, router: StandIn, caplog: pytest.LogCaptureFixture
) -> None:
    every = All(cluster, db)
    latest = Routed(cluster, router.uri, f"{db}.all", mode="latest")
    latest.run()
    assert "its shard key" not in caplog.text
    refusing = Routed(cluster, router.uri, f"{db}.all", on_replaced="fail")
    refusing.run()
    every.refine()
    every.update(3)
    with pytest.raises(UnsuitableSource, match=f"{db}.all got another shard key"):
        latest.run()
    with pytest.raises(ContentReplaced, match="it got another shard key"):
        refusing.run()
    latest.planner.copies = True  # another mode
    latest.run()
    assert mirrored(latest) == every.mirror


def test_a_shard_key_that_becomes_visible_after_its_own_time_is_not_missed(
    cluster: Cluster, db: str, router: StandIn
) -> None:
    """Guards: a batch that ends between the two."""
    every = All(cluster, db)
    pipeline = Routed(cluster, router.uri, f"{db}.all")
    pipeline.run()
    before = pipeline.source.shard_keys(pipeline.selection, pipeline.offset.time)
    every.refine()
    with patch.object(topology.router, "find_shard_keys", lambda entries, selection: before):
        pipeline.run()
        assert pipeline.resyncs == []
    every.update(3)
    pipeline.run()
    assert mirrored(pipeline) == every.mirror


def test_a_collection_that_is_selected_later_has_its_shard_key_from_the_beginning(
    cluster: Cluster, db: str, router: StandIn
) -> None:
    """Guards: its shard key taken for a new one, for which this mode would have to copy it."""
    every = All(cluster, db)
    cluster.clients["s1"][db]["other"].insert_one({"_id": 1})
    pipeline = Routed(cluster, router.uri, f"{db}.other", mode="latest")
    pipeline.run()
    both = Routed(cluster, router.uri, f"{db}.other", f"{db}.all", mode="latest")
    both.offset = pipeline.offset
    both.run()
    every.update(3)
    both.run()
    assert [row.key for row in both.rows] == ['3\t{"k":3}']


def test_rows_made_without_the_shard_keys_are_copied_again_with_them(
    cluster: Cluster, db: str, router: StandIn
) -> None:
    """Guards: a user who may read the shard keys only later, or no longer."""
    every = All(cluster, db)
    with patch.object(topology.router, "find_shard_keys", lambda entries, selection: None):
        pipeline = Routed(cluster, router.uri, f"{db}.all")
        pipeline.run()
        latest = Routed(cluster, router.uri, f"{db}.all", mode="latest")
        latest.run()
        assert pipeline.offset.shard_keys is None
        assert "\t" not in "".join(mirrored(pipeline))
    every.update(3)
    pipeline.run()
    assert pipeline.offset.shard_keys
    latest.run()
    assert latest.offset.shard_keys == pipeline.offset.shard_keys
    assert mirrored(pipeline) == every.mirror
    every.update(3)
    end = pipeline.plan()
    with patch.object(topology.router, "find_shard_keys", lambda entries, selection: None):
        for attempt in (lambda: pipeline.read(end), pipeline.run):
            with pytest.raises(UnsuitableSource, match="may no longer read the shard keys"):
                attempt()
