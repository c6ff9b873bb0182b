"""A task that waits until tables are fresh enough, without a worker meanwhile."""

from __future__ import annotations

import asyncio
import os
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

from airflow.sdk import BaseHook, BaseOperator
from airflow.sdk.exceptions import AirflowFailException
from airflow.triggers.base import BaseTrigger, TriggerEvent

from cdc.airflow.operators import TRANSIENT
from cdc.airflow.source import uri_of
from cdc.errors import LEFT


class WaitOperator(BaseOperator):
    """Waits until all tables of a pipeline contain all changes before a time.

    A `replicate` elsewhere makes them so. The task is deferred: the triggerer of Airflow runs
    `mongodb-cdc status --contains`, which starts no Spark, and no worker is occupied meanwhile. The
    triggerer needs what workers need: a `PYSPARK_PYTHON` whose environment has this project, and
    the file and tables of the pipeline. An error that a retry cannot cure fails the task at once.

    Args:
        config: The pipeline's file, as the triggerer sees it; templated.
        until: The time, in ISO-8601 or as `t:i`; templated. Default: the end of the data interval.
        interval: How long to wait between two looks.
        timeout: How long to wait in all; no limit by default.
        source_conn_id: See `ProgramOperator`.
        uri_variable: See `ProgramOperator`.
        options: Further arguments of BaseOperator.
    """

    template_fields = ("config", "until")

    def __init__(
        self,
        *,
        config: str,
        until: str = "{{ data_interval_end.strftime('%Y-%m-%dT%H:%M:%SZ') }}",
        interval: timedelta = timedelta(seconds=30),
        timeout: timedelta | None = None,
        source_conn_id: str | None = None,
        uri_variable: str = "MONGODB_URI",
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.config, self.until = config, until
        self.interval, self.timeout = interval, timeout
        self.source_conn_id, self.uri_variable = source_conn_id, uri_variable

    def execute(self, context: Any) -> None:
        trigger = ContainsTrigger(
            self.config,
            self.until,
            self.interval.total_seconds(),
            self.source_conn_id,
            self.uri_variable,
        )
        self.defer(trigger=trigger, method_name="resume", timeout=self.timeout)

    def resume(self, context: Any, event: dict[str, Any]) -> None:
        """End the task: the wait is over."""
        if event["code"]:
            raise AirflowFailException(
                f"mongodb-cdc status ended with exit code {event['code']}: {event['error']}"
            )


class ContainsTrigger(BaseTrigger):
    """Fires when `mongodb-cdc status --contains` succeeds, or fails for good.

    Its event has the exit code and the error of the program.
    """

    def __init__(
        self,
        config: str,
        until: str,
        seconds: float,
        source_conn_id: str | None,
        uri_variable: str,
    ) -> None:
        super().__init__()
        self._given: dict[str, Any] = {
            "config": config,
            "until": until,
            "seconds": seconds,
            "source_conn_id": source_conn_id,
            "uri_variable": uri_variable,
        }

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{type(self).__module__}.{type(self).__name__}", self._given

    async def run(self) -> AsyncIterator[TriggerEvent]:
        while True:
            code, error = await self._look()
            if code != LEFT and code not in TRANSIENT and code >= 0:
                yield TriggerEvent({"code": code, "error": error})
                return
            await asyncio.sleep(self._given["seconds"])

    async def _look(self) -> tuple[int, str]:
        """Exit code and error of the program; the code is negative if it was killed."""
        environment = {**os.environ}
        if (name := self._given["source_conn_id"]) is not None:
            environment[self._given["uri_variable"]] = uri_of(await BaseHook.aget_connection(name))
        program = await asyncio.create_subprocess_exec(
            *(os.environ.get("PYSPARK_PYTHON", "python3"), "-m", "cdc.cli.status"),
            *(f"--config={self._given['config']}", f"--contains={self._given['until']}"),
            env=environment,
            stdout=DEVNULL,
            stderr=PIPE,
        )
        try:
            _, error = await program.communicate()
        finally:
            if program.returncode is None:  # the trigger is cancelled
                program.kill()
        assert program.returncode is not None
        return program.returncode, error.decode(errors="replace").strip()
