"""A backfill as a task of Airflow: spark-submit runs it, its result becomes the task's XCom."""

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

PROGRAM = Path(__file__).parents[1] / "backfill.py"
FLAGS = ("repair", "dry-run")
# Exit codes of `jobs.result` with which another try is of use, and of what was killed.
_TRANSIENT = {3, 5, 130, 137, 143, -9, -15}
_CODE = re.compile(r"Error code is: (-?\d+)")


class BackfillOperator(SparkSubmitOperator):
    """Reads documents, or the changes of a window, again; see `mongodb-cdc backfill --help`.

    `config` is the pipeline's file, as the worker sees it, and `arguments` are backfill's options
    by their names, both templated: `{"collection": "shop.orders", "repair": True}`. What is empty,
    None or false is left out; a list repeats its option. With `source_conn_id`, the source's
    connection string is that connection's; it is handed over as the environment variable
    `uri_variable`, which `config` names: `uri = "env:MONGODB_URI"`.

    Everything else is SparkSubmitOperator's, in deploy mode `client`. Tries of one task of one run
    write once, whatever became of the tries before. Only what another try may cure is tried again.
    Returns backfill's JSON.
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
            told = {**self.arguments, "config": self.config, "run-id": run, "json": str(result)}
            self.application_args = list(_options(told))
            try:
                super().execute(context)
            except AirflowException as error:
                if not (result.exists() and self._is_dry):
                    raise _final(error) from error
            return json.loads(result.read_text())

    @property
    def _is_dry(self) -> bool:
        """What a dry run would do is its result, and no failure."""
        return bool(self.arguments.get("dry-run"))

    def _require_client_mode(self) -> None:
        """Elsewhere, neither the environment nor the result's file is the driver's."""
        connection = BaseHook.get_connection(self._conn_id)
        if "cluster" in (self._deploy_mode, connection.extra_dejson.get("deploy-mode")):
            raise AirflowFailException(
                f"{self.task_id} runs in deploy mode 'client' only. Remedy: set it in connection"
                f" {self._conn_id}, or as deploy_mode."
            )

    def _secrets(self) -> dict[str, str]:
        if self.source_conn_id is None:
            return {}
        return {self.uri_variable: uri_of(BaseHook.get_connection(self.source_conn_id))}


def _options(arguments: Mapping[str, Any]) -> Iterator[str]:
    """Each one argument, so that no value is ever taken for an option."""
    for name, value in arguments.items():
        if name in FLAGS:
            yield from [f"--{name}"] if value else []
        else:
            for each in value if isinstance(value, list | tuple) else [value]:
                yield from [f"--{name}={each}"] if each not in (None, "") else []


def _final(error: AirflowException) -> AirflowException:
    """The error as it is, if another try may succeed; else one behind which there is none."""
    code = _CODE.search(str(error))
    is_final = code is not None and int(code[1]) not in _TRANSIENT
    return AirflowFailException(str(error)) if is_final else error


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """This process's environment, which spark-submit inherits. An operator's `env_vars` are shown
    in Airflow as its rendered template, and, on YARN and Kubernetes, in the list of processes."""
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
