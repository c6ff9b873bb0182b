"""A connection of Airflow as a connection string of MongoDB."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote_plus, urlencode

from airflow.sdk.log import mask_secret


def uri_of(connection: Any) -> str:
    """`mongodb://login:password@host:port/schema?extra`, as the Mongo provider reads it.

    `host` may list several, each with its port; `{"srv": true}` among the extras makes it
    `mongodb+srv`, all others are options of the connection string. From here on Airflow's logs
    mask the string, and the password as it stands in it.
    """
    extra = dict(connection.extra_dejson)
    scheme = "mongodb+srv" if extra.pop("srv", False) else "mongodb"
    login = ""
    if connection.login:
        password = quote_plus(connection.password or "")
        mask_secret(password)
        login = f"{quote_plus(connection.login)}:{password}@"
    port = f":{connection.port}" if connection.port else ""
    options = urlencode({name: _told(value) for name, value in extra.items()})
    hosts, database = f"{connection.host or 'localhost'}{port}", connection.schema or ""
    uri = f"{scheme}://{login}{hosts}/{database}{'?' if options else ''}{options}"
    mask_secret(uri)
    return uri


def _told(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
