"""The only place that opens a connection.

Reads that have to stay on one member (a cursor, a session) go through `Member`: a direct connection
to the member that the user's read preference picked. A driver that may route a getMore elsewhere,
or resume a cursor by itself, would break the rules of `cdc.mongo.stream`.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

import pymongo
import pymongo.errors
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from pymongo.client_session import ClientSession
from pymongo.read_preferences import _ServerMode
from pymongo.uri_parser import parse_uri

from cdc.errors import SourceUnreachable, TransientError
from cdc.mongo.address import leading_to, of_shard, resolve, stamp, understood
from cdc.mongo.codes import is_login
from cdc.mongo.pace import UNLIMITED, Pace

Client = pymongo.MongoClient[dict[str, Any]]
# `raw` of such a document may be bytes or a memoryview, by size and driver version: ask for
# bytes(document.raw).
RAW: CodecOptions[RawBSONDocument] = CodecOptions(document_class=RawBSONDocument)
_APP_NAME = "mongodb-cdc"
# How long a member may take to learn that a majority has what it has shown; then another is asked.
CONFIRM_MS = 10_000
# Of whatever may have much to look through. None takes as long on a server that is well; one whose
# client is gone without the server's knowledge does not go on for ever. (In a getMore on a change
# stream `maxTimeMS` is another thing: how long it waits.)
LONGEST_MS = 3_600_000
# A member that lags is waited for as long as it moves; behind this one that does not is left.
STALL_SECONDS = 600.0
# A member that has just answered, and cannot be reached for so long, is left for another.
_GONE_MS = 3000
_KILL_SECONDS = 1.0


def connect(uri: str, timeout_ms: int, shard: str = "") -> Client:
    """A client of the deployment, shared by all callers of this process. Does no I/O yet.

    With `shard`: of that shard's replica set, see `of_shard`.
    """
    return _connect(of_shard(current(uri), shard), timeout_ms, os.getpid())


@functools.lru_cache(maxsize=64)
def _connect(uri: str, timeout_ms: int, pid: int) -> Client:  # a client must not cross a fork
    return _opened(uri, _settings(timeout_ms))


def current(uri: str) -> str:
    """The connection string behind `uri`, see `resolve`. Where it, or a file for TLS that it names,
    is another one than at the last call, all clients are made anew: those that there are would log
    in as before when they connect again."""
    found = resolve(uri)
    state = found, stamp(found)
    if _last.setdefault(uri, state) != state:
        _last[uri] = state
        _forget()
    return found


_last: dict[str, tuple[str, Any]] = {}


def _forget() -> None:
    _connect.cache_clear()
    _direct.cache_clear()


def _opened(uri: str, settings: Mapping[str, Any]) -> Client:
    # By default an option that is misspelt is passed over: `tls=yes` would be none.
    understood(functools.partial(parse_uri, uri, warn=False))
    return understood(lambda: pymongo.MongoClient(uri, **settings, **_unasked(uri)))


def _settings(timeout_ms: int) -> dict[str, Any]:
    return {
        "appname": _APP_NAME,
        "serverSelectionTimeoutMS": timeout_ms,
        "connectTimeoutMS": timeout_ms,
        # It would take the place of the time that a getMore is to wait: an idle stream would answer
        # only then, and every batch take as long.
        "timeoutMS": None,
        # Each read says its own: a change stream takes none but majority (72).
        "readConcernLevel": None,
        "datetime_conversion": DatetimeConversion.DATETIME_AUTO,
    }


def _unasked(uri: str) -> dict[str, Any]:
    """A password for a key that has none in `uri`: else OpenSSL asks the terminal for one."""
    has_key = "tlscertificatekeyfile=" in uri.lower()
    has_password = "tlscertificatekeyfilepassword=" in uri.lower()
    return {"tlsCertificateKeyFilePassword": ""} if has_key and not has_password else {}


class Member:
    """One member of a replica set, with a session of its own, for cursors read batch by batch."""

    _pace, _comment = UNLIMITED, ""

    def __init__(self, client: Client, session: ClientSession) -> None:
        self._client = client
        self._session = session

    def asked(self, comment: str, pace: Pace = UNLIMITED) -> Self:
        """The same member, asked from now on as fast as that allows; its cursors bear a comment, by
        which `cdc.mongo.leftovers` finds them."""
        self._comment, self._pace = comment, pace
        return self

    def command(self, db: str, command: Mapping[str, Any]) -> RawBSONDocument:
        """The raw reply. Raises the driver's errors: the caller knows what they mean."""
        database = self._client.get_database(db, codec_options=RAW)
        if self._comment and not {"find", "aggregate"}.isdisjoint(command):
            command = {**command, "comment": self._comment}
        self._pace.wait()
        with takes_sessions(self._client):
            reply = database.command(dict(command), codec_options=RAW, session=self._session)
        self._pace.came(len(reply.raw))
        return reply

    def hello(self) -> dict[str, Any]:
        return hello(self._client)

    def newest_known(self) -> Timestamp:
        """A time not before any change that this member has shown, be it committed or not.

        A reply's operation time would not do: at majority it is that of what is committed, but
        which collections there are is shown as it is now; and a secondary has dropped one before
        it says so. The cluster time is at least that of all that a member has got to apply.
        """
        reply = self.command("admin", {"ping": 1})
        known: Timestamp = time_told(reply, "$clusterTime")["clusterTime"]
        return known

    def advance(self, cluster_time: Mapping[str, Any]) -> None:
        """Passes on the `$clusterTime` that another server has told, as a router does: before that
        a server refuses to be asked for later times than it knows of."""
        self._session.advance_cluster_time(cluster_time)

    def kill_cursor(self, namespace: str, cursor: int) -> None:
        """Frees a cursor. A failure leaves it to the server's own timeout; it is not waited for: a
        member that is gone has none, and another one is to be read."""
        db, _, coll = namespace.partition(".")
        try:
            with pymongo.timeout(_KILL_SECONDS):
                self._client[db].command({"killCursors": coll, "cursors": [cursor]})
        except pymongo.errors.PyMongoError:
            return

    def end(self) -> None:
        self._session.end_session()


