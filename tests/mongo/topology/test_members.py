"""The members that the user's read preference admits are read, and each batch is as of its time."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import bson
import pytest
from pymongo import ReplaceOne
from pymongo.database import Database
from pymongo.server_description import ServerDescription
from pymongo.write_concern import WriteConcern

from cdc import options as declared
from cdc import source
from cdc.demo import ReplicaSet
from cdc.demo.mongod import Member
from cdc.errors import SourceUnreachable, UnsuitableSource
from cdc.model import Change, SnapshotSplit, StreamSplit
from cdc.mongo.connection import client, hello, members
from cdc.mongo.read import change_stream, range_scan
from cdc.tasks import task
from tests.mongo.abilities import abilities
from tests.mongo.capture import (
    Capture,
    Client,
    Contents,
    Document,
    asked,
    contents,
    failing,
    filled,
    id_of,
    replayed,
    until,
)


class Four:
    """A primary; a secondary tagged `use: cdc`; another one, untagged; and a hidden one that is an
    hour behind and has no vote. A majority is two of the first three."""

    def __init__(self, replica_set: ReplicaSet, client: Client) -> None:
        self.uri, self.client = replica_set.uri, client
        self.primary = replica_set.primary()
        self.tagged, self.other, self.hidden = (
            member for member in replica_set.members if member is not self.primary
        )
        config = client.admin.command("replSetGetConfig")["config"]
        config["version"] += 1
        # Else the other secondary may follow the one that a test has stopped.
        config["settings"]["chainingAllowed"] = False
        for member in config["members"]:
            if member["host"] == self.tagged.host:
                member["tags"] = {"use": "cdc", "dc": "east"}
            if member["host"] != self.primary.host:
                member["priority"] = 0  # one that was frozen would have itself elected
            if member["host"] == self.hidden.host:
                delay = "secondaryDelaySecs" if "secondaryDelaySecs" in member else "slaveDelay"
                member.update({"hidden": True, "votes": 0, delay: 3600})
        client.admin.command("replSetReconfig", config)
        self._numbers = itertools.count(1)

    def fresh(self) -> Database[Document]:
        """A database that no member has profiled yet. Its writes have reached a majority."""
        majority = WriteConcern("majority", wtimeout=20_000)
        return self.client.get_database(f"test{next(self._numbers)}", write_concern=majority)

    @property
    def members(self) -> dict[str, Member]:
        names = ("primary", "tagged", "other", "hidden")
        return {name: getattr(self, name) for name in names}

    @contextmanager
    def readers(self, name: str) -> Iterator[set[str]]:
        """Which members the connector's reads of that database go to meanwhile."""
        found: set[str] = set()
        with ExitStack() as stack:
            seen = {}
            for role, member in self.members.items():
                database = stack.enter_context(member.client())[name]
                seen[role] = stack.enter_context(asked(database))
            yield found
        found |= {role for role, operations in seen.items() if any(map(is_read, operations))}

    def in_use(self, name: str) -> Member:
        """The member on which a change stream of that database is open."""
        stages = [
            {"$currentOp": {"idleCursors": True, "allUsers": True}},
            {"$match": {"type": "idleCursor", "ns": f"{name}.$cmd.aggregate"}},
        ]
        for member in self.members.values():
            with member.client() as client:
                if list(client.admin.aggregate(stages)):
                    return member
        raise LookupError("no member has a change stream open")

    @contextmanager
    def stopped(self, member: Member) -> Iterator[Callable[[], None]]:
        """The member hears of the time but applies nothing, until the given function is called."""
        with member.client() as late:
            # Else it may still be within the point since the last test, and not enter it again.
            written = hello(self.client)["lastWrite"]["opTime"]["ts"]
            until(lambda: hello(late)["lastWrite"]["opTime"]["ts"] >= written)
            point = {"configureFailPoint": "rsSyncApplyStop"}
            entered = late.admin.command({**point, "mode": "alwaysOn"})["count"] + 1
            wait = {"waitForFailPoint": "rsSyncApplyStop", "timesEntered": entered}
            late.admin.command({**wait, "maxTimeMS": 20_000})
            try:
                yield lambda: late.admin.command({**point, "mode": "off"})
            finally:
                late.admin.command({**point, "mode": "off"})


