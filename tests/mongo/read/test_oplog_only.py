"""`read.by = oplog`: changes are read from the oplog, or the run ends and says why."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from bson.timestamp import Timestamp
from pymongo.database import Database

from cdc.demo import ReplicaSet
from cdc.errors import OplogDiffers, OplogUnsuitable, TransientError
from cdc.mongo.connection import OPLOG, member
from cdc.mongo.read import IMAGES, ReadMethod, oplog
from cdc.source import preflight
from tests.mongo.capture import TIMEOUT_MS, Document, contents, failing, filled, last_write
from tests.mongo.read.test_oplog import CASES, Begin, require_same, slice_of
from tests.mongo.read.test_oplog import encoder as encoder_fixture
from tests.mongo.read.test_oplog import methods as methods_fixture
from tests.mongo.read.test_oplog_check import break_part

encoder, methods = encoder_fixture, methods_fixture


@pytest.mark.parametrize("case", CASES)
def test_a_slice_that_the_oplog_does_not_have_ends_the_run_with_the_reason(
    capture: Begin, database: Database[Document], methods: list[str], case: str
) -> None:
    change, reason = CASES[case]
    coll = filled(database, "a", range(5), images=case != "no pre-images")
    settings = {"mode": "latest", "missing_collections": "wait"}
    pipeline = capture("a", "b", read_by="oplog", **settings)
    change(coll)
    with pytest.raises(OplogUnsuitable, match=rf"from the oplog: {reason}\.") as raised:
        pipeline.run()
    assert "read.by to auto" in (raised.value.remedy or "")
    assert "change stream" not in methods


def test_a_slice_that_the_oplog_never_has_ends_the_run_too(
    capture: Begin, database: Database[Document], methods: list[str]
) -> None:
    coll = filled(database, "a", range(60))
    pipeline = capture("a", mode="latest", read_by="oplog", images="off")
    coll.insert_one({"_id": 70, "n": 0})
    with pytest.raises(OplogUnsuitable, match="'images' asks for none"):
        pipeline.run()
    assert "change stream" not in methods


def test_a_copy_of_several_batches_needs_no_change_stream(
    capture: Begin, database: Database[Document], methods: list[str]
) -> None:
    coll = filled(database, "a", range(60))
    pipeline = capture("a", read_by="oplog", filter='{"n": {"$ne": 2}}', fields="n")
    while not pipeline.offset.is_streaming:
        pipeline.batch()
        coll.update_many({"_id": {"$lt": 30}}, {"$inc": {"n": 1}})
    pipeline.run()
    assert set(methods) == {"oplog"}
    found = contents(coll, filter={"n": {"$ne": 2}}, projection={"n": 1})
    assert pipeline.replayed(coll) == found


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"images": "off"}, "'images' asks for none"),
        ({"is_recorded": False}, r"no images are recorded for .*\.a\."),
        ({"fields": "n"}, None),
    ],
    ids=str,
)
def test_the_start_of_a_run_fails_if_no_slice_can_be_read_from_the_oplog(
    capture: Begin, database: Database[Document], settings: dict[str, Any], reason: str | None
) -> None:
    given = dict(settings)
    filled(database, "a", range(3), images=given.pop("is_recorded", True))
    options = capture("a", read_by="oplog", **given).options
    if reason is None:
        assert len(preflight(options)) == 1
        return
    with pytest.raises(OplogUnsuitable, match=reason):
        preflight(options)


def test_changes_are_read_from_the_oplog_again_after_a_transient_error_and_come_once(
    capture: Begin,
    database: Database[Document],
    encoder: str,
    methods: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(oplog, "_BATCH", 7)
    coll = filled(database, "a", range(60))
    pipeline = capture("a", mode="latest", read_by="oplog")
    by_stream = capture("a", mode="latest", read_by="change_stream")
    coll.update_many({}, {"$inc": {"n": 1}})
    end = pipeline.plan()
    # Not of the pre-images: some rows are emitted before the first error.
    cursor_not_found = {"failCommands": ["getMore"], "errorCode": 43, "namespace": str(OPLOG)}
    with failing(database.client, {"times": 2}, **cursor_not_found):
        pipeline.read(end)
    assert methods == ["oplog"] * 3
    assert len(require_same(pipeline, by_stream)) == 60


@pytest.mark.parametrize("on_difference", ["fail", "change_stream"])
def test_a_difference_from_the_change_stream_ends_the_run_too(
    capture: Begin,
    database: Database[Document],
    monkeypatch: pytest.MonkeyPatch,
    on_difference: str,
) -> None:
    coll = filled(database, "a", range(3))
    settings = {"oplog_verify": "1", "oplog_on_difference": on_difference}
    pipeline = capture("a", mode="latest", read_by="oplog", **settings)
    coll.update_many({}, {"$inc": {"n": 1}})
    break_part(monkeypatch, 0, lambda events: events[1:])
    expected = OplogDiffers if on_difference == "fail" else OplogUnsuitable
    with pytest.raises(expected, match=r"differ"):
        pipeline.run()


def test_a_member_that_lags_is_asked_again_until_it_has_the_changes(
    mongod: ReplicaSet, database: Database[Document], methods: list[str]
) -> None:
    coll = filled(database, "a", range(3))
    after = last_write(database.client)
    split = slice_of(coll, after, Timestamp(after.time + 3600, 1))
    opener = partial(member, mongod.uri, TIMEOUT_MS)
    with pytest.raises(TransientError, match="a member that lags"):
        list(oplog.read(opener, split, IMAGES["auto"], 0.5, ReadMethod("oplog")))
    assert set(methods) == {"oplog"}
    assert len(methods) > 1
