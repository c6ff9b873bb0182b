"""Connections: clients, retries, error codes, throttling, privileges.

In: a connection string. Out: members that answer, raw replies, or an error that names the remedy.
"""

from cdc.mongo.connection import privileges
from cdc.mongo.connection.client import (
    CONFIRM_MS,
    LONGEST_MS,
    RAW,
    STALL_SECONDS,
    Client,
    Member,
    connect,
    each_member,
    hello,
    hello_of,
    hello_of_preferred,
    member,
    reconnecting_if_sessions_are_refused,
    term_of,
    time_told,
)
from cdc.mongo.connection.error_codes import (
    FIELD_UNKNOWN,
    INCARNATION_GONE,
    SNAPSHOT_REFUSED,
    TIME_UNREADABLE,
    TOO_LARGE,
    TOOK_TOO_LONG,
    is_transient,
    may_pass,
    translated,
)
from cdc.mongo.connection.privileges import OPLOG, Need, named, of_metadata, on
from cdc.mongo.connection.reply import Batch
from cdc.mongo.connection.retry import Progress, begun, repeated, retry_if_truncated, retrying
from cdc.mongo.connection.throttle import UNLIMITED, Pace
from cdc.mongo.connection.unreachable import logged_if_slow

__all__ = [
    "CONFIRM_MS",
    "FIELD_UNKNOWN",
    "INCARNATION_GONE",
    "LONGEST_MS",
    "OPLOG",
    "RAW",
    "SNAPSHOT_REFUSED",
    "STALL_SECONDS",
    "TIME_UNREADABLE",
    "TOOK_TOO_LONG",
    "TOO_LARGE",
    "UNLIMITED",
    "Batch",
    "Client",
    "Member",
    "Need",
    "Pace",
    "Progress",
    "begun",
    "connect",
    "each_member",
    "hello",
    "hello_of",
    "hello_of_preferred",
    "is_transient",
    "logged_if_slow",
    "may_pass",
    "member",
    "named",
    "of_metadata",
    "on",
    "privileges",
    "reconnecting_if_sessions_are_refused",
    "repeated",
    "retry_if_truncated",
    "retrying",
    "term_of",
    "time_told",
    "translated",
]
