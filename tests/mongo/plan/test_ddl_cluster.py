"""DDL of a cluster: what each shard reports is one row."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from pymongo.errors import OperationFailure
from pyspark.sql.types import StructType

from cdc import options as declared
from cdc import source
from cdc.errors import ContentReplaced, UnsuitableSource
from cdc.model import Change, Offset, timestamp
from cdc.mongo.plan.ddl_survey import assign_reporters
from cdc.mongo.query import CUTTING_EVENTS
from cdc.source import inquiry
from tests.mongo.abilities import abilities
from tests.mongo.capture import Capture, Document, contents
from tests.mongo.cluster import HIGHEST, LOWEST, MAJORITY, NO_SUCH_COMMAND, Cluster
from tests.mongo.plan.test_change_window import window
from tests.mongo.topology.test_sharded_cluster import capture

SCATTERED = {"_shardsvrDropIndexes": "dropIndexes", "_shardsvrCollMod": "collMod"}
ROWS = ("read", "insert", "update", "replace", "delete")


def coordinated(cluster: Cluster, db: str, command: Document) -> None:
    """A command that a router leaves to the primary shard of the database; that of 5.0 sends some
    to each shard that owns some of the collection."""
    found = cluster.metadata["databases"].find_one({"_id": db})
    versioned = {**command, "databaseVersion": found["version"], **MAJORITY}
    try:
        cluster.clients[found["primary"]][db].command(versioned)
    except OperationFailure as error:
        if error.code != NO_SUCH_COMMAND:
            raise
        name, coll = next(iter(command.items()))
        scattered = {SCATTERED[name]: coll, **dict(list(command.items())[1:])}
        for shard in sorted({chunk["shard"] for chunk in cluster.chunks(db, coll)}):
            cluster.run(shard, db, scattered)


def index_on(cluster: Cluster, db: str, coll: str, *shards: str) -> None:
    """What a router sends to the shards that own some of the collection."""
    command = {"createIndexes": coll, "indexes": [{"key": {"x": 1}, "name": "x"}]}
    for shard in shards:
        cluster.run(shard, db, command)


def ddl(pipeline: Capture) -> list[tuple[str, str | None]]:
    reported = sorted(
        (row for row in pipeline.rows if row.op not in ROWS), key=lambda r: r.position
    )
    return [(row.op, row.coll) for row in reported]


def reported_by(cluster: Cluster, *expected: tuple[str, Any]) -> list[tuple[str, Any]]:
    """What of it the servers report: before 6.0 only what empties a collection."""
    can = abilities(cluster.clients["s1"])
    return [each for each in expected if can.reports_all_ddl or each[0] in CUTTING_EVENTS]


def both_shards_change(cluster: Cluster, db: str) -> None:
    """Every kind of DDL on a collection of which both shards own a half."""
    cluster.shard_collection(db, "o", {"k": 1})
    cluster.move(db, "o", {"k": LOWEST}, "s2", {"k": 5})
    index_on(cluster, db, "o", "s1", "s2")
    coordinated(cluster, db, {"_shardsvrDropIndexes": "o", "index": "x"})
    coordinated(cluster, db, {"_shardsvrCollMod": "o", "validator": {"k": {"$gte": 0}}})
    coordinated(cluster, db, {"_shardsvrRenameCollection": "o", "to": f"{db}.p"})
    cluster.drop_collection(db, "p")


EXPECTED = [
    ("create", "o"),
    ("createIndexes", "o"),
    ("shardCollection", "o"),
    ("createIndexes", "o"),
    ("dropIndexes", "o"),
    ("modify", "o"),
    ("rename", "o"),
    ("drop", "p"),
]


@pytest.mark.parametrize("followed", ["from the oplog", "step by step"])
def test_ddl_that_both_shards_report_is_one_row_each(
    cluster: Cluster, db: str, followed: str
) -> None:
    """Guards: a collection appears on a shard with its first chunk, which is nobody's doing."""
    pipeline = capture(cluster, f"{db}.[op]", mode="latest")
    if followed == "from the oplog":
        both_shards_change(cluster, db)
    else:
        stepwise(cluster, db, pipeline)
    pipeline.run()
    assert ddl(pipeline) == reported_by(cluster, *EXPECTED)
    assert not pipeline.namespaces_copied


