"""Connection strings: resolving them, and pointing them at other hosts."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Callable
from functools import partial
from typing import TypeVar
from urllib.parse import quote_plus, unquote_plus

import pymongo.errors
from pymongo.uri_parser import parse_uri

from cdc.model import require_connection_string, require_uri
from cdc.mongo.connection.unreachable import explain_unusable_uri
from cdc.secrets import read_secret

T = TypeVar("T")


def resolve(uri: str) -> str:
    """Return the connection string that `env:NAME` or `file:PATH` names.

    The variable or the file is read at each call. Raises BadOption, whose text never contains any
    part of a connection string.
    """
    require_uri(uri)
    resolved = read_secret(uri, "uri", "mongodb://…")
    require_connection_string(resolved)
    return resolved


def translate_uri_errors(call: Callable[[], T]) -> T:
    """Return what `call` returns; it passes a connection string to the driver.

    Raises BadOption if the string is wrong, and SourceUnreachable if DNS does not resolve the name
    of `mongodb+srv`. Neither has a cause, see `explain_unusable_uri`.
    """
    try:
        return call()
    except (pymongo.errors.PyMongoError, ValueError, OSError) as error:
        problem = explain_unusable_uri(error)
    raise problem


def names_file(uri: str) -> bool:
    """Whether the option `uri` may depend on a file: its own, or one for TLS."""
    return not uri.startswith("mongodb") or _FILES.search(uri) is not None


def stamp_tls_files(uri: str) -> tuple[tuple[int, int, int] | None, ...]:
    """Return a value that changes when a TLS file named in a connection string is replaced."""
    paths = (unquote_plus(match[1]) for match in _FILES.finditer(uri))
    return tuple(_stamp(path) for path in paths)


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        status = pathlib.Path(path).stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def shard_uri(uri: str, shard: str) -> str:
    """Return the connection string of a shard's replica set.

    Everything in `uri` but its hosts is taken over. Without a shard, `uri` itself is returned.

    Args:
        uri: the resolved connection string of the cluster.
        shard: `name/host:port,…`, as in `config.shards`, or the empty string.
    """
    if not shard:
        return uri
    name, _, hosts = shard.partition("/")
    return replace_hosts(hosts, uri, f"replicaSet={name}")


def replace_hosts(hosts: str, uri: str, option: str) -> str:
    """Return the connection string with other hosts and one more option.

    The user, and every option that does not describe where the servers are, are copied as text. The
    driver's parsed options cannot be used instead. The driver does not accept its own output:
    seconds for milliseconds, a number for a name.

    Args:
        hosts: `host:port,…`.
        uri: the resolved connection string to change.
        option: the option that goes with the new hosts, such as `directConnection=true`.

    Raises SourceUnreachable if DNS does not resolve the name of `mongodb+srv`.
    """
    scheme, _, rest = uri.partition("://")
    address, database, query = _URI.fullmatch(rest).groups("")  # type: ignore[union-attr]
    user, at, _ = address.rpartition("@")
    options = [o for o in re.split("[&;]", query) if o]
    names = [each.partition("=")[0].lower() for each in options]
    if scheme == "mongodb+srv":  # what that scheme implies, and what its DNS entry may add
        parsed = translate_uri_errors(partial(parse_uri, uri))["options"]
        if not {"tls", "ssl"} & set(names):
            options.append("tls=true")
        if "authsource" not in names and parsed.get("authSource"):
            options.append(f"authSource={quote_plus(parsed['authSource'])}")
    copied = [o for o in options if o.partition("=")[0].lower() not in _OWN_OPTIONS]
    return f"mongodb://{user}{at}{hosts}/{database}?{'&'.join([*copied, option])}"


_FILES = re.compile(r"[?&;](?:tlsCAFile|tlsCertificateKeyFile|tlsCRLFile)=([^&;]+)", re.IGNORECASE)
_URI = re.compile(r"([^/?]*)/?([^?]*)\??(.*)", re.DOTALL)
# These describe the address that the user gave, not its members or shards.
_OWN_OPTIONS = frozenset(
    {"replicaset", "directconnection", "loadbalanced", "srvservicename", "srvmaxhosts"}
)
