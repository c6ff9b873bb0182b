"""Airflow operator that runs a backfill by spark-submit."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote_plus, urlencode

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from airflow.sdk.log import mask_secret

PROGRAM = Path(__file__).with_name("scripts") / "backfill.py"
FLAGS = ("repair", "dry-run")
# Exit codes after which a retry can succeed: those of `cdc.cli.commands`, and those of a kill.
_TRANSIENT = {3, 5, 130, 137, 143, -9, -15}
_CODE = re.compile(r"Error code is: (-?\d+)")


class BackfillOperator(SparkSubmitOperator):
    """Reads documents, or the changes of a window, again; see `mongodb-cdc backfill --help`.

    The task returns the JSON of `backfill`, as its XCom. Retries of a task in a run add documents
    only once, however an earlier try ended. Airflow retries only errors that a retry may cure. The
    deploy mode must be `client`.

    Args:
        config: The pipeline's file, as the worker sees it; templated.
        arguments: The options of `backfill` by name, such as
            `{"collection": "shop.orders", "repair": True}`; templated. Empty, None and false values
            are omitted; a list repeats its option.
        source_conn_id: The Airflow connection to the source. Without it `config` alone names the
            source.
        uri_variable: The environment variable that passes the connection string of
            `source_conn_id` to the program. `config` must refer to it: `uri = "env:MONGODB_URI"`.
        options: Further arguments of SparkSubmitOperator.
    """

    template_fields = (*SparkSubmitOperator.template_fields, "config", "arguments")

    def __init__(
        self,
        *,
        config: str,
        arguments: Mapping[str, Any],
        source_conn_id: str | None = None,
        uri_variable: str = "MONGODB_URI",
        **options: Any,
    ) -> None:
        given = {"application": str(PROGRAM), "name": "mongodb-cdc backfill", **options}
        super().__init__(**given)
        self.config, self.arguments = config, arguments
        self.source_conn_id, self.uri_variable = source_conn_id, uri_variable

    def execute(self, context: Any) -> Any:
        self._require_client_mode()
        task = context["ti"]
        run = f"{task.dag_id}/{task.task_id}/{task.map_index}/{task.run_id}"
        with TemporaryDirectory(prefix="mongodb-cdc-") as folder, _environment(self._secrets()):
            result = Path(folder) / "result.json"
            given = {**self.arguments, "config": self.config, "run-id": run, "json": str(result)}
            self.application_args = list(_options(given))
            try:
                super().execute(context)
            except AirflowException as error:
                if not (result.exists() and self._is_dry):
                    raise _without_retry(error) from error
            return json.loads(result.read_text())

    @property
    def _is_dry(self) -> bool:
        """Whether the run writes nothing. Its exit code 6 is a result then, not a failure."""
        return bool(self.arguments.get("dry-run"))

    def _require_client_mode(self) -> None:
        """Raise an error in deploy mode `cluster`, where the driver runs on another machine.

        There it has neither this process's environment nor the folder of the result's file.
        """
        connection = BaseHook.get_connection(self._conn_id)
        if "cluster" in (self._deploy_mode, connection.extra_dejson.get("deploy-mode")):
            raise AirflowFailException(
                f"{self.task_id} needs the deploy mode 'client'. Remedy: set it in connection"
                f" {self._conn_id}, or as deploy_mode."
            )

    def _secrets(self) -> dict[str, str]:
        if self.source_conn_id is None:
            return {}
        return {self.uri_variable: uri_of(BaseHook.get_connection(self.source_conn_id))}


def _options(arguments: Mapping[str, Any]) -> Iterator[str]:
    """The arguments. An option and its value are one argument: no value looks like an option."""
    for name, value in arguments.items():
        if name in FLAGS:
            yield from [f"--{name}"] if value else []
        else:
            for each in value if isinstance(value, list | tuple) else [value]:
                yield from [f"--{name}={each}"] if each not in (None, "") else []


def _without_retry(error: AirflowException) -> AirflowException:
    """The same error if a retry may succeed; else an error that Airflow does not retry."""
    code = _CODE.search(str(error))
    is_final = code is not None and int(code[1]) not in _TRANSIENT
    return AirflowFailException(str(error)) if is_final else error


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
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
