"""What the server of this run can do, found by asking it: `make test-matrix` runs several versions.

A test of something that a server does not have states what is documented instead.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from bson import Binary
from pymongo import MongoClient
from pymongo.errors import OperationFailure

Client = MongoClient[dict[str, Any]]


@dataclass(frozen=True)
class Abilities:
    """Before-images since 4.4, reads at a cluster time since 5.0, after-images since 6.0, and since
    then a find names the incarnation that it means by `collectionUUID`, and all DDL is reported.
    Events of more than 16 MiB come in fragments since 6.0.9."""

    before_images: bool
    after_images: bool
    reads_at_a_time: bool
    names_the_incarnation: bool
    reports_all_ddl: bool
    splits_events: bool

    def exact(self, op: str) -> bool:
        """Whether an event's row of this kind is exact, in a collection that records images."""
        if op == "update":
            return self.after_images
        return self.before_images or op not in ("replace", "delete")

    @property
    def recording(self) -> dict[str, Any]:
        """The options of a collection that records what images the server can record."""
        if self.after_images:
            return {"changeStreamPreAndPostImages": {"enabled": True}}
        return {"recordPreImages": True} if self.before_images else {}


def abilities(client: Client) -> Abilities:
    """Asks by reads only, and once: all servers of a run are of one version."""
    if not _known:
        database = client["abilities"]
        now = client.admin.command("ping")["operationTime"]
        can = Abilities(
            before_images=takes(database, **_stream(fullDocumentBeforeChange="whenAvailable")),
            after_images=takes(database, **_stream(fullDocument="whenAvailable")),
            reads_at_a_time=takes(
                database, find="none", readConcern={"level": "snapshot", "atClusterTime": now}
            ),
            names_the_incarnation=takes(database, find="none", collectionUUID=Binary(bytes(16), 4)),
            reports_all_ddl=takes(database, **_stream(showExpandedEvents=True)),
            splits_events=takes(database, **_stream({"$changeStreamSplitLargeEvent": {}})),
        )
        _known.append(can)
    return _known[0]


_known: list[Abilities] = []


def abilities_of_shards(client: Client) -> Abilities:
    """`recordPreImages` is refused on a shard: there are both images, or none."""
    can = abilities(client)
    return replace(can, before_images=can.after_images)


def _stream(*stages: dict[str, Any], **options: Any) -> dict[str, Any]:
    return {"aggregate": 1, "pipeline": [{"$changeStream": options}, *stages], "cursor": {}}


def takes(database: Any, **command: Any) -> bool:
    """Whether the server knows all that the command asks for."""
    try:
        database.command(command)
    except OperationFailure as error:
        if error.code == 361:  # it is not that incarnation
            return True
        # Unknown field (and in 4.2), unknown value (5.0, 4.2), snapshot outside of a transaction, a
        # field of another type, unknown stage.
        if error.code not in (40415, 9, 2, 40575, 72, 14, 40324):
            raise
        return False
    return True
