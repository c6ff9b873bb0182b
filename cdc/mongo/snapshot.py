"""Read one SnapshotSplit: the documents of a key range exactly as of a cluster time.

The ordinary way is a read at that time. Where the server cannot give one any more (it keeps 300
seconds of history by default; capped collections and servers before 5.0 keep none), the range is
rewound: see `cdc.mongo.rewind`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pymongo.errors

from cdc.errors import UnsuitableSource
from cdc.model.excerpt import by
from cdc.model.split import SnapshotSplit
from cdc.mongo import rewind
from cdc.mongo.client import Member
from cdc.mongo.codes import SNAPSHOT_REFUSED, TIME_UNREADABLE
from cdc.mongo.incarnation import Rest, Void
from cdc.mongo.retry import Progress, retrying
from cdc.mongo.scan import Documents, TimeUnreadable, reads_at_a_time, scan


def read(
    open_member: Callable[[], Member],
    split: SnapshotSplit,
    retry_seconds: float,
    may_be_void: bool,
) -> Iterator[Documents]:
    """The documents of the split, each once, in batches of at most 16 MiB (64 MiB when rewinding).

    If the collection has been dropped or renamed since, the split is void: no (more) documents are
    yielded when `may_be_void`, but that it is so, because the DDL event that follows tells the
    rest; a reader that will not see that event gets UnsuitableSource instead of a part taken for
    the whole.
    """
    rest = Rest(split)
    try:
        yield from retried(open_member, rest, retry_seconds, _read_or_rewind)
    except Void as void:
        yield void_documents(split, may_be_void, void)


Attempt = Callable[[Member, Rest, Callable[[], Member]], Iterator[Documents]]


def retried(
    open_member: Callable[[], Member], rest: Rest, retry_seconds: float, attempted: Attempt
) -> Iterator[Documents]:
    progress = Progress()
    what = f"Copying {rest.split.namespace} at {rest.split.at}{by(rest.split.excerpt)}"
    for attempt in retrying(progress, retry_seconds, what):
        with attempt:
            member = open_member()
            try:
                for documents in attempted(member, rest, open_member):
                    yield documents
                    progress.made()
            finally:
                member.end()


def _read_or_rewind(
    member: Member, rest: Rest, open_member: Callable[[], Member]
) -> Iterator[Documents]:
    try:
        yield from read_at_time(member, rest, open_member)
    except TimeUnreadable:
        while not rest.is_empty:
            yield from rewind.next_part(member, rest, open_member)


def read_at_time(member: Member, rest: Rest, _: Callable[[], Member]) -> Iterator[Documents]:
    concern = {"level": "snapshot", "atClusterTime": rest.split.at}
    try:
        for documents, _at in scan(member, rest, concern):
            rest.passed(documents)
            yield Documents(documents)
    except pymongo.errors.OperationFailure as error:
        never = error.code == SNAPSHOT_REFUSED and not reads_at_a_time(member, rest.split.namespace)
        if error.code in TIME_UNREADABLE or never:
            raise TimeUnreadable from error
        raise


def void_documents(split: SnapshotSplit, may_be_void: bool, void: Void) -> Documents:
    if not may_be_void:
        raise UnsuitableSource(
            f"{split.namespace} was dropped, renamed or replaced while it was being copied.",
            "Run the read again.",
        ) from void
    return Documents([], is_void=True)
