"""Connections: clients, retries, error codes, throttling, privileges.

In: a connection string. Out: members that answer, raw replies, or an error that names the remedy.
"""

from cdc.mongo.connection import privileges
from cdc.mongo.connection.client import Client, connect
from cdc.mongo.connection.error_codes import (
    FIELD_UNKNOWN,
    INCARNATION_GONE,
    SNAPSHOT_REFUSED,
    TIME_UNREADABLE,
    TOO_LARGE,
    TOOK_TOO_LONG,
    is_transient,
    may_pass,
    translate_error,
)
from cdc.mongo.connection.members import (
    CONFIRM_MS,
    LONGEST_MS,
    RAW,
    Member,
    each_member,
    hello,
    hello_of,
    hello_of_preferred,
    member,
    reconnecting_if_sessions_are_refused,
    reply_time,
    term_of,
)
from cdc.mongo.connection.privileges import (
    OPLOG,
    PRE_IMAGES,
    Need,
    metadata_needs,
    name_missing_needs,
    on_shards,
)
from cdc.mongo.connection.reply import CursorBatch
from cdc.mongo.connection.retry import (
    Progress,
    retry_attempts,
    retry_call,
    retry_first_call,
    retry_if_truncated,
)
from cdc.mongo.connection.routers import (
    RouterMember,
    connect_to_router,
    is_router,
    linearizable_read,
    router_member,
)
from cdc.mongo.connection.throttle import UNLIMITED, Pace
from cdc.mongo.connection.unreachable import log_if_slow

__all__ = [
    "CONFIRM_MS",
    "FIELD_UNKNOWN",
    "INCARNATION_GONE",
    "LONGEST_MS",
    "OPLOG",
    "PRE_IMAGES",
    "RAW",
    "SNAPSHOT_REFUSED",
    "TIME_UNREADABLE",
    "TOOK_TOO_LONG",
    "TOO_LARGE",
    "UNLIMITED",
    "Client",
    "CursorBatch",
    "Member",
    "Need",
    "Pace",
    "Progress",
    "RouterMember",
    "connect",
    "connect_to_router",
    "each_member",
    "hello",
    "hello_of",
    "hello_of_preferred",
    "is_router",
    "is_transient",
    "linearizable_read",
    "log_if_slow",
    "may_pass",
    "member",
    "metadata_needs",
    "name_missing_needs",
    "on_shards",
    "privileges",
    "reconnecting_if_sessions_are_refused",
    "reply_time",
    "retry_attempts",
    "retry_call",
    "retry_first_call",
    "retry_if_truncated",
    "router_member",
    "term_of",
    "translate_error",
]
