"""Spark's session of a program: its JVM, jars and settings, and the object stores that it reaches.

In: settings and a pipeline. Out: a session with Delta. `session` starts a JVM unless one runs, or
spark-submit brought one.
"""

from cdc.pipeline.spark.jvm import skip_discovery
from cdc.pipeline.spark.object_storage import connect, mismatch
from cdc.pipeline.spark.preparation import prepare
from cdc.pipeline.spark.spark_session import end, session, under_spark_submit
from cdc.pipeline.spark.start_cache import has_default

__all__ = [
    "connect",
    "end",
    "has_default",
    "mismatch",
    "prepare",
    "session",
    "skip_discovery",
    "under_spark_submit",
]
