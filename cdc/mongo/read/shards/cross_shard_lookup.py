"""Cross-shard lookup of a document that left the shard of its change."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any, Self

from bson.raw_bson import RawBSONDocument

from cdc.errors import TransientError
from cdc.model import (
    MAX_KEY,
    MIN_KEY,
    NEVER,
    CaptureFilter,
    KeyRange,
    Namespace,
    SnapshotSplit,
    Timestamp,
)
from cdc.mongo.collections import UnreadRange, Void, find_incarnation
from cdc.mongo.connection import retry_call
from cdc.mongo.read.images import Event, look_up
from cdc.mongo.read.rewind import reading_newest
from cdc.mongo.topology import Ownership, Source

# Runs a find with these arguments on one shard.
Find = Callable[[dict[str, Any]], RawBSONDocument]


class Lookup:
    """Looks documents up on all shards that own a part of their collection.

    All documents of a collection are read as of one time, which is after everything that was read
    before. The time, the shards and their versions are found for the first document of a
    collection, and used for the others.
    """

    def __init__(
        self, source: Source, ownership: Ownership, retry_seconds: float, capture: CaptureFilter
    ) -> None:
        self._source, self._ownership = source, ownership
        self._retry_seconds, self._capture = retry_seconds, capture
        self._reads: dict[Namespace, tuple[SnapshotSplit, list[Find]]] = {}
        self._gone: dict[Namespace, Timestamp] = {}
        self._open = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def look_up(self, event: Event) -> Event:
        """Return the event with its document, if the document still exists.

        The call is repeated for `retry_seconds`; then TransientError is raised.
        """
        namespace = Namespace(event.raw["ns"]["db"], event.raw["ns"]["coll"])
        what = f"Looking up a document of {namespace}"

        def attempt() -> Event:
            try:
                return self._look_up(namespace, event)
            except Void as void:  # Another incarnation has the name, or none has it.
                self._reads.pop(namespace, None)
                raise TransientError(f"{what}: the collection was replaced.") from void
            except Exception:
                self._reads.pop(namespace, None)
                raise

        return retry_call(attempt, self._retry_seconds, what)

    def _look_up(self, namespace: Namespace, event: Event) -> Event:
        if namespace not in self._reads:
            uuid = self._ownership.incarnation(namespace)
            if uuid is None:
                return event._replace(exact_from=self._gone_by(namespace, event))
            self._reads[namespace] = self._prepare(namespace, uuid)
        now, finds = self._reads[namespace]
        concern = {"level": "snapshot", "atClusterTime": now.at}
        with reading_newest(now), self._ownership.void_if_gone(now):
            for find in finds:
                after = look_up(find, event.raw, concern, self._capture)[0]
                if after is not None:
                    return event._replace(after=after, exact_from=now.at)
        return event._replace(exact_from=now.at)

    def _gone_by(self, namespace: Namespace, event: Event) -> Timestamp:
        """A time by which a collection that is not sharded, or was dropped, lacks the document."""
        if namespace not in self._gone:
            self._gone[namespace] = self._source.present()
        # The live edge is NEVER while a shard does not know its own.
        return max(event.exact_from or NEVER, self._gone[namespace])

    def _prepare(self, namespace: Namespace, uuid: bytes) -> tuple[SnapshotSplit, list[Find]]:
        at = self._source.present()
        now = SnapshotSplit(namespace, uuid, KeyRange(MIN_KEY, MAX_KEY), at)
        with reading_newest(now):
            return now, [self._find(now, shard) for shard in self._ownership.owners(now)]

    def _find(self, now: SnapshotSplit, shard: str) -> Find:
        version, member = self._ownership.version(now, shard), self._source.open(shard)
        self._open.callback(member.end)
        return partial(find_incarnation, member, UnreadRange(now, lambda: version))