def stepwise(cluster: Cluster, db: str, pipeline: Capture) -> None:
    """Reads whatever there is between what one shard does and the other."""
    cluster.shard_collection(db, "o", {"k": 1})
    cluster.move(db, "o", {"k": LOWEST}, "s2", {"k": 5})
    for shard in ("s2", "s1"):
        index_on(cluster, db, "o", shard)
        pipeline.run()
    coordinated(cluster, db, {"_shardsvrDropIndexes": "o", "index": "x"})
    coordinated(cluster, db, {"_shardsvrCollMod": "o", "validator": {"k": {"$gte": 0}}})
    pipeline.run()
    coordinated(cluster, db, {"_shardsvrRenameCollection": "o", "to": f"{db}.p"})
    cluster.drop_collection(db, "p")


def test_ddl_of_a_collection_that_the_primary_shard_owns_nothing_of_is_reported(
    cluster: Cluster, db: str
) -> None:
    """Guards: the primary shard is not asked to make indexes on what it does not own."""
    cluster.shard_collection(db, "o", {"k": 1})
    cluster.move(db, "o", {"k": LOWEST}, "s2")
    pipeline = capture(cluster, f"{db}.o", mode="latest")
    index_on(cluster, db, "o", "s2")
    coordinated(cluster, db, {"_shardsvrDropIndexes": "o", "index": "x"})
    coordinated(cluster, db, {"_shardsvrCollMod": "o", "validator": {"k": {"$gte": 0}}})
    cluster.drop_collection(db, "o")
    pipeline.run()
    expected = [(op, "o") for op in ("createIndexes", "dropIndexes", "modify", "drop")]
    assert ddl(pipeline) == reported_by(cluster, *expected)


def test_databases_with_different_primary_shards_are_reported_by_each_its_own(
    cluster: Cluster, db: str
) -> None:
    """Guards: a shard is silent for one and not for the other, so no batch holds both."""
    other = f"{db}_other"
    cluster.create_database(other, "s2")
    for name in (db, other):
        cluster.shard_collection(name, "o", {"k": 1})
        cluster.move(name, "o", {"k": LOWEST}, "s1", {"k": 5})
        cluster.move(name, "o", {"k": 5}, "s2", {"k": HIGHEST})
    pipeline = capture(cluster, f"{db}.o", f"{other}.o", mode="latest")
    since = pipeline.offset.time
    for name in (db, other, db):
        index_on(cluster, name, "o", "s1", "s2")
        coordinated(cluster, name, {"_shardsvrDropIndexes": "o", "index": "x"})
        pair = {"k": 1}
        cluster.run("s1", name, {"insert": "o", "documents": [pair]})
    pipeline.run()
    indexes = [op for op, _ in reported_by(cluster, ("createIndexes", "o"), ("dropIndexes", "o"))]
    reported = Counter((row.db, row.op) for row in pipeline.rows)
    assert reported == Counter(
        (name, op) for name in (db, other, db) for op in (*indexes, "insert")
    )
    assert_replayed_alike(pipeline)
    bounds = {"from_": timestamp.after(since), "to": timestamp.after(pipeline.offset.time)}
    captured = {"uri": cluster.config.uri, "collections": f"{db}.o,{other}.o"}
    rows = window(**captured, **bounds, shards_direct="true")
    assert rows == changes(pipeline.rows)


def assert_replayed_alike(pipeline: Capture) -> None:
    """Guards: who reports is in the offset, and not asked again."""
    for batch in list(pipeline.batches):
        splits = pipeline.planner.splits(batch.start, batch.end, control=False)
        rows = [row for split in splits for row in pipeline.rows_of(split)]
        assert changes(rows) == changes(batch.rows)


def changes(rows: list[Change]) -> list[Change]:
    """Without what was copied: it may be gone."""
    return sorted((row for row in rows if row.op != "read"), key=lambda row: row.position)


