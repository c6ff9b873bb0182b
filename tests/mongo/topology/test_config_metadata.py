"""Questions to a cluster's metadata, whatever becomes of the way there meanwhile."""

from __future__ import annotations

from pathlib import Path

from cdc.demo import ReplicaSet
from cdc.mongo.connection import Client, connect
from cdc.mongo.topology import discover
from cdc.mongo.topology.config_metadata import Metadata
from tests.mongo.capture import TIMEOUT_MS


class Replaced(Metadata):
    """The file that `uri` names is replaced by another one whenever it is going to be read."""

    @property
    def client(self) -> Client:
        file = Path(self.uri.removeprefix("file:"))
        before, _, count = file.read_text().partition("&maxPoolSize=")
        file.write_text(f"{before}&maxPoolSize={int(count or 50) + 1}")
        return connect(self.uri, self.timeout_ms)


def test_a_connection_string_that_is_replaced_between_two_steps_of_a_question_ends_none(
    mongod: ReplicaSet, tmp_path: Path
) -> None:
    """Guards: a session of one client that is handed to another, which is no passing error. A
    replica set answers for the config servers, which are one."""
    file = tmp_path / "uri"
    file.write_text(mongod.uri)
    part = discover(mongod.uri, TIMEOUT_MS)
    metadata = Replaced(f"file:{file}", TIMEOUT_MS, {"s1": part})
    assert metadata.client is not metadata.client
    assert metadata.find("chunks", {}) == []
    now = part.live_edge(part.primary().newest_known())
    assert not metadata.read_at(now, "chunks", [])
    assert metadata.read_at_or_newest(now, "chunks", []) == []


def test_metadata_as_of_a_time_has_more_entries_than_a_first_reply_has_by_default(
    mongod: ReplicaSet,
) -> None:
    """Guards: of the owners of a collection on many shards, 101 were known."""
    part = discover(mongod.uri, TIMEOUT_MS)
    entries = part.client["config"]["of_a_test"]
    try:
        entries.insert_many([{"_id": number} for number in range(150)])
        now = part.live_edge(part.primary().newest_known())
        metadata = Metadata(mongod.uri, TIMEOUT_MS, {"s1": part})
        assert len(metadata.read_at(now, "of_a_test", []) or []) == 150
    finally:
        entries.drop()
