"""Members of a replica set: one member for cursors, and what members report about themselves.

Reads that have to stay on one member (a cursor, a session) go through `Member`: a direct connection
to the member that the user's read preference selected. A driver that routes a getMore to another
member, or resumes a cursor by itself, would break the rules of `cdc.mongo.read.change_stream`.
"""

from __future__ import annotations

import time
from _thread import start_new_thread
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from threading import Event
from typing import Any, Self

import pymongo
import pymongo.errors
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from pymongo.client_session import ClientSession
from pymongo.read_preferences import Primary, SecondaryPreferred, _ServerMode

from cdc.errors import SourceUnreachable, TransientError
from cdc.model import Namespace
from cdc.mongo.connection.client import (
    Client,
    avoid,
    connect,
    connect_directly,
    drop_clients,
    format_address,
    is_avoided,
)
from cdc.mongo.connection.error_codes import is_login
from cdc.mongo.connection.reply import CursorBatch
from cdc.mongo.connection.throttle import UNLIMITED, Pace

# `raw` of such a document may be bytes or a memoryview, by size and driver version. Use
# bytes(document.raw).
RAW: CodecOptions[RawBSONDocument] = CodecOptions(document_class=RawBSONDocument)
# Milliseconds for a member to learn that a majority has what it has shown; then another is read.
CONFIRM_MS = 10_000
# `maxTimeMS` of each command that may scan much. On a healthy server none takes as long. A command
# ends even if the server does not notice that its client is gone. (In a getMore on a change stream
# `maxTimeMS` means how long the server waits for an event.)
LONGEST_MS = 3_600_000
# A lagging member is waited for while it advances. One that does not advance for this long is
# replaced by another.
_STALL_SECONDS = 600.0
_KILL_SECONDS, _KILL_WAIT_SECONDS = 10.0, 1.0
_HELLO_TIMEOUT_MS = 1500
_NO_SUCH_COMMAND = 59


class Member:
    """One member of a replica set, with its own session, for cursors that are read in batches.

    Attributes:
        is_router: it is a router, which answers for all shards of a cluster. Then an empty reply
            does not complete a slice, and replies of several shards have to be merged.
    """

    is_router = False
    _pace, _comment = UNLIMITED, ""

    def __init__(self, client: Client, session: ClientSession, address: str = "") -> None:
        """A member with its own session.

        `address` is `host:port` as the member names itself; empty for a server without another one.
        """
        self._client = client
        self._session = session
        self._address = address

    def configure(self, comment: str, pace: Pace = UNLIMITED) -> Self:
        """Set the comment of this member's cursors and the pace of its reads; return the member.

        `cdc.mongo.topology.orphaned_cursors` finds orphaned cursors by the comment.
        """
        self._comment, self._pace = comment, pace
        return self

    def command(self, db: str, command: Mapping[str, Any]) -> RawBSONDocument:
        """Run a command and return the raw reply.

        Raises the driver's errors: only the caller knows what they mean.
        """
        database = self._client.get_database(db, codec_options=RAW)
        if self._comment and not {"find", "aggregate"}.isdisjoint(command):
            command = {**command, "comment": self._comment}
        self._pace.wait()
        with reconnecting_if_sessions_are_refused(self._client):
            reply = database.command(dict(command), codec_options=RAW, session=self._session)
        self._pace.record(len(reply.raw))
        return reply

    def find(self, namespace: Namespace, arguments: Mapping[str, Any]) -> Generator[CursorBatch]:
        """Yield the replies of a find; close its cursor at the end, also if that is early.

        `arguments` must have a `batchSize`. Raises the driver's errors.
        """
        db, coll = namespace
        batch = CursorBatch.of(self.command(db, {"find": coll, **arguments}))
        more = {"collection": coll, "batchSize": arguments["batchSize"]}
        try:
            yield batch
            while batch.cursor:
                batch = CursorBatch.of(self.command(db, {"getMore": batch.cursor, **more}))
                yield batch
        finally:
            if batch.cursor:
                self.kill_cursor(str(namespace), batch.cursor)

    def hello(self) -> dict[str, Any]:
        return hello(self._client)

    def newest_known(self) -> Timestamp:
        """Return a time at or after every change that this member has shown, committed or not.

        A reply's operation time is not enough. At majority it is the time of the committed state,
        but the list of collections shows the newest state. A secondary has also dropped a
        collection before its operation time says so. The cluster time is at or after the time of
        everything that the member has received to apply.
        """
        reply = self.command("admin", {"ping": 1})
        newest: Timestamp = reply_time(reply, "$clusterTime")["clusterTime"]
        return newest

    def advance(self, cluster_time: Mapping[str, Any]) -> None:
        """Pass on the `$clusterTime` of another server, as a router does.

        Without it, a server refuses reads at times later than those it knows.
        """
        self._session.advance_cluster_time(cluster_time)

    def require_advance(self, since: float, waited_for: str, reached: Timestamp | None) -> None:
        """Raise TransientError if the member has stood still for too long.

        The next attempts of this process read another member, if the read preference admits one.

        Args:
            since: when it last advanced, by the monotonic clock.
            waited_for: the first words of the message.
            reached: where it stands.
        """
        if time.monotonic() - since <= _STALL_SECONDS:
            return
        if self._address:
            avoid(self._address)
        raise TransientError(
            f"{waited_for}: the server has remained at {reached} for {_STALL_SECONDS:.0f} s.",
            "Check that a majority of the replica set is up.",
        )

    def kill_cursor(self, namespace: str, cursor: int) -> None:
        """Close a cursor on the server; return after at most a second, and ignore a failure.

        The server itself closes a cursor that is left open, later. A member that is gone has no
        cursors, and the caller must not wait: it is about to read another member.

        The command is sent in a thread of its own. Python may collect an abandoned generator, and
        so close its cursor, in the middle of the driver's code. If that code holds a lock that the
        command needs, the command has to wait until this method has returned.
        """
        db, _, coll = namespace.partition(".")
        has_ended = Event()

        def kill() -> None:
            with suppress(pymongo.errors.PyMongoError), pymongo.timeout(_KILL_SECONDS):
                self._client[db].command({"killCursors": coll, "cursors": [cursor]})
            has_ended.set()

        # Not `threading.Thread`: it has locks of its own, with the same danger.
        start_new_thread(kill, ())
        has_ended.wait(_KILL_WAIT_SECONDS)

    def end(self) -> None:
        self._session.end_session()


