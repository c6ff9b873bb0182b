"""The Python processes of a local Spark: forks of one process, see `cdc.fork_server`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress

from cdc.fork_server import ForkServer
from cdc.pipeline.spark.start_cache import runs_this_interpreter

# What the processes of a stream of this source import, without the modules that they run.
_IMPORTED = (
    *("pyspark.worker", "pyspark.sql.worker.plan_data_source_read"),
    *("pyspark.sql.worker.create_data_source", "cdc.source", "cdc.tasks"),
    "pandas",  # by the first array that PyArrow makes
)
# NumPy and PyArrow's allocator start threads otherwise, which a fork would lack. The seed of hashes
# is Spark's.
_ENVIRONMENT = {
    "OPENBLAS_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "PYTHONHASHSEED": "0",
}
_OF_EXECUTORS = "spark.executorEnv."
_running: list[ForkServer] = []


def fork_server(settings: Mapping[str, str]) -> ForkServer | None:
    """Return the server of this process, which is started at the first call.

    None if Spark is to use another interpreter, or if there can be no server here: each process
    then imports by itself.

    Args:
        settings: Spark's, of which the environment of executors counts here.
    """
    if sys.platform != "linux" or not runs_this_interpreter(settings):
        return None
    if not _running:
        of_executors = {
            name.removeprefix(_OF_EXECUTORS): value
            for name, value in settings.items()
            if name.startswith(_OF_EXECUTORS)
        }
        with suppress(OSError):
            _running.append(ForkServer(_IMPORTED, of_executors | _ENVIRONMENT))
    return next(iter(_running), None)


def end_fork_server() -> None:
    """End the server if there is one. A later session starts another."""
    while _running:
        _running.pop().end()