def time_told(reply: Mapping[str, Any], name: str = "operationTime") -> Any:
    """The operation time of a reply, or its `$clusterTime`.

    Raises TransientError if it has none: a server with access control tells an ordinary user no
    times until, soon after its start, it has the key to sign them with.
    """
    if name not in reply:
        raise TransientError("The server, which has just been started, does not tell its time yet.")
    return reply[name]


@contextmanager
def takes_sessions(client: Client) -> Iterator[None]:
    """For a command with a session. A connection that the driver made to a member which was just
    recovering is refused all sessions for as long as it is open: then all clients are made anew,
    and the connection counts as lost. Raises AutoReconnect for that."""
    try:
        yield
    except pymongo.errors.ConfigurationError as error:
        client.topology_description.check_compatible()
        _forget()
        raise pymongo.errors.AutoReconnect("made while the member was recovering") from error


def member(
    uri: str, timeout_ms: int, shard: str = "", preference: _ServerMode | None = None
) -> Member:
    """The member that a read preference, that of `uri` if none is given, picks now.

    Raises the driver's errors.
    """
    client = connect(uri, timeout_ms, shard)
    me = hello_of_preferred(client, preference).get("me")
    # Of a mongos, or of a member that 'uri' names as the only one (it may not be reachable by the
    # name that it has in the replica set), the client itself is the way to it.
    if me is not None and client.topology_description.topology_type_name != "Single":
        client = _direct(current(uri), timeout_ms, me, os.getpid())
    return Member(client, client.start_session(causal_consistency=False))


def hello_of_preferred(client: Client, other: _ServerMode | None = None) -> dict[str, Any]:
    """The `hello` of the member that the client's read preference, or another, picks now.

    Raises SourceUnreachable if there are members but none that it admits, or the driver's errors.
    """
    preference: _ServerMode = other or client.read_preference
    try:
        return hello(client, read_preference=preference)
    except pymongo.errors.ServerSelectionTimeoutError as error:
        if other or not client.nodes or is_login(error):
            raise
        tags = f" with the tags {list(preference.tag_sets)}" if any(preference.tag_sets) else ""
        raise SourceUnreachable(
            "No member of the replica set that is up satisfies the read preference of 'uri':"
            f" {preference.mongos_mode}{tags}.",
            "Start such a member, or correct readPreference, readPreferenceTags and"
            " maxStalenessSeconds in 'uri'; an empty readPreferenceTags= at the end admits any.",
        ) from error


def hello(client: Client, **how: Any) -> dict[str, Any]:
    """A member's `hello`, also of a server (before 4.4.2) that has only the command's old name.

    Raises the driver's errors.
    """
    try:
        return client.admin.command("hello", **how)
    except pymongo.errors.OperationFailure as error:
        if error.code != _NO_SUCH_COMMAND:
            raise
    reply = client.admin.command("isMaster", **how)
    return {**reply, "isWritablePrimary": reply["ismaster"]}


_NO_SUCH_COMMAND = 59


def hello_of(uri: str, host: str, port: int) -> dict[str, Any] | None:
    """One member's own `hello`, or None if it does not answer within a second or two."""
    try:
        direct = _direct(current(uri), _HELLO_TIMEOUT_MS, _address(host, port), os.getpid())
        # A connection that stands to a machine that does not answer would wait for a heartbeat.
        with pymongo.timeout(_HELLO_TIMEOUT_MS / 1000):
            return hello(direct)
    except (SourceUnreachable, pymongo.errors.PyMongoError):
        return None


_HELLO_TIMEOUT_MS = 1500


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def each_member(client: Client, uri: str) -> Iterator[Client]:
    """A client of each member that is known now, for what does not take long: one that is gone is
    waited for as long as for a `hello`. Raises SourceUnreachable and the driver's errors."""
    hello(client)  # nobody may have asked for its members yet
    for host, port in sorted(client.nodes):
        address = _address(host, port or 27017)
        yield _direct(current(uri), _HELLO_TIMEOUT_MS, address, os.getpid())


def term_of(client: Client) -> int | None:
    """The term of the member that the driver takes for the primary; None if it is not one (yet).

    Within one term there is one primary, and what it knows at a time is a prefix of what it knows
    later. Raises the driver's errors.
    """
    reply = hello(client)
    return int(reply["lastWrite"]["opTime"]["t"]) if reply.get("isWritablePrimary") else None


@functools.lru_cache(maxsize=256)
def _direct(uri: str, timeout_ms: int, address: str, pid: int) -> Client:
    uri = leading_to(address, uri, "directConnection=true")
    settings = _settings(timeout_ms)
    settings["serverSelectionTimeoutMS"] = min(timeout_ms, _GONE_MS)
    return _opened(uri, settings)
