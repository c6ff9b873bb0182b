"""Mirror and history, and the SQL views beside mirrors."""

from cdc.delta.followers import history, mirror
from cdc.delta.followers.follower import Backlog, Followers
from cdc.delta.followers.follower_thread import FollowerThread
from cdc.delta.followers.mirror import MirrorState
from cdc.delta.followers.pending import Pending, join
from cdc.delta.followers.pending_batches import PendingBatches, feeds
from cdc.delta.followers.sql_view import read_view, renew_view
from cdc.delta.followers.table_writer import KINDS

__all__ = [
    "KINDS",
    "Backlog",
    "FollowerThread",
    "Followers",
    "MirrorState",
    "Pending",
    "PendingBatches",
    "feeds",
    "history",
    "join",
    "mirror",
    "read_view",
    "renew_view",
]
