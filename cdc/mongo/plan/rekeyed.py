"""Collections that get another shard key: they are sharded, refined or resharded.

Through a router the column `key` contains the shard key, see `cdc.model.whole_key`. With another
one each document has another `key`. So one batch ends at the time of the new shard key, because its
changes have the former document keys. After the next batch, which has the new ones, the collection
is copied again as of the end of that batch. So none of its changes is missing.

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

from cdc.errors import UnsuitableSource
from cdc.model import Namespace, Offset, Selection, ShardKey
from cdc.mongo.connection import Member, translate_error
from cdc.mongo.topology import Source


@dataclass(frozen=True, slots=True)
class Rekeyed:
    """The shard keys of now beside those that an offset records.

    Attributes:
        start: the offset at the start of a batch.
        keys: the shard keys of the sharded collections; None if the source has none to compare.
        new: the collections with a shard key that `start` does not record.
    """

    start: Offset
    keys: Mapping[Namespace, ShardKey] | None
    new: Mapping[Namespace, ShardKey]

    def limit(self, end: Timestamp) -> Timestamp:
        """Return the latest possible end of the batch: `end`, or the time of a new shard key.

        A collection that is copied again in any case does not count.
        """
        copied = self.void.union(each.namespace for each in self.start.again)
        times = [key.since for name, key in self.new.items() if name not in copied]
        return min([end, *(time for time in times if time > self.start.time)])

    @property
    def void(self) -> frozenset[Namespace]:
        """The collections of which the batch before may have copied a part with another key."""
        return frozenset(scan.copying.namespace for scan in self.start.scans) & self.new.keys()

    @property
    def may_copy_at_start(self) -> bool:
        """Whether the collections to be copied again have their shard keys since before `start`."""
        keys = self.keys or {}
        names = [each.namespace for each in self.start.again if each.namespace in keys]
        return all(keys[name].since < self.start.time for name in names)

    def before(self, end: Offset) -> list[Namespace]:
        """Return the collections that got another shard key before the end of the batch, sorted."""
        return sorted(name for name, key in self.new.items() if key.since < end.time)

    def record(self, end: Offset) -> Offset:
        """Return the end of the batch with the shard keys that its collections had before it."""
        if self.keys is None:
            return end
        recorded = dict(self.start.shard_keys or ())
        for name, key in self.keys.items():
            if key.since < end.time and end.has_reached(name):
                recorded[name] = key.since
                if not key.distinguishes:
                    del recorded[name]
        present = sorted(name for name in recorded if name in self.keys)
        return replace(end, shard_keys=tuple((name, recorded[name]) for name in present))


def compare_keys(source: Source, selection: Selection, start: Offset, edge: Timestamp) -> Rekeyed:
    """Compare the shard keys of now with those at the start of a batch.

    Args:
        source: the source.
        selection: the configured selection; `start` contains the one that applied up to it.
        start: the offset at the start of the batch.
        edge: a live edge.

    Raises UnsuitableSource if the user may no longer read the shard keys.
    """
    before = Selection.parse(start.selection)
    keys = source.shard_keys(before.union(selection), edge)
    if keys is None:
        if start.shard_keys is not None:
            raise UnsuitableSource(
                "The user may no longer read the shard keys, which the column key contains.",
                "Grant find on config.collections.",
            )
        return Rekeyed(start, None, {})
    recorded = dict(start.shard_keys or ())
    # A collection that is not recorded was known by its `_id`.
    new = {
        name: key
        for name, key in keys.items()
        if before.matches(name)
        and start.has_reached(name)
        and (recorded[name] != key.since if name in recorded else key.distinguishes)
    }
    return Rekeyed(start, keys, new)


def record_first(source: Source, first: Offset) -> Offset:
    """Return the first offset of a run with the shard keys of its time."""
    keys = source.shard_keys(Selection.parse(first.selection), first.time)
    return Rekeyed(first, keys, {}).record(first)


def had_documents(open_member: Callable[[str], Member], name: Namespace, at: Timestamp) -> bool:
    """Whether a collection had documents at a time, or may have had some.

    Without documents, it has no rows with another `key` that would have to be replaced.
    """
    member = open_member("")
    concern = {"level": "snapshot", "atClusterTime": at}
    find = {"find": name.coll, "limit": 1, "singleBatch": True, "projection": {"_id": 1}}
    try:
        reply = member.command(name.db, {**find, "readConcern": concern})
        return bool(list(reply["cursor"]["firstBatch"]))
    except pymongo.errors.OperationFailure:
        # The time is too old, or the incarnation that resharding made did not exist yet.
        return True
    except pymongo.errors.PyMongoError as error:
        raise translate_error(error, f"Reading {name}") from error
    finally:
        member.end()
