"""What a server's code means: whether to read again, and which error of ours it becomes."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pymongo.errors

from cdc.errors import (
    BadOption,
    CdcError,
    HistoryLost,
    LoginRefused,
    NotPermitted,
    SourceUnreachable,
    TransientError,
    UnsuitableSource,
)
from cdc.mongo.connection.unreachable import unreachable

# No such incarnation of the collection any more: collectionUUID mismatch, namespace not found.
INCARNATION_GONE = frozenset({361, 26})
# The server does not know a field of the command: IDLUnknownField, FailedToParse (4.2).
FIELD_UNKNOWN = frozenset({40415, 9})
# This time cannot be read: too old, catalog changed since, owners of chunks forgotten, plan killed
# by a catalog change.
TIME_UNREADABLE = frozenset({239, 246, 250, 175})
# InvalidOptions: atClusterTime lies ahead of a lagging member, or is not known at all (before 5.0).
SNAPSHOT_REFUSED = 72
TOOK_TOO_LONG = 50  # MaxTimeMSExpired
# Repeating the read, here or on another member, is safe and may help. Every read of this project
# may be repeated; the list says for which codes there is hope.
_TRANSIENT = frozenset(
    {
        6,  # HostUnreachable
        7,  # HostNotFound
        43,  # CursorNotFound
        TOOK_TOO_LONG,
        63,  # StaleShardVersion
        SNAPSHOT_REFUSED,
        89,  # NetworkTimeout
        91,  # ShutdownInProgress
        133,  # FailedToSatisfyReadPreference
        134,  # ReadConcernMajorityNotAvailableYet
        150,  # StaleEpoch
        175,  # QueryPlanKilled: where no scan minds it, by a rollback of the member
        189,  # PrimarySteppedDown
        202,  # NetworkInterfaceExceededTimeLimit
        234,  # RetryChangeStream
        237,  # CursorKilled
        262,  # ExceededTimeLimit
        9001,  # SocketException
        10107,  # NotWritablePrimary
        11600,  # InterruptedAtShutdown
        11602,  # InterruptedDueToReplStateChange
        13388,  # StaleConfig
        13435,  # NotPrimaryNoSecondaryOk
        13436,  # NotPrimaryOrSecondary
    }
)
# UserNotFound is what the owner of a certificate is told, AuthenticationFailed everyone else.
_LOGIN_FAILED = frozenset({11, 18})
_REFUSED = re.compile(r"'code': (11|18)\b")
_UNAUTHORIZED = frozenset({13, 8000})
CAPPED_POSITION_LOST = 136
_HISTORY_LOST = frozenset({286, CAPPED_POSITION_LOST})
TOO_LARGE = 10334  # BSONObjectTooLarge
_NO_REPLICA_SET = frozenset({40573, 20, 76, 123})


def is_transient(error: BaseException) -> bool:
    """Whether reading again is safe and may help."""
    if isinstance(error, TransientError):
        return True
    if isinstance(error, pymongo.errors.OperationFailure):
        return error.code in _TRANSIENT or error.has_error_label("ResumableChangeStreamError")
    return isinstance(error, pymongo.errors.ConnectionFailure)  # includes AutoReconnect, selection


def is_login(error: BaseException) -> bool:
    """Whether the server knows another password than was given, or none."""
    return isinstance(error, LoginRefused) or _code_of(error) in _LOGIN_FAILED


def may_pass(error: BaseException) -> bool:
    """Whether this is no answer to what was asked: the server cannot answer now, or it knows
    another password than was given, which may just be being changed."""
    return is_transient(error) or is_login(error)


def translated(error: pymongo.errors.PyMongoError, attempted: str) -> CdcError:
    """Our error for the driver's: what was attempted, what to do. Raise it `from` the cause."""
    code = _code_of(error)
    if is_login(error):
        return LoginRefused(
            f"{attempted}: the server refused the user (code {code}): it knows none of that name,"
            " with that password or certificate.",
            "Check user, password, authSource and authMechanism in 'uri'.",
        )
    if code in _UNAUTHORIZED:
        return NotPermitted(
            f"{attempted}: the server refused the user (code {code}).",
            "Check user, password and authSource, and grant the role listed under 'Privileges'.",
        )
    if code in _HISTORY_LOST:
        return HistoryLost(
            f"{attempted}: the oplog no longer reaches back to that time.",
            "Start with a new checkpoint in mode initial; enlarge the oplog.",
        )
    if code in _NO_REPLICA_SET:
        return UnsuitableSource(
            f"{attempted}: the server is not a member of a replica set, so it has no oplog.",
            "Start mongod with --replSet and run rs.initiate() once; one member is enough.",
        )
    if code == TOO_LARGE:
        return UnsuitableSource(
            f"{attempted}: the server's answer exceeds the 16 MiB of a BSON document.",
            "Look for an _id or a shard key of several megabytes in what was read.",
        )
    if isinstance(error, pymongo.errors.ServerSelectionTimeoutError):
        reason = unreachable(str(error))
        return SourceUnreachable(f"{attempted}: {reason.message}.", reason.remedy)
    if isinstance(error, pymongo.errors.ConfigurationError):
        return BadOption(f"{attempted}: 'uri' asks for something impossible.", "Correct it.")
    kind = TransientError if is_transient(error) else CdcError
    how = "the connection failed" if code is None else f"the server answered with code {code}"
    return kind(f"{attempted}: {how}.")


def _code_of(error: BaseException) -> int | None:
    """Also of a server that is no primary (any more), which to the driver is a lost connection, and
    of one whose refusal of a login the driver tells as the reason why it found none."""
    if isinstance(error, pymongo.errors.OperationFailure):
        return error.code
    if isinstance(error, pymongo.errors.ServerSelectionTimeoutError):
        found = _REFUSED.search(str(error))
        return int(found[1]) if found else None
    details = getattr(error, "details", None)
    return details.get("code") if isinstance(details, Mapping) else None
