"""What the connector is compared with, in a process and a JVM of its own.

`mongodb-cdc` starts the JVM with fewer compilers than Spark does, because its work is done in
Python. For mongo-spark, whose work is done in Java, that would be slower. So each of the two runs
as its users start it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from pyspark.sql import SparkSession

from cdc.pipeline import session
from cdc.pipeline.spark.spark_session import LOCAL, ONE_COMPILER
from tests.bench import drains

TASKS = 2
# The newest in Maven Central.
_MONGO_SPARK = "org.mongodb.spark:mongo-spark-connector_2.13:10.5.0"
_JAVA = "spark.driver.extraJavaOptions"
# See docs/project/benchmarks.md.
SETTINGS = {"spark.driver.memory": "4g", "spark.python.unix.domain.socket.enabled": "true"}


class Peers:
    """Runs works of others, one at a time."""

    def __init__(self, process: drains.Pool) -> None:
        self._process = process

    def run(self, work: Callable[..., object], *arguments: Any) -> None:
        """Call a function of a module with the session of the peers, and these arguments."""
        self._process.submit(_run, work, *arguments).result()


@contextmanager
def peers() -> Iterator[Peers]:
    """The process starts Spark at its first work."""
    with drains.pool(1) as process:
        yield Peers(process)


def _run(work: Callable[..., object], *arguments: Any) -> None:
    work(_session(), *arguments)


@cache
def _session() -> SparkSession:
    java = LOCAL[_JAVA].replace(f"{ONE_COMPILER} ", "")
    own = {"spark.jars.packages": _MONGO_SPARK, _JAVA: java}
    return session("peers", f"local[{TASKS}]", {**SETTINGS, **own})
