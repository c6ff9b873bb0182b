"""Collections that get another shard key: they are sharded, refined or resharded.

Through a router the column `key` contains the shard key, see `cdc.model.whole_key`. With another
one each document has another `key`. So one batch ends at the time of the new shard key, because its
changes have the former document keys. After the next batch, which has the new ones, the collection
is copied again, like one whose content was replaced.

Routers of MongoDB 6.0 report neither refining nor resharding. So the planner compares the shard
keys of now with those that the offset records. A shard key may become visible after its own time,
and a batch may have ended in between. So a shard key is new if it is not recorded, however old it
is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import pymongo.errors
from bson.timestamp import Timestamp

from cdc.model import Namespace, Offset, Selection, ShardKey, shard_keys_hidden
from cdc.mongo.connection import SNAPSHOT_REFUSED, TIME_UNREADABLE, Member, translate_error
from cdc.mongo.topology import Source


@dataclass(frozen=True, slots=True)
class KeyChanges:
    """The shard keys of now beside those that an offset records.

    Attributes:
        start: the offset at the start of a batch.
        keys: the shard keys of the sharded collections; None if the source has none to compare.
        new: those of them that `start` does not record, of collections with rows.
    """

    start: Offset
    keys: Mapping[Namespace, ShardKey] | None
    new: Mapping[Namespace, ShardKey]

    @property
    def begun(self) -> frozenset[Namespace]:
        """The collections with a new shard key whose copy has begun, and may have other keys."""
        copied = {scan.copying.namespace for scan in self.start.scans}
        copied |= {self.start.copying.namespace} if self.start.copying else set()
        return frozenset(copied) & self.new.keys()

    def latest_end(self, end: Timestamp, void: frozenset[Namespace]) -> Timestamp:
        """Return the latest possible end of the batch: `end`, or the time of a new shard key.

        Collections that are copied again in any case do not count. `void` are some of them.
        """
        copied = void.union(each.namespace for each in self.start.again)
        times = [key.since for name, key in self.new.items() if name not in copied]
        return min([end, *(time for time in times if time > self.start.time)])

    def changed_before(self, end: Offset) -> list[Namespace]:
        """Return the collections that got another shard key before the end of the batch, sorted."""
        return sorted(name for name, key in self.new.items() if key.since < end.time)

    def record(self, end: Offset) -> Offset:
        """Return the end of the batch with the shard keys that its collections had before it."""
        if self.keys is None:
            return end
        recorded = dict(self.start.shard_keys or ())
        for name, key in self.keys.items():
            if key.since < end.time and end.has_reached(name):
                recorded[name] = key.others
        present = sorted(name for name, fields in recorded.items() if fields and name in self.keys)
        return replace(end, shard_keys=tuple((name, recorded[name]) for name in present))


def compare_keys(
    source: Source, selection: Selection, start: Offset, edge: Timestamp
) -> KeyChanges:
    """Compare the shard keys of now with those at the start of a batch.

    Args:
        source: the source.
        selection: the configured selection; `start` contains the one that applied up to it. What is
            no longer selected is not compared.
        start: the offset at the start of the batch.
        edge: a live edge.

    Raises UnsuitableSource if the user may no longer read the shard keys that rows contain.
    """
    before = Selection.parse(start.selection)
    both = selection if before == selection else before.union(selection)
    keys = source.shard_keys(both, edge)
    if keys is None:
        if start.shard_keys:
            raise shard_keys_hidden()
        return KeyChanges(start, None, {})
    # A collection that is not recorded was known by its `_id`.
    recorded = dict(start.shard_keys or ())
    new = {
        name: key
        for name, key in keys.items()
        if recorded.get(name, ()) != key.others
        and start.has_reached(name)
        and before.matches(name)
        and selection.matches(name)
    }
    return KeyChanges(start, keys, new)


def record_first(source: Source, first: Offset) -> Offset:
    """Return the first offset of a run with the shard keys of its time."""
    keys = source.shard_keys(Selection.parse(first.selection), first.time)
    return KeyChanges(first, keys, {}).record(first)


def had_documents(
    open_member: Callable[[str], Member], name: Namespace, at: Timestamp
) -> bool | None:
    """Whether a collection had documents at a time; None if that cannot be known any more.

    Without documents, it has no rows with another `key` that would have to be replaced. Raises
    TransientError, and other errors of the server.
    """
    concern = {"level": "snapshot", "atClusterTime": at}
    find = {"find": name.coll, "limit": 1, "singleBatch": True, "projection": {"_id": 1}}
    try:
        member = open_member("")
        try:
            reply = member.command(name.db, {**find, "readConcern": concern})
        finally:
            member.end()
    except pymongo.errors.PyMongoError as error:
        # The time is too old, or resharding made another incarnation since.
        if getattr(error, "code", None) in {*TIME_UNREADABLE, SNAPSHOT_REFUSED}:
            return None
        raise translate_error(error, f"Reading {name}") from error
    return bool(list(reply["cursor"]["firstBatch"]))
