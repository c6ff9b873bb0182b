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
    is_srv = extra.pop("srv", False)
    login = quote_plus(connection.login or "")
    if connection.password:
        password = quote_plus(connection.password)
        mask_secret(password)
        login += f":{password}"
    uri = f"mongodb{'+srv' if is_srv else ''}://{login}{'@' if login else ''}"
    uri += connection.host or "localhost"
    if connection.port and not is_srv:  # DNS tells it then
        uri += f":{connection.port}"
    uri += f"/{connection.schema or ''}"
    if extra:
        uri += "?" + urlencode({name: _told(value) for name, value in extra.items()})
    mask_secret(uri)
    return uri


def _told(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