def is_read(operation: dict[str, Any]) -> bool:
    """Whether it is a split's own read, and not one of the planner's questions to the primary."""
    command = operation["command"]
    stages = command.get("pipeline", [])
    at = command.get("readConcern", {}).get("level") in ("snapshot", "majority")
    return ("find" in command and at) or any("$changeStream" in stage for stage in stages)


@pytest.fixture(scope="module")
def four() -> Iterator[Four]:
    with (
        ReplicaSet(members=4, set_parameters={"enableTestCommands": True}) as replica_set,
        replica_set.client() as client,
    ):
        yield Four(replica_set, client)


CDC = "readPreferenceTags=use:cdc"
PREFERENCES = {
    "readPreference=primary": {"primary"},
    "readPreference=primaryPreferred": {"primary"},
    "readPreference=secondary": {"tagged", "other"},
    "readPreference=secondaryPreferred": {"tagged", "other"},
    "readPreference=nearest&localThresholdMS=1000": {"primary", "tagged", "other"},
    f"readPreference=secondary&{CDC}": {"tagged"},
    f"readPreference=nearest&readPreferenceTags=use:cdc,dc:west&{CDC}": {"tagged"},
    "readPreference=secondaryPreferred&readPreferenceTags=use:none": {"primary"},
    "readPreference=secondary&readPreferenceTags=use:none&readPreferenceTags=": {"tagged", "other"},
}


@pytest.mark.parametrize("preference", PREFERENCES)
def test_every_batch_is_as_of_its_time_and_read_from_the_members_that_the_uri_admits(
    four: Four, preference: str
) -> None:
    """Guards: the invariant whatever member serves a split; a hidden or delayed one never does."""
    can, chance = abilities(four.client), random.Random(3)
    database = four.fresh()
    coll = filled(database, "a", range(0, 120, 2))
    quick = coll.with_options(write_concern=WriteConcern(1))

    def write() -> None:
        for _ in range(15):
            key = chance.randrange(120)
            act = chance.choice([quick.delete_one, upserted, upserted, replaced])
            act({"_id": key})

    def upserted(key: Any) -> None:
        quick.update_one(key, {"$inc": {"n": 1}}, upsert=True)

    def replaced(key: Any) -> None:
        quick.replace_one(key, {"new": 1}, upsert=True)

    pipeline = Capture(f"{four.uri}&{preference}", f"{database.name}.a", splits_per_batch=3)
    with four.readers(database.name) as readers:
        streamed = 0
        while streamed < 3:
            write()
            end = pipeline.plan()
            # An image that is looked up would be of a later time.
            pipeline.read(end, meanwhile=write if can.after_images else lambda: None)
            at = contents(coll, end.time if can.reads_at_a_time else None)
            below = bson.decode(end.copying.below)["_id"] if end.copying else 10**9
            assert pipeline.replayed(coll) == up_to(at, below)
            streamed += end.is_streaming
    reported = [(row.position, row.key) for row in pipeline.rows]
    assert len(set(reported)) == len(reported), "a row was emitted twice"
    assert readers
    assert readers <= PREFERENCES[preference]


def up_to(held: Contents, key: int) -> Contents:
    return {k: document for k, document in held.items() if bson.decode(document)["_id"] < key}


