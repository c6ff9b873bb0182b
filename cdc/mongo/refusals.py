"""Why there is no connection, in sentences that name the option of `uri` to look at.

The driver tells it in texts of its own and of OpenSSL, which are the same in all versions that we
take. They are read for what they mean, and never passed on: one about a connection string quotes
it, and that may be the password.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from dns.exception import DNSException

from cdc.errors import BadOption, CdcError, SourceUnreachable

if TYPE_CHECKING:
    from cdc.mongo.client import Client

_log = logging.getLogger(__name__)
_PATIENCE_SECONDS = 3.0


class Reason(NamedTuple):
    """What is the matter, and what to do."""

    message: str
    remedy: str


_FILE, _CA = "tlsCertificateKeyFile", "tlsCAFile"
# Else a member that is down may be no more than the reason why there is no primary.
_NONE_KNOWN = r"(?s)\A(?!.*(?:RSPrimary|RSSecondary|RSOther|RSArbiter|Mongos)).*"
_UNREACHABLE = (
    (
        r"Hostname mismatch|IP address mismatch|doesn't match",
        "the server's certificate is not for the host name that it was called by",
        "Call it in 'uri', and its members in the replica set's configuration, by a name in the"
        " certificate, or have one issued for that name.",
    ),
    (
        r"verify failed: certificate has expired",
        "the server's certificate has expired",
        "Have it renewed, or check this machine's clock.",
    ),
    (
        r"CERTIFICATE_VERIFY_FAILED",
        "the server's certificate is of a CA that is not trusted here",
        f"Let {_CA} in 'uri' name the file with the certificate of the server's CA, on each machine"
        " that connects.",
    ),
    (
        r"WRONG_VERSION_NUMBER|RECORD_LAYER_FAILURE",
        "the server does not speak TLS",
        "Take tls out of 'uri', or turn it on at the server.",
    ),
    (
        r"UNEXPECTED_EOF|EOF occurred",  # as of a server that goes down in the handshake
        "the server ended the connection in the TLS handshake",
        "Check that the server is up and speaks TLS; if it does not, take tls out of 'uri'.",
    ),
    (
        r"ALERT|SSL",
        "the server broke off the TLS handshake",
        f"Check {_FILE} in 'uri': whether the server wants one, whether it has expired and whether"
        " its CA is the server's; the server's log says which.",
    ),
    (
        r"connection closed|[Cc]onnection reset|Broken pipe",
        "the server ends each connection at once, as it does with one without TLS, or without a"
        " certificate that it accepts",
        f"Check tls and {_FILE} in 'uri': whether the server wants one, whether it has expired and"
        " whether its CA is the server's; the server's log says which.",
    ),
    (
        _NONE_KNOWN + r"RSGhost",
        "the server was started with --replSet and belongs to no replica set yet",
        "Run rs.initiate() once, in mongosh on that server; one member is enough.",
    ),
    (
        r"servers: \[\]",
        "no server in 'uri' is a member of the replica set that its replicaSet names",
        "Correct replicaSet in 'uri', or leave it out to learn what is there.",
    ),
    (
        _NONE_KNOWN + r"(?:Name or service not known|name resolution|No address associated)",
        "no machine is known by the name in {where}",
        "Correct the host in 'uri'; where it is not from there, but from the replica set's"
        " configuration (rs.conf()), let each machine that connects know that name.",
    ),
    (
        _NONE_KNOWN + r"Connection refused",
        "nothing listens at {where}",
        "Correct host and port in 'uri', or start the server; where they are not from there, but"
        " from the replica set's configuration (rs.conf()), correct them there.",
    ),
    (
        _NONE_KNOWN + r"(?:timed out|No route to host|Network is unreachable)",
        "there is no answer from {where}",
        "Check host and port in 'uri', and firewalls and VPN on the way.",
    ),
)
_SERVER = re.compile(
    r"<ServerDescription \('([^']*)', (\w+)\)(.*?)(?=<ServerDescription|\Z)", re.DOTALL
)
NO_ANSWER = Reason(
    "no suitable server answered in time",
    "Check host, port, TLS and replicaSet in 'uri', and that the server is up.",
)


def unreachable(text: str) -> Reason:
    """Why no server was found, by what the driver says of it."""
    for pattern, message, remedy in _UNREACHABLE:
        if re.search(pattern, text):
            return Reason(message.format(where=_where(text, pattern)), remedy)
    return NO_ANSWER


def _where(text: str, pattern: str) -> str:
    """The servers of which the driver says it; those that a replica set names are not always those
    of 'uri'."""
    found = _SERVER.findall(text)
    return ", ".join(f"{host}:{port}" for host, port, said in found if re.search(pattern, said))


def unusable(error: Exception) -> CdcError:
    """For what the driver raises for a connection string, or for the files that it names. To be
    raised without a cause: its text may quote the password, and Spark prints whole chains."""
    if isinstance(error.__cause__, DNSException):
        return SourceUnreachable(
            "No name server tells which servers the name in 'uri' stands for.",
            "Check that name, which mongodb+srv looks up, and this machine's DNS.",
        )
    if isinstance(error, OSError) and error.filename is not None:
        return BadOption(
            f"The file {error.filename}, which 'uri' names, cannot be read.",
            f"Check {_CA} and {_FILE}: they are read on each machine that connects.",
        )
    if isinstance(error, OSError) or "Private key" in str(error):
        return BadOption(
            "The files for TLS that 'uri' names cannot be used.",
            f"Let {_CA} name certificates in PEM, {_FILE} a certificate with its key in one file,"
            f" and {_FILE}Password, percent-encoded, the password of that key.",
        )
    return BadOption(
        "Option 'uri' is not a MongoDB connection string, or has an option that there is not.",
        "Write it as mongodb://user:password@host:port/?replicaSet=name, percent-encoding user and"
        " password, and check the names and values behind the question mark.",
    )


@contextmanager
def logged_if_slow(client: Client, timeout_ms: int) -> Iterator[None]:
    """Logs once why no server answers, if the block takes more than a few seconds.

    The driver goes on looking for a server whatever is wrong, and reports only at its timeout.
    """

    def log() -> None:
        reason = unreachable(repr(client.topology_description))
        _log.warning(
            "%s; looking for a server for %g s (server.timeout.ms)",
            "there is no answer yet" if reason is NO_ANSWER else reason.message,
            timeout_ms / 1000,
        )

    timer = threading.Timer(_PATIENCE_SECONDS, log)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
