"""Error codes of the server: which reads to repeat, and which error to raise."""

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
from cdc.mongo.connection.unreachable import explain_unreachable

# The incarnation of the collection is gone: collectionUUID mismatch, namespace not found.
INCARNATION_GONE = frozenset({361, 26})
# The server does not know a field of the command: IDLUnknownField, FailedToParse (4.2).
FIELD_UNKNOWN = frozenset({40415, 9})
# The server cannot read at this time: it is too old, the catalog changed since, the owners of the
# chunks are forgotten, or a catalog change killed the plan.
TIME_UNREADABLE = frozenset({239, 246, 250, 175})
# InvalidOptions: a lagging member has not reached atClusterTime, or the server does not know that
# option (before 5.0).
SNAPSHOT_REFUSED = 72
TOOK_TOO_LONG = 50  # MaxTimeMSExpired
# A repeated read, on this or another member, may succeed. Repeating is always safe: every read of
# this project may be repeated.
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
        175,  # QueryPlanKilled: outside of scans, by a rollback of the member
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
# UserNotFound for a user with a certificate, AuthenticationFailed for all other users.
_LOGIN_FAILED = frozenset({11, 18})
_REFUSED = re.compile(r"'code': (11|18)\b")
_UNAUTHORIZED = frozenset({13, 8000})
CAPPED_POSITION_LOST = 136
_HISTORY_LOST = frozenset({286, CAPPED_POSITION_LOST})
TOO_LARGE = 10334  # BSONObjectTooLarge
_NO_REPLICA_SET = frozenset({40573, 20, 76, 123})


def is_transient(error: BaseException) -> bool:
    """Whether a repeated read may succeed."""
    if isinstance(error, TransientError):
        return True
    if isinstance(error, pymongo.errors.OperationFailure):
        return error.code in _TRANSIENT or error.has_error_label("ResumableChangeStreamError")
    return isinstance(error, pymongo.errors.ConnectionFailure)  # includes AutoReconnect, selection


def is_login(error: BaseException) -> bool:
    """Whether the server refused the login: unknown user, or another password or certificate."""
    return isinstance(error, LoginRefused) or _find_code(error) in _LOGIN_FAILED


def may_pass(error: BaseException) -> bool:
    """Whether the same request may succeed later.

    The server cannot answer now, or it refused the login, perhaps because the password is being
    changed at this moment.
    """
    return is_transient(error) or is_login(error)


def translate_error(error: pymongo.errors.PyMongoError, attempted: str) -> CdcError:
    """Return our error for a driver's error; the caller raises it `from` that error.

    Args:
        error: the driver's error.
        attempted: what was attempted, as the first words of the message.
    """
    code = _find_code(error)
    if is_login(error):
        return LoginRefused(
            f"{attempted}: the server refused the user (code {code}): no user has that name and"
            " that password or certificate.",
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
            "Look for an _id or a shard key of several megabytes in these documents.",
        )
    if isinstance(error, pymongo.errors.ServerSelectionTimeoutError):
        reason = explain_unreachable(str(error))
        return SourceUnreachable(f"{attempted}: {reason.message}.", reason.remedy)
    if isinstance(error, pymongo.errors.ConfigurationError):
        return BadOption(
            f"{attempted}: the driver refuses 'uri' or an option in it.", "Correct it."
        )
    kind = TransientError if is_transient(error) else CdcError
    how = "the connection failed" if code is None else f"the server answered with code {code}"
    return kind(f"{attempted}: {how}.")


def _find_code(error: BaseException) -> int | None:
    """Return the server's code in an error; None if it has none.

    The driver reports some codes in other errors. A server that is not primary (any more) is a lost
    connection with details. A refused login may be part of the text that no server was found.
    """
    if isinstance(error, pymongo.errors.OperationFailure):
        return error.code
    if isinstance(error, pymongo.errors.ServerSelectionTimeoutError):
        match = _REFUSED.search(str(error))
        return int(match[1]) if match else None
    details = getattr(error, "details", None)
    return details.get("code") if isinstance(details, Mapping) else None
