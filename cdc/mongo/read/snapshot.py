"""Reads of a SnapshotSplit: the documents of a key range exactly as of a cluster time.

The ordinary way is a read at that time. If the server cannot read at that time any more, the range
is rewound: see `cdc.mongo.read.rewind`. The server retains 300 seconds of history by default; for
capped collections and before 5.0 it retains none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pymongo.errors

from cdc.errors import UnsuitableSource
from cdc.model import Namespace, SnapshotSplit
from cdc.mongo.collections import TimeUnreadable, UnreadRange, Void
from cdc.mongo.connection import SNAPSHOT_REFUSED, TIME_UNREADABLE, Member, Progress, retry_attempts
from cdc.mongo.read import rewind
from cdc.mongo.read.range_scan import Documents, reads_at_a_time, scan


def read(
    open_member: Callable[[], Member],
    split: SnapshotSplit,
    retry_seconds: float,
    may_be_void: bool,
) -> Iterator[Documents]:
    """Yield the documents of the split, each once, in batches of at most 16 MiB.

    While rewinding, a batch has at most 64 MiB. If the collection was dropped, renamed or replaced
    since, the split is void and its remaining documents are missing.

    Args:
        open_member: opens a member for each attempt.
        split: the split to read.
        retry_seconds: how long a failed read is repeated.
        may_be_void: the caller also reads the DDL event that follows. A void split then ends with
            `Documents` that have `is_void`. Otherwise UnsuitableSource is raised: the caller would
            take a part for the whole.
    """
    rest = UnreadRange(split)
    try:
        yield from retry_read(open_member, rest, retry_seconds, _read_or_rewind)
    except Void as void:
        yield void_documents(split, may_be_void, void)


Attempt = Callable[[Member, UnreadRange, Callable[[], Member]], Iterator[Documents]]


def retry_read(
    open_member: Callable[[], Member], rest: UnreadRange, retry_seconds: float, attempted: Attempt
) -> Iterator[Documents]:
    """Yield the documents of repeated attempts, each of which continues after the one before."""
    progress = Progress()
    what = f"Copying {rest.split.namespace} at {rest.split.at}{rest.split.capture.error_suffix}"
    for attempt in retry_attempts(progress, retry_seconds, what):
        with attempt:
            member = open_member()
            try:
                for documents in attempted(member, rest, open_member):
                    yield documents
                    progress.record_progress()
            finally:
                member.end()


def _read_or_rewind(
    member: Member, rest: UnreadRange, open_member: Callable[[], Member]
) -> Iterator[Documents]:
    try:
        yield from read_at_time(member, rest, open_member)
    except TimeUnreadable:
        while not rest.is_empty:
            yield from rewind.next_part(member, rest, open_member)


def read_at_time(member: Member, rest: UnreadRange, _: Callable[[], Member]) -> Iterator[Documents]:
    """Read the rest of a split at its time. Raises TimeUnreadable if the server cannot do that."""
    concern = {"level": "snapshot", "atClusterTime": rest.split.at}
    with naming_unreadable(member, rest.split.namespace):
        for documents, _at in scan(member, rest, concern):
            rest.record_read(documents)
            yield Documents(documents)


@contextmanager
def naming_unreadable(member: Member, namespace: Namespace) -> Iterator[None]:
    """Turn the refusal of a read at a time in this context into TimeUnreadable if it is final."""
    try:
        yield
    except pymongo.errors.OperationFailure as error:
        refuses = error.code == SNAPSHOT_REFUSED
        never = refuses and not reads_at_a_time(member, namespace)
        if error.code in TIME_UNREADABLE or never:
            raise TimeUnreadable from error
        raise


def void_documents(split: SnapshotSplit, may_be_void: bool, void: Void) -> Documents:
    """Return the end of a void split. Raises UnsuitableSource unless it `may_be_void`."""
    if not may_be_void:
        raise UnsuitableSource(
            f"Copying {split.namespace}: it was dropped, renamed or replaced during the copy.",
            "Run the read again.",
        ) from void
    return Documents([], is_void=True)