@pytest.mark.parametrize("rewound", [False, True])
def test_a_batch_on_a_member_that_lags_waits_for_it_and_is_as_of_its_time(
    four: Four, rewound: bool
) -> None:
    """Guards: what the member had before T is not taken for T: atClusterTime, afterClusterTime, and
    slices that end only where their own cursor has passed T. The primary is not asked instead."""
    database = four.fresh()
    coll = filled(database, "a", range(40))
    name = f"{database.name}.a"
    planned = Capture(four.uri, name, documents_per_split=20, splits_per_batch=1)
    planned.batch()
    late = Capture(f"{four.uri}&readPreference=secondary&{CDC}", name)
    found: list[list[Change]] = []
    with four.stopped(four.tagged) as released, ExitStack() as faults:
        coll.bulk_write([ReplaceOne({"_id": n}, {"n": 1}) for n in range(40)])
        coll.delete_many({"_id": {"$in": [3, 33]}})
        coll.insert_many([{"_id": 3.5}, {"_id": 33.5}])
        end = planned.plan()
        splits = planned.planner.splits(planned.offset, end, control=False)
        if rewound:
            member = faults.enter_context(four.tagged.client())
            faults.enter_context(
                failing(member, {"times": 1}, failCommands=["find"], errorCode=239)
            )
        with four.readers(database.name) as readers:
            reading = [
                threading.Thread(target=lambda split=split: found.append(late.rows_of(split)))
                for split in splits
            ]
            for thread in reading:
                thread.start()
            time.sleep(1)
            assert all(thread.is_alive() for thread in reading), "read before the member had it"
            released()
            for thread in reading:
                thread.join(20)
    assert len(found) == len(splits) == 2
    assert readers == {"tagged"}
    rows = [*planned.rows, *itertools.chain(*found)]
    assert replayed(rows, database.name, "a") == contents(coll)
    assert sorted(row.op for row in rows) == ["delete", "insert", *["read"] * 40, *["replace"] * 20]


