"""What reading asks of a source, by whatever kind it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pymongo.database import Database
from pymongo.monitoring import CommandListener, CommandStartedEvent

from cdc.demo import ReplicaSet
from cdc.model import SnapshotSplit, Split, StreamSplit
from cdc.mongo.connection import Pace, client
from cdc.mongo.topology import discover, reopen
from tests.mongo.capture import Capture, Document, filled
from tests.mongo.cluster import Cluster

Begin = Callable[..., Capture]


class Commands(CommandListener):
    """The names of the commands that are sent."""

    def __init__(self) -> None:
        self.names = list[str]()

    def started(self, event: CommandStartedEvent) -> None:
        self.names.append(event.command_name)

    def succeeded(self, event: Any) -> None: ...
    def failed(self, event: Any) -> None: ...


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The commands of clients that the test makes."""
    settings, listener = client._settings, Commands()
    monkeypatch.setattr(
        client, "_settings", lambda ms: {**settings(ms), "event_listeners": [listener]}
    )
    return listener.names


def test_a_task_asks_a_replica_set_for_a_member_and_then_only_for_the_data_of_its_split(
    mongod: ReplicaSet, database: Database[Document], capture: Begin, sent: list[str]
) -> None:
    """Guards: a discovery of the source for each split would be two round trips more."""
    coll = filled(database, "a", range(5))
    uri = f"{mongod.uri}&maxPoolSize=78"
    pipeline = capture("a", uri=uri, read_by="change_stream", documents_per_split=None)
    copied = commands_of(pipeline, SnapshotSplit, sent)
    pipeline.batch()
    coll.update_many({}, {"$set": {"n": 1}})
    changed = commands_of(pipeline, StreamSplit, sent)
    assert [name for name in copied if name != "find"] == ["hello"]
    assert [name for name in changed if name != "getMore"] == ["hello", "aggregate", "killCursors"]


def commands_of(pipeline: Capture, kind: type[Split], sent: list[str]) -> list[str]:
    """The commands for reading the only split of that kind in the next batch, by a warm client."""
    end = pipeline.plan()
    (split,) = [s for s in pipeline.planner.splits(pipeline.offset, end, True) if type(s) is kind]
    list(pipeline.rows_of(split))
    sent.clear()
    assert len(list(pipeline.rows_of(split))) == 5
    return list(sent)


def test_a_source_that_is_opened_again_is_the_one_that_was_discovered(
    mongod: ReplicaSet, cluster: Cluster
) -> None:
    for uri, is_direct in ((mongod.uri, False), (cluster.config.uri, True)):
        found, again = discover(uri, 5000, is_direct), reopen(uri, 5000, is_direct)
        assert type(again) is type(found)
        assert again.shards == found.shards
        assert again.refresh() is again
        configured = again.configure("mine", Pace(10**6))
        assert configured.refresh() is configured


def test_a_configured_source_opens_members_with_its_comment(
    mongod: ReplicaSet, database: Database[Document]
) -> None:
    filled(database, "a", range(3))
    opened = reopen(mongod.uri, 5000, False).configure("mine", Pace(None)).open("")
    reply = opened.command(database.name, {"find": "a", "batchSize": 1})
    ours = {"cursor.cursorId": reply["cursor"]["id"]}
    stages: list[Document] = [{"$currentOp": {"idleCursors": True}}, {"$match": ours}]
    (found,) = database.client.admin.aggregate(stages)
    assert found["cursor"]["originatingCommand"]["comment"] == "mine"
    opened.kill_cursor(f"{database.name}.a", reply["cursor"]["id"])
    opened.end()
