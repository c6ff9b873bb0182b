"""Connection strings: where one stands, and how the same one leads to other hosts."""

from __future__ import annotations

import os
import pathlib
import re
from collections.abc import Callable
from functools import partial
from typing import TypeVar
from urllib.parse import quote_plus, unquote_plus

import pymongo.errors
from pymongo.uri_parser import parse_uri

from cdc.errors import BadOption
from cdc.model.uri import require_connection_string, require_given
from cdc.mongo.refusals import unusable

T = TypeVar("T")


def resolve(uri: str) -> str:
    """The connection string behind `env:NAME` or `file:PATH`, read anew at each call.

    Raises BadOption; the text of a connection string is never part of it.
    """
    require_given(uri)
    found = _read(uri)
    require_connection_string(found)
    return found


def _read(uri: str) -> str:
    if uri.startswith("env:"):
        value = os.environ.get(uri[4:], "")
        if not value:
            raise BadOption(
                f"The environment variable {uri[4:]} of 'uri' is not set.",
                f"Set it on each machine that connects: export {uri[4:]}='mongodb://…'.",
            )
        return value.strip()
    if uri.startswith("file:"):
        try:
            return pathlib.Path(uri[5:]).read_text().strip()
        except OSError as error:
            raise BadOption(
                f"The file {uri[5:]} of 'uri' cannot be read.",
                "Check that it is there for this user, on each machine that connects.",
            ) from error
        except UnicodeError:
            pass  # which holds what it could not read
        raise BadOption(f"The file {uri[5:]} of 'uri' is no text.", "Write it as UTF-8.")
    return uri


def understood(call: Callable[[], T]) -> T:
    """What the driver makes of a connection string.

    Raises BadOption, and SourceUnreachable where a name server does not tell what `mongodb+srv`
    leads to; neither has a cause, see `unusable`.
    """
    try:
        return call()
    except (pymongo.errors.PyMongoError, ValueError, OSError) as error:
        problem = unusable(error)
    raise problem


def stamp(uri: str) -> tuple[tuple[int, int, int] | None, ...]:
    """Another one whenever a file for TLS that a connection string names was replaced."""
    named = (unquote_plus(found[1]) for found in _FILES.finditer(uri))
    return tuple(_stamp(path) for path in named)


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        found = pathlib.Path(path).stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def of_shard(uri: str, shard: str) -> str:
    """The connection string of a shard's replica set (`name/host:port,…`, as `config.shards` has
    it), with everything else that `uri` says; `uri` itself without a shard."""
    if not shard:
        return uri
    name, _, hosts = shard.partition("/")
    return leading_to(hosts, uri, f"replicaSet={name}")


def leading_to(hosts: str, uri: str, how: str) -> str:
    """The connection string with other hosts; the user, and all options that do not say where the
    servers are, stay word for word. A driver's parsed options would not do: it does not take back
    what it gives (seconds for milliseconds, a number for a name). Raises SourceUnreachable."""
    scheme, _, rest = uri.partition("://")
    address, database, query = _URI.fullmatch(rest).groups("")  # type: ignore[union-attr]
    user, at, _ = address.rpartition("@")
    options = [o for o in re.split("[&;]", query) if o]
    names = [option.partition("=")[0].lower() for option in options]
    if scheme == "mongodb+srv":  # what that scheme implies, and what its DNS entry may add
        told = understood(partial(parse_uri, uri))["options"]
        if not {"tls", "ssl"} & set(names):
            options.append("tls=true")
        if "authsource" not in names and told.get("authSource"):
            options.append(f"authSource={quote_plus(told['authSource'])}")
    kept = [o for o in options if o.partition("=")[0].lower() not in _OWN_OPTIONS]
    return f"mongodb://{user}{at}{hosts}/{database}?{'&'.join([*kept, how])}"


_FILES = re.compile(r"[?&;](?:tlsCAFile|tlsCertificateKeyFile|tlsCRLFile)=([^&;]+)", re.IGNORECASE)
_URI = re.compile(r"([^/?]*)/?([^?]*)\??(.*)", re.DOTALL)
# Of the address that the user gave, not of the members or shards behind it.
_OWN_OPTIONS = frozenset(
    {"replicaset", "directconnection", "loadbalanced", "srvservicename", "srvmaxhosts"}
)
