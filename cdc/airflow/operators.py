"""Airflow operators that run the programs of this project by spark-submit."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from cdc.airflow.assets import changelog, mirror
from cdc.airflow.source import environment, uri_of
from cdc.errors import INTERRUPTED, LEFT, TERMINATED, ConflictsUnresolved, TransientError

PROGRAM = Path(__file__).with_name("scripts") / "program.py"
FLAGS = ("repair", "dry-run", "live", "available-now")
# Exit codes of a program after which a retry can succeed.
TRANSIENT = (TransientError.exit_code, ConflictsUnresolved.exit_code, INTERRUPTED, TERMINATED)


class ProgramOperator(SparkSubmitOperator):
    """Runs a program of `mongodb-cdc` on a pipeline; the base of the operators below.

    Airflow retries only what a retry may cure: the program was killed or lost its JVM, or ended
    with an exit code of `TRANSIENT`. Any other exit code fails the task at once. The deploy mode
    must be `client`. The task returns the JSON of the program, as its XCom, also if it fails
    because differences remain.

    Args:
        config: The pipeline's file, as the worker sees it; templated.
        arguments: The options of the program by name, such as `{"collection": "shop.orders"}`;
            templated. Empty, None and false values are omitted; a list repeats its option.
        source_conn_id: The Airflow connection to the source. Without it `config` alone names the
            source.
        uri_variable: The environment variable that passes the connection string of
            `source_conn_id` to the program. `config` must refer to it: `uri = "env:MONGODB_URI"`.
        options: Further arguments of SparkSubmitOperator.
    """

    template_fields = (*SparkSubmitOperator.template_fields, "config", "arguments")
    program = ""
    has_result = True

    def __init__(
        self,
        *,
        config: str,
        arguments: Mapping[str, Any] | None = None,
        source_conn_id: str | None = None,
        uri_variable: str = "MONGODB_URI",
        **options: Any,
    ) -> None:
        given = {"application": str(PROGRAM), "name": f"mongodb-cdc {self.program}", **options}
        super().__init__(**given)
        self.config, self.arguments = config, {} if arguments is None else arguments
        self.source_conn_id, self.uri_variable = source_conn_id, uri_variable

    def execute(self, context: Any) -> Any:
        self._require_client_mode()
        with TemporaryDirectory(prefix="mongodb-cdc-") as folder, environment(self._secrets()):
            code, result = Path(folder) / "exit-code", Path(folder) / "result.json"
            given = {**self.arguments, **self.own_arguments(context), "config": self.config}
            if self.has_result:
                given["json"] = str(result)
            self.application_args = [str(code), self.program, *_options(given)]
            try:
                super().execute(context)
            except AirflowException as error:
                self._require_success(_read(code), _read(result), context, error)
            return _read(result)

    def own_arguments(self, context: Any) -> dict[str, Any]:
        """Options that the operator adds to `arguments`."""
        return {}

    @property
    def is_left_a_result(self) -> bool:
        """Whether exit code 6 is a result, and no failure."""
        return False

    def _require_success(
        self, code: int | None, result: Any, context: Any, error: AirflowException
    ) -> None:
        """Raise an error unless the exit code is a result; one that Airflow retries or not."""
        if code is None or code in TRANSIENT:
            raise error
        if code == LEFT and result is not None:
            if self.is_left_a_result:
                return
            context["ti"].xcom_push(key="return_value", value=result)
        raise AirflowFailException(
            f"mongodb-cdc {self.program} ended with exit code {code}; its log says why."
        ) from error

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


class ReplicateOperator(ProgramOperator):
    """Processes the changes up to now, then ends: `mongodb-cdc replicate --available-now`.

    It copies first if there is no checkpoint, and continues from the checkpoint otherwise, also
    after a kill. At its end mirrors and histories contain all changes.

    Args:
        pipeline: The name of the pipeline in the assets of its tables.
        collections: Full names `db.coll`. The task has the assets of their changelogs and mirrors
            as its outlets; see `cdc.airflow.assets`.
        options: Arguments of `ProgramOperator`.
    """

    program = "replicate"
    has_result = False

    def __init__(
        self, *, pipeline: str = "", collections: Sequence[str] = (), **options: Any
    ) -> None:
        tables = [table(pipeline, each) for each in collections for table in (changelog, mirror)]
        super().__init__(**{**options, "outlets": [*options.get("outlets", ()), *tables]})

    def own_arguments(self, context: Any) -> dict[str, Any]:
        return {"available-now": True}


class VerifyOperator(ProgramOperator):
    """Compares collections with their mirrors: `mongodb-cdc verify`; differences fail the task."""

    program = "verify"


class MaintainOperator(ProgramOperator):
    """Compacts the tables and deletes unused files: `mongodb-cdc maintain`."""

    program = "maintain"


class BackfillOperator(ProgramOperator):
    """Reads documents, or the changes of a window, again: `mongodb-cdc backfill`.

    Retries of a task in a run add documents only once, however an earlier try ended.
    """

    program = "backfill"

    def own_arguments(self, context: Any) -> dict[str, Any]:
        task = context["ti"]
        return {"run-id": f"{task.dag_id}/{task.task_id}/{task.map_index}/{task.run_id}"}

    @property
    def is_left_a_result(self) -> bool:
        """A dry run reports what it would do."""
        return bool(self.arguments.get("dry-run"))


def _options(arguments: Mapping[str, Any]) -> Iterator[str]:
    """The arguments. An option and its value are one argument: no value looks like an option."""
    for name, value in arguments.items():
        if name in FLAGS:
            yield from [f"--{name}"] if value else []
        else:
            for each in value if isinstance(value, list | tuple) else [value]:
                yield from [f"--{name}={each}"] if each not in (None, "") else []


def _read(path: Path) -> Any:
    """The JSON in a file of the program; None if it wrote none."""
    return json.loads(path.read_text()) if path.exists() else None
