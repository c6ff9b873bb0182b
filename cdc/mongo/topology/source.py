"""What planning and reading ask of a source, whatever its topology is.

Nobody above this package chooses by the kind of a source. Callers use `Source`; a kind that differs
in one more respect gets another member here. Where a difference cannot be one method, because the
readers are layers above, it is a value: `ownership` is None, or says which shard owned which
documents. `cdc.mongo.read.split_reading` reads by it.

`cdc.mongo.topology.discovery` is the one place that chooses the kind.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Protocol, Self

from bson.timestamp import Timestamp

from cdc.model import (
    NEVER,
    Copying,
    KeyRange,
    Namespace,
    Offset,
    Selection,
    ShardKey,
    SnapshotSplit,
    Times,
)
from cdc.mongo.collections import Listing, Version
from cdc.mongo.connection import Client, Member, Pace


class Source(Protocol):
    """A deployment of MongoDB that is copied: the servers behind the option `uri`.

    It consists of one or more parts, its `shards`, each with a change stream of its own.
    """

    @property
    def name(self) -> str:
        """The name that offsets contain, by which a foreign checkpoint is recognised."""
        ...

    # --- the live edge ---

    def live_edge(self, floor: Timestamp) -> Timestamp:
        """Return the newest time that no failover can roll back on any part, at least `floor`.

        A member that is down, recovering or lagging only makes the result older, never wrong.
        """
        ...

    def confirm(self, found: Listing, patience: float) -> Timestamp | None:
        """Return a live edge at or after the listing's time.

        None means that it was not reached within `patience` seconds, or that the listing may be
        rolled back, because another primary was elected.
        """
        ...

    @property
    def unconfirmed_error(self) -> tuple[str, str]:
        """Message and remedy for an error if `confirm` keeps returning None."""
        ...

    @property
    def names_one_member(self) -> bool:
        """Whether `uri` names one member only, so that no other member is ever asked."""
        ...

    # --- the members to read from ---

    @property
    def shards(self) -> tuple[str, ...]:
        """The parts of the source with their own change streams, as splits name them."""
        ...

    @property
    def clients(self) -> Mapping[str, Client]:
        """A client of each of `shards`; under an empty name that of the server in `uri`."""
        ...

    def each_member(self) -> Iterator[tuple[str, Client]]:
        """Yield each part, as splits name it, with a direct client of each member known now.

        Raises SourceUnreachable and the driver's errors.
        """
        ...

    def configure(self, comment: str, pace: Pace) -> Self:
        """Return the source with this comment on its cursors, and this pace of its reads."""
        ...

    def open(self, shard: str) -> Member:
        """Return a member to read a range or a slice of that part; the caller must `end` it.

        Whether it is a router (`Member.is_router`) decides what completes a slice, and how a range
        is read.

        Raises the driver's errors, and HistoryLost if the part was removed.
        """
        ...

    # --- collections ---

    def list_collections(self, selection: Selection) -> Listing:
        """List the selected collections. They are certain once `confirm` confirms the listing."""
        ...

    def ranges(self, copying: Copying, most: int, split_bytes: int) -> list[KeyRange]:
        """Return at most `most` adjacent ranges of about `split_bytes`, from the frontier on."""
        ...

    def require_mirrorable(self, selection: Selection) -> None:
        """Raise UnsuitableSource if a mirror of a selected collection might not be exact.

        `_id`s that are not unique are no reason by themselves.
        """
        ...

    def shard_keys(
        self, selection: Selection, after: Timestamp
    ) -> Mapping[Namespace, ShardKey] | None:
        """Return the shard keys of the selected collections that are sharded.

        The document keys of their documents count as a whole, see `cdc.model.whole_key`. None if
        the `_id` is enough for every collection, or the user may not read them. The answer is that
        of some moment at or after `after`, a live edge. Raises our errors for those of the server.
        """
        ...

    @property
    def has_oplog(self) -> bool:
        """Whether the oplogs of its parts can be read, if the user may read them."""
        ...

    @property
    def reads_match_events(self) -> bool:
        """Whether a read at a time shows what the events up to that time did, and no more.

        The events in `late_times` count among them. If it does not match, it may also show
        transactions across shards whose events have later times.
        """
        ...

    @property
    def drops_are_final(self) -> bool:
        """Whether a collection that is dropped is gone.

        Otherwise the event may be that of a collection that moved to another shard with its
        database, and lives on there.
        """
        ...

    @property
    def ownership(self) -> Ownership | None:
        """Which part owned which documents, if documents move between the parts.

        None means that a part has all documents of its collections, at any time.
        """
        ...

    # --- several parts ---

    def present(self) -> Timestamp:
        """Return a live edge at which all parts can be read, however little history they retain.

        It has all changes that a majority of each part had before the call. NEVER if it is unknown.
        Raises TransientError.
        """
        ...

    def late_times(self, time: Timestamp) -> Times:
        """Return, by shard, the times after `time` of events that belong before it.

        `time` must be at or before a live edge. See `Offset.late`.
        """
        ...

    def reports_ddl(self, shard: str, event: Mapping[str, Any]) -> bool:
        """Return whether that part reports a DDL event that several parts may see."""
        ...

    @property
    def topology_time(self) -> Timestamp:
        """When a part last joined or left."""
        ...

    def refresh(self) -> Self:
        """Return the source as it is at some moment after everything that was read from it.

        It returns itself if the parts are the same.
        """
        ...

    def require_all_read(self, offset: Offset) -> None:
        """Raise HistoryLost if a removed part may have had changes after `offset`."""
        ...


class Ownership(Protocol):
    """Which part owned which documents of a collection, at the time of a read."""

    def owners(self, split: SnapshotSplit) -> list[str]:
        """Return the parts that owned documents of the collection at the split's time.

        Raises TimeUnreadable if that is no longer known, and Void if the incarnation is gone.
        """
        ...

    def version(self, split: SnapshotSplit, shard: str) -> Version | None:
        """Return the version that a read of the part must carry, so that it omits other documents.

        None if the collection is on one part. Raises Void if the incarnation is gone.
        """
        ...

    def incarnation(self, namespace: Namespace) -> bytes | None:
        """Return the UUID of a collection whose documents move; None if it is on one part."""
        ...

    def void_if_gone(self, split: SnapshotSplit) -> AbstractContextManager[None]:
        """Turn a Void from this context into TransientError if only the part lacks the incarnation.

        A part may learn of a collection late. A void split must be void for the planner too.
        """
        ...

    def lesser_key(self, namespace: Namespace, one: bytes, other: bytes) -> bytes:
        """Return the lesser of two keys, in the order of the collection's index."""
        ...


class OnePart:
    """The answers of a source that is one part for good: nothing moves, joins or leaves."""

    __slots__ = ()
    has_oplog = True
    drops_are_final = True
    reads_match_events = True
    ownership: ClassVar[Ownership | None] = None
    topology_time = NEVER

    @property
    def shards(self) -> tuple[str, ...]:
        return ("",)

    def late_times(self, time: Timestamp) -> Times:
        return ()

    def reports_ddl(self, shard: str, event: Mapping[str, Any]) -> bool:
        return True

    def require_mirrorable(self, selection: Selection) -> None:
        """Documents do not move."""

    def shard_keys(
        self, selection: Selection, after: Timestamp
    ) -> Mapping[Namespace, ShardKey] | None:
        return None

    def refresh(self) -> Self:
        return self

    def require_all_read(self, offset: Offset) -> None:
        """A part that cannot be removed has no changes that could be lost with it."""