def test_a_database_that_moves_and_goes_is_reported_by_the_primary_shard_of_each_time(
    cluster: Cluster, db: str
) -> None:
    """Guards: that it moves is no DDL of its collections, though shards report some; where nothing
    is copied, their changes go on."""
    cluster.shard_collection(db, "o", {"k": 1})
    cluster.move(db, "o", {"k": LOWEST}, "s2", {"k": 5})
    plain = cluster.clients["s1"][db]["plain"]
    plain.insert_one({"_id": 1})
    pipeline = capture(cluster, f"{db}.plain", f"{db}.o", f"{db}.q", mode="latest")
    plain.create_index("x")
    cluster.move_primary(db, "s2")
    moved = cluster.clients["s2"][db]["plain"]
    moved.create_index("y")
    moved.insert_one({"_id": 2})
    pipeline.run()
    indexes = reported_by(cluster, ("createIndexes", "plain"), ("createIndexes", "plain"))
    assert ddl(pipeline) == indexes
    assert [(row.op, row.key) for row in pipeline.rows if row.op in ROWS] == [("insert", "2")]
    coordinated(cluster, db, {"_shardsvrDropDatabase": 1})
    cluster.create_database(db, "s1")
    cluster.clients["s1"][db]["q"].insert_one({})
    pipeline.run()
    expected = [("drop", "o"), ("drop", "plain"), ("dropDatabase", None), ("create", "q")]
    assert Counter(ddl(pipeline)[len(indexes) :]) == Counter(reported_by(cluster, *expected))
    assert_replayed_alike(pipeline)


@pytest.mark.parametrize("mode", ["initial", "latest"])
def test_a_run_begins_before_its_database_and_goes_on_after_its_end(
    cluster: Cluster, mode: str
) -> None:
    """Guards: where no database holds anything of it, only the metadata reports that, and when."""
    db = f"unborn_{mode}"
    coll = cluster.clients["s2"][db]["o"]
    waiting = {"mode": mode, "missing_collections": "wait"}
    pipeline = capture(cluster, f"{db}.o", f"{db}_.*", **waiting)
    pipeline.offset = Offset.from_json(begun(pipeline))
    pipeline.run()
    with pytest.raises(UnsuitableSource, match=f"no collection {db}.o"):
        begun(capture(cluster, f"{db}.o", mode=mode))

    for count in (3, 5):
        cluster.create_database(db, "s2")
        coll.insert_many({"_id": i} for i in range(count))
        coll.delete_one({"_id": 1})
        pipeline.run()
        assert pipeline.replayed(coll) == contents(coll)
        coordinated(cluster, db, {"_shardsvrDropDatabase": 1})
        given = {"uri": pipeline.options.uri, "collections": pipeline.options.collections}
        assert (
            inquiry.preflight(declared.parse({**given, "shards.direct": "true"}), is_new=False)
            == []
        )
        pipeline = capture_again(pipeline, mode)
        pipeline.run()
        assert pipeline.replayed(coll) == {}
    assert pipeline.namespaces_copied == []


def begun(pipeline: Capture) -> dict[str, Any]:
    return source.ChangeReader(pipeline.options, StructType()).initialOffset()


def capture_again(pipeline: Capture, mode: str) -> Capture:
    """Another process, which need not be given that option."""
    return pipeline.restarted(pipeline.options.collections, mode=mode, shards_direct="true")


@pytest.mark.parametrize("mode", ["initial", "latest"])
def test_no_change_of_a_collection_that_replaces_another_is_missing(
    cluster: Cluster, db: str, mode: str
) -> None:
    """Guards: each shard renames its part at a time of its own."""
    for coll, first in (("o", 0), ("p", 100)):
        cluster.shard_collection(db, coll, {"k": 1})
        cluster.move(db, coll, {"k": LOWEST}, "s2", {"k": first + 5})
        for k in range(first, first + 10):
            shard = "s2" if k < first + 5 else "s1"
            cluster.run(shard, db, {"insert": coll, "documents": [{"_id": k, "k": k}]})
    pipeline = capture(cluster, f"{db}.o", mode=mode)
    pipeline.run()
    renaming = {"_shardsvrRenameCollection": "p", "to": f"{db}.o", "dropTarget": True}
    coordinated(cluster, db, renaming)
    for k, shard in ((100, "s2"), (105, "s1"), (100, "s2")):
        update = {"q": {"k": k}, "u": {"$inc": {"n": 1}}}
        cluster.run(shard, db, {"update": "o", "updates": [update]})
    pipeline.run()
    assert [key for batch in pipeline.batches for key in batch.ids("update")] == [100, 105, 100]
    if mode == "initial":
        held = {
            bytes(document)
            for document in pipeline.replayed(cluster.clients["s1"][db]["o"]).values()
        }
        assert held == set(cluster.contents(db, "o"))
    else:
        assert not pipeline.namespaces_copied