def test_a_member_that_stands_still_in_mid_slice_is_replaced_by_another(
    four: Four, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards: a frozen process keeps its connections open and answers no more."""
    monkeypatch.setattr(change_stream, "_BATCH", 7)
    database = four.fresh()
    coll = filled(database, "a", [])
    quick = "heartbeatFrequencyMS=500&localThresholdMS=1000&serverMonitoringMode=poll"
    uri = f"{four.uri}&readPreference=secondary&{quick}"
    pipeline = Capture(
        uri, f"{database.name}.a", mode="latest", read_by="change_stream", server_timeout_ms="1000"
    )
    coll.insert_many([{"_id": n} for n in range(60)])
    [split] = pipeline.planner.splits(pipeline.offset, pipeline.plan(), control=False)
    frozen: list[Member] = []
    ids = []
    try:
        for row in task.read_split(split, pipeline.options, True):
            ids.append(id_of(row))
            if len(ids) == 14:
                frozen.append(four.in_use(database.name))
                frozen[0].freeze()
    finally:
        for member in frozen:
            member.thaw()
    assert ids == list(range(60))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [SnapshotSplit, StreamSplit])
@pytest.mark.parametrize("preference", ["secondary", f"secondaryPreferred&{CDC}"])
def test_a_member_that_stands_still_before_a_read_is_replaced_by_another(
    four: Four,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    kind: type[SnapshotSplit | StreamSplit],
    preference: str,
) -> None:
    """Guards: one that answers, but is cut off from the others, would be waited for without end, or
    be selected again by each attempt: as the nearest, or as the only secondary."""
    monkeypatch.setattr(range_scan, "CONFIRM_MS", 200)
    monkeypatch.setattr(members, "_STALL_SECONDS", 0.5)
    monkeypatch.setattr(client, "_avoided_since", {})
    database = four.fresh()
    coll = filled(database, "a", range(80))
    uri = f"{four.uri}&readPreference={preference}&localThresholdMS=100000"
    name = f"{database.name}.a"
    planned = Capture(four.uri, name, splits_per_batch=8)
    if kind is StreamSplit:
        planned.run()
    late = Capture(uri, name, read_by="change_stream")
    with four.stopped(four.tagged):
        coll.update_many({}, {"$inc": {"n": 1}})
        end = planned.plan()
        planned_splits = planned.planner.splits(planned.offset, end, control=False)
        splits = [split for split in planned_splits if isinstance(split, kind)]
        # Each read selects a member at random until one has met the stopped member.
        reads = [late.rows_of(split) for _ in range(30 // len(splits)) for split in splits]
    warnings = [record for record in caplog.records if "trying again" in record.message]
    assert len(warnings) == 1, "the member is selected again after it was found to stand still"
    rows = [*planned.rows, *itertools.chain(*reads[-len(splits) :])]
    assert replayed(rows, database.name, "a") == contents(coll)


def test_a_member_is_avoided_whatever_the_case_of_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Guards: a member names itself as its configuration does, and the driver in lower case."""
    monkeypatch.setattr(client, "_avoided_since", {})
    one, other = ServerDescription(("db1.corp", 27017)), ServerDescription(("::1", 27017))
    assert client._omit_avoided([one, other]) == [one, other]
    client.avoid("DB1.Corp:27017")
    assert client._omit_avoided([one, other]) == [other]
    client.avoid("[::1]:27017")
    assert client._omit_avoided([one, other]) == [one, other], "the last one"


def test_a_preference_that_no_member_satisfies_is_an_error_that_names_the_remedy(
    four: Four,
) -> None:
    """Guards: it neither hangs nor asks to look at the network."""
    database = four.fresh()
    filled(database, "a", [1])
    for preference, named in {
        "readPreference=secondary&readPreferenceTags=use:none": "use",
        "readPreference=nearest&readPreferenceTags=use:none,dc:east": "nearest",
    }.items():
        began = time.monotonic()
        with pytest.raises(
            SourceUnreachable, match=f"satisfies the read preference.*{named}"
        ) as raised:
            Capture(f"{four.uri}&{preference}", f"{database.name}.a", server_timeout_ms="500")
        assert "readPreferenceTags" in str(raised.value.remedy)
        assert raised.value.exit_code == 3
        assert time.monotonic() - began < 3


def test_a_primary_alone_is_read_and_a_secondary_alone_refused_where_a_copy_would_begin(
    four: Four,
) -> None:
    """Guards: what a secondary lists may be rolled back. The remedy is a read preference."""
    database = four.fresh()
    filled(database, "a", [1])
    uri = f"mongodb://{four.tagged.host}/?directConnection=true"
    options = declared.parse({"uri": uri, "collections": f"{database.name}.a"})
    with four.tagged.client() as tagged:
        until(tagged[database.name].list_collection_names)
    with pytest.raises(UnsuitableSource, match="not, or did not remain, the primary") as raised:
        source.ChangeReader(options, None).initialOffset()  # type: ignore[arg-type]
    assert "readPreference" in str(raised.value.remedy)
    primary = Capture(uri.replace(four.tagged.host, four.primary.host), f"{database.name}.a")
    assert primary.batch().ids("read") == [1]


@pytest.mark.slow
def test_without_the_member_that_is_asked_for_a_run_ends_and_goes_on_when_it_is_back(
    four: Four,
) -> None:
    """Guards: retry.seconds bounds the wait; no other member is read instead."""
    database = four.fresh()
    coll = filled(database, "a", range(40))
    settings = {"server_timeout_ms": "500", "retry_seconds": "1"}
    uri = f"{four.uri}&readPreference=secondary&{CDC}&heartbeatFrequencyMS=500"
    pipeline = Capture(uri, f"{database.name}.a", **settings)
    pipeline.batch()
    end = pipeline.plan()
    four.tagged.kill()
    began = time.monotonic()
    with pytest.raises(SourceUnreachable, match="satisfies the read preference"):
        pipeline.read(end)
    assert time.monotonic() - began < 8
    four.tagged.start()
    until(four.tagged.is_data_bearing)
    coll.update_many({}, {"$inc": {"n": 1}})
    pipeline.run()
    assert pipeline.replayed(coll) == contents(coll)
