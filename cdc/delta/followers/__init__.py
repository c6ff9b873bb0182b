"""Mirror and history, and the SQL views beside mirrors."""

from cdc.delta.followers import mirror
from cdc.delta.followers.follower import Backlog, Followers
from cdc.delta.followers.follower_kind import Changes, FollowerKind, Writer
from cdc.delta.followers.follower_thread import FollowerThread
from cdc.delta.followers.history import HISTORY
from cdc.delta.followers.mirror import MIRROR, MirrorState
from cdc.delta.followers.pending import Pending, join
from cdc.delta.followers.pending_batches import PendingBatches, feeds
from cdc.delta.followers.sql_view import read_view, renew_view
from cdc.delta.landing import CHANGELOG, DEAD_LETTERS
from cdc.delta.tables import Kind, Layout, Options

# The kinds of tables that follow changelogs, in the order in which they get a batch.
KINDS: tuple[FollowerKind, ...] = (MIRROR, HISTORY)
ALL_KINDS: tuple[Kind, ...] = (CHANGELOG, *KINDS, DEAD_LETTERS)


def kinds_of(options: Options) -> list[FollowerKind]:
    """The kinds of tables with these options that follow changelogs."""
    return [kind for kind in KINDS if kind.name in options.routes]


def has_followers(layout: Layout) -> bool:
    """Whether any collection has a mirror or a history."""
    return any(map(kinds_of, layout.all()))


__all__ = [
    "ALL_KINDS",
    "KINDS",
    "MIRROR",
    "Backlog",
    "Changes",
    "FollowerKind",
    "FollowerThread",
    "Followers",
    "MirrorState",
    "Pending",
    "PendingBatches",
    "Writer",
    "feeds",
    "has_followers",
    "join",
    "kinds_of",
    "mirror",
    "read_view",
    "renew_view",
]