def test_a_shard_refuses_to_clone_a_collection_as_capped(cluster: Cluster, db: str) -> None:
    """Guards: of its inserts, which look like those of a migration, no shard has to report."""
    cluster.clients["s1"][db]["plain"].insert_one({"_id": 1})
    command = {"cloneCollectionAsCapped": "plain", "toCollection": "capped", "size": 2**20}
    with pytest.raises(OperationFailure, match="sharded cluster"):
        cluster.clients["s1"][db].command(command)


def test_a_batch_that_copies_and_is_reported_by_one_shard_is_not_planned_again(
    cluster: Cluster, db: str
) -> None:
    """Guards: where nothing is new, the end of the last batch stays what it is, word for word."""
    cluster.fill(db, "o")
    pipeline = capture(cluster, f"{db}.o", documents_per_split=1000)
    index_on(cluster, db, "o", "s1", "s2")
    batch = pipeline.batch()
    if reported_by(cluster, ("createIndexes", "o")):
        assert batch.end.scans
        assert batch.end.silent == ("s2",)
    assert assign_reporters(pipeline.source, batch.end, batch.end, []) == batch.end
    pipeline.run()
    assert len(pipeline.rows) == 100 + len(reported_by(cluster, ("createIndexes", "o")))


@pytest.mark.slow
def test_with_on_replaced_fail_a_collection_resharded_in_the_midst_of_its_copy_ends_the_run(
    cluster: Cluster, db: str
) -> None:
    """Guards: no event reports it; a copy that is complete is not harmed by it."""
    cluster.fill(db, "o")
    done, half = (capture(cluster, f"{db}.o", on_replaced="fail") for _ in range(2))
    done.run()
    cluster.run("s1", db, {"insert": "o", "documents": [{"_id": -1, "k": -1}]})
    done.run()
    half.batch()
    cluster.reshard(db, "o", {"_id": 1})
    with pytest.raises(ContentReplaced, match=rf"{db}\.o was replaced .*resharded"):
        half.run()
    done.run()
    again = half.restarted(f"{db}.o", shards_direct="true")
    again.run()
    assert len(again.replayed(cluster.clients["s1"][db]["o"])) == 101


def test_with_on_replaced_fail_a_drop_that_one_shard_reports_first_is_no_reason_to_end(
    cluster: Cluster, db: str
) -> None:
    """Guards: until the primary shard reports, it could be a collection that has moved."""
    cluster.shard_collection(db, "o", {"k": 1})
    cluster.move(db, "o", {"k": LOWEST}, "s2", {"k": 5})
    pipeline = capture(cluster, f"{db}.o", on_replaced="fail")
    pipeline.run()
    cluster.drop_collection(db, "o")
    pipeline.run()
    assert ddl(pipeline) == [("drop", "o")]


def test_a_description_names_the_incarnation_and_what_was_done(cluster: Cluster, db: str) -> None:
    pipeline = capture(cluster, f"{db}.o", mode="latest")
    cluster.shard_collection(db, "o", {"k": "hashed"})
    pipeline.run()
    cluster.drop_collection(db, "o")
    pipeline.run()
    described = {row.op: json.loads(row.description or "") for row in pipeline.rows}
    assert {op: reported["ns"] for op, reported in described.items()}["drop"] == {
        "db": db,
        "coll": "o",
    }
    if reported_by(cluster, ("shardCollection", "o")):
        sharded = described["shardCollection"]
        assert sharded["operationDescription"] == {"shardKey": {"k": "hashed"}}
        assert sharded["collectionUUID"] == described["drop"]["collectionUUID"]
