"""Reasons for a missing connection, with the option of `uri` to correct.

The reasons are found in the texts of the driver and of OpenSSL, which are the same in all supported
versions. These texts are never passed on. A text about a connection string quotes part of it, which
may be the password.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from dns.exception import DNSException
from pymongo import MongoClient

from cdc.errors import BadOption, CdcError, SourceUnreachable

_log = logging.getLogger(__name__)
_PATIENCE_SECONDS = 3.0


class Reason(NamedTuple):
    """What is wrong, as a clause, and what to do, as a sentence."""

    message: str
    remedy: str


_FILE, _CA = "tlsCertificateKeyFile", "tlsCAFile"
# Matches only if no member was reached. Otherwise, a member that is down may only be the reason why
# there is no primary.
_NONE_KNOWN = r"(?s)\A(?!.*(?:RSPrimary|RSSecondary|RSOther|RSArbiter|Mongos)).*"
_UNREACHABLE = (
    (
        r"Hostname mismatch|IP address mismatch|doesn't match",
        "the server's certificate is not for the host name that the connection used",
        "Use a name from the certificate in 'uri' and, for members, in the replica set's"
        " configuration, or issue a certificate for that name.",
    ),
    (
        r"verify failed: certificate has expired",
        "the server's certificate has expired",
        "Renew it, or correct this machine's clock.",
    ),
    (
        r"CERTIFICATE_VERIFY_FAILED",
        "the server's certificate was issued by a CA that is not trusted here",
        f"Set {_CA} in 'uri' to a file with the certificate of the server's CA, on each machine"
        " that connects.",
    ),
    (
        r"WRONG_VERSION_NUMBER|RECORD_LAYER_FAILURE",
        "the server does not use TLS",
        "Remove tls from 'uri', or enable TLS on the server.",
    ),
    (
        r"UNEXPECTED_EOF|EOF occurred",  # also of a server that shuts down during the handshake
        "the server closed the connection during the TLS handshake",
        "Check that the server is up and uses TLS; if it does not, remove tls from 'uri'.",
    ),
    (
        r"ALERT|SSL",
        "the server aborted the TLS handshake",
        f"Check {_FILE} in 'uri': whether the server requires one, whether it has expired and"
        " whether its CA is the server's; the server's log says which.",
    ),
    (
        r"connection closed|[Cc]onnection reset|Broken pipe",
        "the server closes each connection at once, as it does with one without TLS, or without a"
        " certificate that it accepts",
        f"Check tls and {_FILE} in 'uri': whether the server requires one, whether it has expired"
        " and whether its CA is the server's; the server's log says which.",
    ),
    (
        _NONE_KNOWN + r"RSGhost",
        "the server was started with --replSet but does not belong to a replica set yet",
        "Run rs.initiate() once, in mongosh on that server; one member is enough.",
    ),
    (
        r"servers: \[\]",
        "no server in 'uri' is a member of the replica set that its option replicaSet names",
        "Correct replicaSet in 'uri', or remove it to see which replica set the servers belong to.",
    ),
    (
        _NONE_KNOWN + r"(?:Name or service not known|name resolution|No address associated)",
        "the host name cannot be resolved: {where}",
        "Correct the host in 'uri'; if it comes from the replica set's configuration (rs.conf()),"
        " make that name known to each machine that connects.",
    ),
    (
        _NONE_KNOWN + r"Connection refused",
        "nothing listens at {where}",
        "Correct host and port in 'uri', or start the server; if they come from the replica set's"
        " configuration (rs.conf()), correct them there.",
    ),
    (
        _NONE_KNOWN + r"(?:timed out|No route to host|Network is unreachable)",
        "{where} does not answer",
        "Check host and port in 'uri', and the firewalls and VPN in between.",
    ),
)
_SERVER = re.compile(
    r"<ServerDescription \('([^']*)', (\w+)\)(.*?)(?=<ServerDescription|\Z)", re.DOTALL
)
NO_ANSWER = Reason(
    "no suitable server answered in time",
    "Check host, port, TLS and replicaSet in 'uri', and that the server is up.",
)


def explain_unreachable(text: str) -> Reason:
    """Find in the driver's text why it found no suitable server."""
    for pattern, message, remedy in _UNREACHABLE:
        if re.search(pattern, text):
            return Reason(message.format(where=_addresses(text, pattern)), remedy)
    return NO_ANSWER


def _addresses(text: str, pattern: str) -> str:
    """The servers whose description matches; a replica set may name others than those of 'uri'."""
    servers = _SERVER.findall(text)
    return ", ".join(f"{host}:{port}" for host, port, state in servers if re.search(pattern, state))


def explain_unusable_uri(error: Exception) -> CdcError:
    """Return our error for what the driver raises about a connection string or a file in it.

    The caller must raise it without a cause: the driver's text may quote the password, and Spark
    prints whole chains.
    """
    if isinstance(error.__cause__, DNSException):
        return SourceUnreachable(
            "DNS does not resolve the name in 'uri' to servers.",
            "Check that name, which mongodb+srv looks up, and this machine's DNS.",
        )
    if isinstance(error, OSError) and error.filename is not None:
        return BadOption(
            f"The file {error.filename}, which 'uri' names, cannot be read.",
            f"Check {_CA} and {_FILE}: they are read on each machine that connects.",
        )
    if isinstance(error, OSError) or "Private key" in str(error):
        return BadOption(
            "The TLS files that 'uri' names cannot be used.",
            f"Set {_CA} to a file of certificates in PEM, {_FILE} to one file with a certificate"
            f" and its key, and {_FILE}Password to the password of that key, percent-encoded.",
        )
    return BadOption(
        "Option 'uri' is not a MongoDB connection string, or has an unknown or invalid option.",
        "Write it as mongodb://user:password@host:port/?replicaSet=name, percent-encode user and"
        " password, and check the names and values after the question mark.",
    )


@contextmanager
def log_if_slow(client: MongoClient[Any], timeout_ms: int) -> Iterator[None]:
    """Log once why no server answers, if the block takes more than 3 s.

    The driver looks for a server until its timeout, whatever is wrong, and reports only then.
    """

    def log() -> None:
        reason = explain_unreachable(repr(client.topology_description))
        _log.warning(
            "%s; looking for a server for %g s (server.timeout.ms)",
            "no server has answered yet" if reason is NO_ANSWER else reason.message,
            timeout_ms / 1000,
        )

    timer = threading.Timer(_PATIENCE_SECONDS, log)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
