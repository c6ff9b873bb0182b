"""Metadata of a cluster that is read through a router: shards that join or leave, and shard keys.

A user may lack the privileges for it. Then nothing of this is recognised, documents are known by
their `_id` alone, and mirrors are refused.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import pymongo.errors
from bson.timestamp import Timestamp

from cdc.errors import HistoryLost, NotPermitted, UnsuitableSource
from cdc.model import NEVER, Namespace, Offset, Selection, ShardKey
from cdc.mongo.connection import RouterMember, translate_error

_log = logging.getLogger(__name__)
_READ_MS = 10_000
_BATCH = 10_000


def find_metadata(
    member: RouterMember,
    coll: str,
    after: Timestamp = NEVER,
    names: Sequence[str] | None = None,
) -> list[Any] | None:
    """Return the entries of `config.<coll>`; None if the user may not read them.

    They are from a moment after `after`, and after everything that the router has shown. `names`
    are those of the entries to return; None for all. Raises the driver's errors.
    """
    concern = {"level": "majority", "afterClusterTime": max(after, member.newest_known())}
    find: dict[str, Any] = {"find": coll, "batchSize": _BATCH, "maxTimeMS": _READ_MS}
    if names is not None:
        find["filter"] = {"_id": {"$in": names}}
    try:
        cursor = member.command("config", {**find, "readConcern": concern})["cursor"]
    except pymongo.errors.OperationFailure as error:
        if not isinstance(translate_error(error, "Reading metadata"), NotPermitted):
            raise
        return None
    entries = list(cursor["firstBatch"])
    while cursor["id"]:  # a reply has 16 MiB at most
        more = {"getMore": cursor["id"], "collection": coll, "batchSize": _BATCH}
        cursor = member.command("config", more)["cursor"]
        entries += cursor["nextBatch"]
    return entries


@dataclass(frozen=True, slots=True)
class KnownShards:
    """The shards of a cluster.

    Attributes:
        names: their names; empty if the user may not read them.
        changed_at: when a shard last joined or left.
        left_at: the same, but without the shards that joined while this process ran. So a shard may
            have left at that time.
    """

    names: frozenset[str] = frozenset()
    changed_at: Timestamp = NEVER
    left_at: Timestamp = NEVER

    def renewed(self, entries: list[Any] | None) -> Self:
        """Return the shards of these entries of `config.shards`; itself if they are None."""
        if entries is None:
            return self
        names = frozenset(entry["_id"] for entry in entries)
        # A shard that leaves is noted in the entry of another one.
        changed_at = max((entry.get("topologyTime", NEVER) for entry in entries), default=NEVER)
        has_only_joined = bool(self.names) and self.names < names
        if has_only_joined:
            _log.warning(
                "shards that joined: %s; collections that they brought are not copied",
                ", ".join(sorted(names - self.names)),
            )
        is_same = (names, changed_at) == (self.names, self.changed_at)
        left_at = self.left_at if is_same or has_only_joined else changed_at
        return type(self)(names, changed_at, left_at)

    def require_all_read(self, offset: Offset) -> None:
        """Raise HistoryLost if a shard may have left since the offset.

        A router returns nothing of a shard that has left, not even its changes before that.
        """
        if offset.topology_time < self.left_at:
            raise HistoryLost(
                "A shard left the cluster since the checkpoint, or joined it while nothing ran: a"
                " router does not return the changes of a shard that has left.",
                "Set on.history.lost to resync (copy everything again), or to skip if no shard left"
                " or the one that left had no changes since.",
            )


UNKNOWN: Final = KnownShards()


def require_shard_keys(entries: list[Any] | None) -> None:
    """Raise UnsuitableSource if these entries of `config.collections` could not be read: None."""
    if entries is None:
        raise UnsuitableSource(
            "Mirrors and histories through a router need the shard keys, which the user may not"
            " read.",
            "Grant find on config.collections, set shards.direct, or write only changelogs.",
        )


def find_shard_keys(
    entries: list[Any] | None, selection: Selection
) -> Mapping[Namespace, ShardKey] | None:
    """Return the shard keys in these entries of `config.collections`, see `Source.shard_keys`."""
    if entries is None:
        return None
    found = dict[Namespace, ShardKey]()
    for entry in entries:
        name = Namespace.parse(entry["_id"])
        uuid, since = bytes(entry["uuid"]), entry.get("timestamp", NEVER)
        if selection.matches(name):
            found[name] = ShardKey(tuple(entry["key"]), uuid, since)
    return found