def reply_time(reply: Mapping[str, Any], name: str = "operationTime") -> Any:
    """Return the operation time of a reply, or its `$clusterTime`.

    Raises TransientError if the reply has none. A server with access control reports no times to an
    ordinary user until, soon after its start, it has the key that signs them.
    """
    if name not in reply:
        raise TransientError("The server has just started and does not report its time yet.")
    return reply[name]


@contextmanager
def reconnecting_if_sessions_are_refused(client: Client) -> Iterator[None]:
    """Run a command with a session in this context.

    A connection that the driver opened while the member was recovering refuses sessions as long as
    it is open. Then all clients are dropped, and the connection counts as lost.

    Raises AutoReconnect in that case, and the driver's other errors unchanged.
    """
    try:
        yield
    except pymongo.errors.ConfigurationError as error:
        client.topology_description.check_compatible()
        drop_clients()
        raise pymongo.errors.AutoReconnect("opened while the member was recovering") from error


def member(
    uri: str, timeout_ms: int, shard: str = "", preference: _ServerMode | None = None
) -> Member:
    """Return the member that a read preference selects now.

    The read preference is that of `uri` if none is given. Raises the driver's errors.
    """
    client = connect(uri, timeout_ms, shard)
    address, me = "", hello_of_preferred(client, preference).get("me")
    mode = preference or client.read_preference
    if me is not None and isinstance(mode, SecondaryPreferred) and is_avoided(me):
        # The driver selects no primary as long as it knows a secondary.
        with suppress(pymongo.errors.PyMongoError):
            me = hello_of_preferred(client, Primary())["me"]
    # The client itself is used for a mongos, and for a member that 'uri' names as the only one. It
    # may not be reachable by its name in the replica set.
    if me is not None and client.topology_description.topology_type_name != "Single":
        client, address = connect_directly(uri, timeout_ms, me), me
    return Member(client, client.start_session(causal_consistency=False), address)


def hello_of_preferred(client: Client, other: _ServerMode | None = None) -> dict[str, Any]:
    """Return the `hello` of the member that a read preference selects now.

    The read preference is that of the client if no other is given. Raises SourceUnreachable if
    there are members but the client's preference admits none of them, and the driver's errors.
    """
    preference: _ServerMode = other or client.read_preference
    try:
        return hello(client, read_preference=preference)
    except pymongo.errors.ServerSelectionTimeoutError as error:
        if other or not client.nodes or is_login(error):
            raise
        tags = f" with the tags {list(preference.tag_sets)}" if any(preference.tag_sets) else ""
        raise SourceUnreachable(
            "No running member of the replica set satisfies the read preference of 'uri':"
            f" {preference.mongos_mode}{tags}.",
            "Start such a member, or correct readPreference, readPreferenceTags and"
            " maxStalenessSeconds in 'uri'; an empty readPreferenceTags= at the end admits any.",
        ) from error


def hello(client: Client, **options: Any) -> dict[str, Any]:
    """Return a member's `hello`, also from a server before 4.4.2 that knows only `isMaster`.

    Raises the driver's errors.
    """
    try:
        return client.admin.command("hello", **options)
    except pymongo.errors.OperationFailure as error:
        if error.code != _NO_SUCH_COMMAND:
            raise
    reply = client.admin.command("isMaster", **options)
    return {**reply, "isWritablePrimary": reply["ismaster"]}


def hello_of(uri: str, host: str, port: int) -> dict[str, Any] | None:
    """Return one member's own `hello`, or None if it does not answer in about 1.5 s."""
    try:
        direct = connect_directly(uri, _HELLO_TIMEOUT_MS, format_address(host, port))
        # Without this timeout, an open connection to a machine that is gone waits for a heartbeat.
        with pymongo.timeout(_HELLO_TIMEOUT_MS / 1000):
            return hello(direct)
    except (SourceUnreachable, pymongo.errors.PyMongoError):
        return None


def each_member(client: Client, uri: str) -> Iterator[Client]:
    """Yield a direct client of each member that is known now, for short commands.

    A member that is gone is waited for as long as for a `hello`. Raises SourceUnreachable and the
    driver's errors.
    """
    hello(client)  # The driver learns the members at the first command.
    for host, port in sorted(client.nodes):
        yield connect_directly(uri, _HELLO_TIMEOUT_MS, format_address(host, port or 27017))


def term_of(client: Client) -> int | None:
    """Return the term of the member that the driver takes for the primary; None if it is not one.

    Within one term there is one primary, and what it knows at a time is a prefix of what it knows
    later. Raises the driver's errors.
    """
    reply = hello(client)
    return int(reply["lastWrite"]["opTime"]["t"]) if reply.get("isWritablePrimary") else None
