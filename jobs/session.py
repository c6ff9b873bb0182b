"""The one place that builds Spark's settings, for plain Python and for spark-submit.

In plain Python the settings go into the JVM that `session` starts. Under spark-submit the JVM is
up before the program, too late for jars and extensions: there they come from
`--properties-file conf/spark-defaults.conf`, which a test holds equal to `SETTINGS`.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any

from delta import configure_spark_with_delta_pip
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from cdc.errors import CdcError
from cdc.model.uri import CONNECTION_STRING
from jobs.jvm import end_jvm, start_jvm

DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
DELTA_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"

SETTINGS = {
    "spark.sql.extensions": DELTA_EXTENSION,
    "spark.sql.catalog.spark_catalog": DELTA_CATALOG,
    # Delta asks for these, and Spark ships them all, newer and in its own class path: 70 MB that
    # would be downloaded to be ignored.
    "spark.jars.excludes": ",".join(
        f"{group}:*"
        for group in (
            "com.fasterxml.jackson.core",
            "com.fasterxml.jackson.datatype",
            "com.github.luben",
            "commons-logging",
            "commons-pool",
            "io.airlift",
            "org.apache.hadoop",
            "org.apache.logging.log4j",
            "org.apache.parquet",
            "org.roaringbitmap",
            "org.slf4j",
            "org.xerial.snappy",
        )
    ),
    # A micro-batch is small: with Spark's 200 each MERGE would be mostly the start of empty tasks.
    "spark.sql.shuffle.partitions": "8",
    # A batch into a changelog and a mirror takes more pieces of generated code than the hundred
    # that Spark keeps by default: each would be compiled anew in each batch.
    "spark.sql.codegen.cache.maxEntries": "1000",
    # A batch is kept for as long as it is written: to compress it takes longer than that saves.
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
    # A run that is killed while it plans its first batch leaves the beginning of a file, and Spark
    # would refuse the next one. A job looks at its checkpoint itself.
    "spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart": "false",
    # Large buffers go back to the system as soon as they are free: a task takes a third less memory
    # with events of many megabytes.
    "spark.executorEnv.MALLOC_MMAP_THRESHOLD_": "2097152",
    "spark.executorEnv.ARROW_DEFAULT_MEMORY_POOL": "system",
    # The driver keeps what it would show of past queries: by default a thousand plans of any
    # length, and that of a MERGE is a long text.
    "spark.sql.ui.retainedExecutions": "50",
    "spark.sql.maxPlanStringLength": "100000",
    # Spark shows a source's options in some plans, in its UI and its event log; and there, too, the
    # command line of the JVM, under spark-submit with the arguments of the program.
    "spark.redaction.regex": "(?i)secret|password|token|access[.]?key|mongodb([+]srv)?://",
    "spark.redaction.string.regex": CONNECTION_STRING,
    "spark.sql.redaction.options.regex": "(?i)ur[il]",
    # cluster_time is a moment, and shows the same on every machine.
    "spark.sql.session.timeZone": "UTC",
}

# Only where driver and executors are one process.
LOCAL = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Delta reads a table's log in 50 tasks: on one machine, 50 times nothing.
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.driver.extraJavaOptions": "-Dlog4j2.configurationFile="
    + Path(__file__).with_name("log4j2.properties").as_uri(),
}


@contextmanager
def _ctrl_c_kept() -> Iterator[None]:
    """Spark's context takes Ctrl-C for itself, and would ask its JVM something in the midst of
    another question. A program that has it keeps it."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        is_own = callable(handler) and handler is not signal.default_int_handler
        if is_own and current_thread() is main_thread():
            signal.signal(signal.SIGINT, handler)


@_ctrl_c_kept()
def session(
    app_name: str, master: str | None = None, extra: Mapping[str, str] | None = None
) -> SparkSession:
    """The session of this process, with Delta; a new one unless there is one already.

    `master` defaults to `local[*]`. `extra` overrides `SETTINGS` and `LOCAL`. Under spark-submit
    `master` and everything that Spark reads only at its start are spark-submit's and are ignored
    here.

    Raises `CdcError` if Java is missing or too old, if Spark does not start (the first start
    downloads Delta's jars, 16 MB), or if the JVM that is already up lacks Delta.
    """
    builder = SparkSession.builder.appName(app_name)
    if under_spark_submit() or SparkContext._active_spark_context is not None:
        spark = _with(builder, extra or {}).getOrCreate()
        if str(spark.sparkContext.master).startswith("local"):
            # What `log4j2.properties` does for a JVM of our own.
            spark.sparkContext.setLogLevel("ERROR")
        require_delta(spark)
        return spark
    master = master or "local[*]"
    local = master.startswith("local")
    settings = SETTINGS | (LOCAL if local else {}) | dict(extra or {})
    packages = [each for each in settings.get("spark.jars.packages", "").split(",") if each]
    builder = _with(builder.master(master), settings)
    builder = configure_spark_with_delta_pip(builder, extra_packages=packages)
    if local:
        # The web interface and the block manager have no setting of their own for it.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        # Else Spark's workers are the `python3` of the PATH, whatever environment this one is of.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if SparkContext._gateway is None:
        start_jvm(SparkConf(loadDefaults=False).setAll(list(builder._options.items())))
    return builder.getOrCreate()


def end(spark: SparkSession) -> None:
    """Stops a session, and ends the JVM that `session` started for it. A program need not: it ends
    itself. A notebook's kernel goes on, and may ask for another session."""
    spark.stop()
    end_jvm()


def under_spark_submit() -> bool:
    """Whether the JVM was started first, and started this program."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def require_delta(spark: SparkSession) -> None:
    """Raises `CdcError` unless Delta's jar, extension and catalog are all in the session.

    Without this check a missing jar shows only as a warning, and the first MERGE fails with a
    syntax error.
    """
    missing = [
        f"{name}={SETTINGS[name]}"
        for name in ("spark.sql.extensions", "spark.sql.catalog.spark_catalog")
        if SETTINGS[name] not in str(spark.conf.get(name, ""))
    ]
    jvm: Any = spark._jvm
    try:
        jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(DELTA_EXTENSION)
    except Py4JError:
        missing.append("the jar of Delta")
    if missing:
        raise CdcError(
            f"This Spark session has no Delta: {', '.join(missing)} missing.",
            "run spark-submit with --properties-file conf/spark-defaults.conf.",
        )


def _with(builder: SparkSession.Builder, settings: Mapping[str, str]) -> SparkSession.Builder:
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder
