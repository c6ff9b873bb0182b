"""Clients of deployments and of single members: the only module that opens connections.

All callers in a process share a client. It is opened again if the connection string or a TLS file
in it changes.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pymongo
import tenacity
from bson.codec_options import DatetimeConversion
from pymongo.server_description import ServerDescription
from pymongo.uri_parser import parse_uri

from cdc.errors import BadOption
from cdc.mongo.connection.connection_uri import (
    names_file,
    replace_hosts,
    resolve,
    shard_uri,
    stamp_tls_files,
    translate_uri_errors,
)

Client = pymongo.MongoClient[dict[str, Any]]
_APP_NAME = "mongodb-cdc"
# A member that answered a moment ago, and cannot be reached for this long, is replaced by another.
_GONE_MS = 3000
_AVOIDED_SECONDS = 600.0
_OVERWRITE_SECONDS = 1.0


def connect(uri: str, timeout_ms: int, shard: str = "") -> Client:
    """Return the client of a deployment that all callers in this process share.

    Does no I/O yet.

    Args:
        uri: the option `uri`, see `resolve`.
        timeout_ms: milliseconds to look for a server.
        shard: `name/host:port,…` for a client of that shard's replica set, see `shard_uri`.
    """
    return _open_settled(
        uri, lambda current: _connect(shard_uri(current, shard), timeout_ms, os.getpid())
    )


@functools.lru_cache(maxsize=64)
def _connect(uri: str, timeout_ms: int, pid: int) -> Client:  # a client must not cross a fork
    return _open_client(uri, _settings(timeout_ms))


def connect_directly(uri: str, timeout_ms: int, address: str) -> Client:
    """Return the shared client of the one member at `address` (`host:port`). Does no I/O yet."""
    return _open_settled(
        uri, lambda current: _connect_directly(current, timeout_ms, address, os.getpid())
    )


@functools.lru_cache(maxsize=256)
def _connect_directly(uri: str, timeout_ms: int, address: str, pid: int) -> Client:
    uri = replace_hosts(address, uri, "directConnection=true")
    settings = _settings(timeout_ms)
    settings["serverSelectionTimeoutMS"] = min(timeout_ms, _GONE_MS)
    return _open_client(uri, settings)


def _open_settled(uri: str, open_client: Callable[[str], Client]) -> Client:
    """Return a client for the connection string that `uri` names now.

    If that string, or a file in it, is invalid, both are read again for up to a second. A program
    that overwrites a file leaves it empty or incomplete for an instant.
    """
    settled = tenacity.Retrying(
        retry=tenacity.retry_if_exception(lambda e: isinstance(e, BadOption) and names_file(uri)),
        stop=tenacity.stop_after_delay(_OVERWRITE_SECONDS),
        wait=tenacity.wait_fixed(0.05),
        reraise=True,
    )
    return settled(lambda: open_client(current_uri(uri)))


def current_uri(uri: str) -> str:
    """Return the connection string that `uri` names now, see `resolve`.

    If it changed since the last call, or a TLS file in it was replaced, all cached clients are
    dropped. They would log in with the old credentials when they reconnect.
    """
    resolved = resolve(uri)
    state = resolved, stamp_tls_files(resolved)
    if _last_states.setdefault(uri, state) != state:
        _last_states[uri] = state
        drop_clients()
    return resolved


_last_states: dict[str, tuple[str, Any]] = {}


def drop_clients() -> None:
    """Drop the shared clients: the next call connects anew, with new connections."""
    _connect.cache_clear()
    _connect_directly.cache_clear()


def avoid(address: str) -> None:
    """Let the clients of this process select other members than this one for ten minutes.

    It is still selected where the read preference admits no other. The driver alone would select it
    again if it is the nearest one: a member that stands still goes on answering.

    Args:
        address: `host:port`, as the member names itself.
    """
    _avoided_since[address.lower()] = time.monotonic()  # as the driver writes it


_avoided_since: dict[str, float] = {}


def _omit_avoided(admitted: Sequence[ServerDescription]) -> Sequence[ServerDescription]:
    """Return the members to select from, of those that a read preference admits."""
    return [each for each in admitted if not is_avoided(format_address(*each.address))] or admitted


def is_avoided(address: str) -> bool:
    """Whether `avoid` was called for that member within the last ten minutes."""
    since = _avoided_since.get(address.lower())
    return since is not None and time.monotonic() - since < _AVOIDED_SECONDS


def format_address(host: str, port: int | None) -> str:
    """Return `host:port`, with the brackets of an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _open_client(uri: str, settings: Mapping[str, Any]) -> Client:
    # By default the driver ignores a misspelt option: `tls=yes` would mean no TLS.
    translate_uri_errors(functools.partial(parse_uri, uri, warn=False))
    return translate_uri_errors(
        lambda: pymongo.MongoClient(uri, **settings, **_default_key_password(uri))
    )


def _settings(timeout_ms: int) -> dict[str, Any]:
    return {
        "appname": _APP_NAME,
        "serverSelectionTimeoutMS": timeout_ms,
        "connectTimeoutMS": timeout_ms,
        # The driver would use it as the time that a getMore waits: an idle stream would answer only
        # after it, and every batch would take as long.
        "timeoutMS": None,
        # Each read sets its own level: a change stream accepts only majority (72).
        "readConcernLevel": None,
        "server_selector": _omit_avoided,
        "datetime_conversion": DatetimeConversion.DATETIME_AUTO,
    }


def _default_key_password(uri: str) -> dict[str, Any]:
    """An empty password for a TLS key without one in `uri`: else OpenSSL prompts the terminal."""
    has_key = "tlscertificatekeyfile=" in uri.lower()
    has_password = "tlscertificatekeyfilepassword=" in uri.lower()
    return {"tlsCertificateKeyFilePassword": ""} if has_key and not has_password else {}
