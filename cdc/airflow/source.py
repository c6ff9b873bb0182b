"""The connection string of a source: from a connection of Airflow, for a program."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote_plus, urlencode

from airflow.sdk.log import mask_secret


def uri_of(connection: Any) -> str:
    """The connection string of a Mongo connection, read as the Mongo provider reads it.

    It has the form `mongodb://login:password@host:port/schema?extra`. `host` may list several
    hosts, each with its port. The extra `{"srv": true}` selects `mongodb+srv`; all other extras are
    options of the connection string. After the call Airflow masks the string, and the quoted
    password, in its logs.
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
    if connection.port and not is_srv:  # with srv the port comes from DNS
        uri += f":{connection.port}"
    uri += f"/{connection.schema or ''}"
    if extra:
        uri += "?" + urlencode({name: _option_text(value) for name, value in extra.items()})
    mask_secret(uri)
    return uri


def _option_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables in this process's environment, which spark-submit inherits.

    `env_vars` of the operator would show the values: Airflow shows them as a rendered template,
    and YARN and Kubernetes pass them in command lines.
    """
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
