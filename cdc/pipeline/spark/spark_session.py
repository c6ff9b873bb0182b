"""Spark's settings and session, for plain Python and for spark-submit.

In plain Python the settings go into the JVM that `session` starts. Under spark-submit the JVM runs
before the program starts, too early for jars and extensions. There they come from
`--properties-file conf/spark-defaults.conf`; a test keeps that file equal to `SETTINGS`.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any

from delta import configure_spark_with_delta_pip
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from cdc.errors import CdcError
from cdc.kernel import loading
from cdc.model import CONNECTION_STRING
from cdc.pipeline.config import Config
from cdc.pipeline.spark.jvm import declare_packages, end_jvm, start_jvm
from cdc.pipeline.spark.object_storage import connect, packages
from cdc.pipeline.spark.python_processes import end_fork_server, fork_server
from cdc.pipeline.spark.start_cache import JAVA_OPTIONS, PACKAGES, record_jars, use_cache

DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
DELTA_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"

SETTINGS = {
    "spark.sql.extensions": DELTA_EXTENSION,
    "spark.sql.catalog.spark_catalog": DELTA_CATALOG,
    # Delta depends on these, but Spark ships newer versions of all of them in its class path. The
    # download of 70 MB would never be used.
    "spark.jars.excludes": ",".join(
        name if ":" in name else f"{name}:*"
        for name in (
            "com.fasterxml.jackson.core",
            "com.fasterxml.jackson.datatype",
            "com.github.luben",
            "commons-codec",
            "commons-logging",
            "commons-pool",
            "io.airlift",
            "io.netty",
            # Not the whole group: an exclusion holds for `spark.jars.packages` too, which may
            # name hadoop-aws.
            "org.apache.hadoop:hadoop-client-api",
            "org.apache.hadoop:hadoop-client-runtime",
            "org.apache.hadoop:hadoop-common",
            "org.apache.httpcomponents",
            "org.apache.logging.log4j",
            "org.apache.parquet",
            "org.roaringbitmap",
            "org.slf4j",
            "org.xerial.snappy",
            # See `cdc.pipeline.spark.object_storage`.
            "software.amazon.awssdk:bundle",
        )
    ),
    # A micro-batch is small: with Spark's 200 partitions a MERGE would mostly start empty tasks.
    "spark.sql.shuffle.partitions": "8",
    # A batch into a changelog and a mirror needs more generated classes than the 100 that Spark
    # caches by default. Each would be compiled again in each batch.
    "spark.sql.codegen.cache.maxEntries": "1000",
    # A batch is cached only while it is written: its compression takes longer than it saves.
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
    # Delta writes a copy of the list of a small table's files at each commit, which nothing reads.
    # It starts a Spark job for the first one and, where the time zone is not UTC, one for each
    # commit: a commit then takes ten times as long.
    "spark.databricks.delta.allFilesInCrc.enabled": "false",
    # A run that is killed while it plans its first batch leaves a partial file. Spark would refuse
    # to start the next run. The program checks the checkpoint itself.
    "spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart": "false",
    # One heap for Arrow and NumPy: a buffer that one of them frees is of use to the other.
    "spark.executorEnv.ARROW_DEFAULT_MEMORY_POOL": "system",
    # The driver retains the plans of past queries for its UI: by default a thousand plans without a
    # limit of length. The plan of a MERGE is a long text.
    "spark.sql.ui.retainedExecutions": "50",
    "spark.sql.maxPlanStringLength": "100000",
    # Spark shows a source's options in some plans, in its UI and in its event log. The UI and the
    # event log also show the command line of the JVM, which under spark-submit contains the
    # arguments of the program, and the settings of Hadoop. By default Spark redacts passwords,
    # secrets and tokens there, but not the keys of Azure's and Google's stores, those of an
    # encryption, and signatures of URLs.
    "spark.redaction.regex": "(?i)secret|password|token|connection[._-]?string"
    "|(access|account|api|encryption|private|storage)[._-]?key|[._]sas[._]|[?&]sig=|x-amz-signature="
    "|mongodb([+]srv)?://",
    "spark.redaction.string.regex": CONNECTION_STRING,
    "spark.sql.redaction.options.regex": "(?i)ur[il]",
    # Jobs of the followers share the cores with the batches instead of delaying them.
    "spark.scheduler.mode": "FAIR",
    # A batch read of the source then reads less. By default Spark offers its filters to no Python
    # source.
    "spark.sql.python.filterPushdown.enabled": "true",
    # cluster_time is an instant: show the same text on every machine.
    "spark.sql.session.timeZone": "UTC",
}

# The JVM plans and commits; Python encodes the rows. Java's second compiler would take more time
# than its code saves in the first quarter of an hour. Without it, Java would reserve 48 MB for
# compiled code, which is full after a minute of MERGEs; Java would then compile nothing more.
ONE_COMPILER = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"

# Spark's own choice, by way of Hadoop's FileContext, starts the program `readlink` four times for
# each file that it renames on a local disk: 50 ms of a commit on a busy machine. This one looks as
# well whether there is such a file already.
_RENAMES = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)

# Only for a local master, where driver and executors are one process.
LOCAL = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Delta reads a table's log in 50 tasks, most of them empty on one machine.
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.streaming.checkpointFileManagerClass": _RENAMES,
    JAVA_OPTIONS: f"{ONE_COMPILER} -Dlog4j2.configurationFile="
    + Path(__file__).with_name("log4j2.properties").as_uri(),
}


@contextmanager
def _preserve_ctrl_c() -> Iterator[None]:
    """Put the program's own handler of Ctrl-C back after the block, if it has one.

    SparkContext installs a handler that calls the JVM, possibly in the middle of another call.
    """
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        is_own = callable(handler) and handler is not signal.default_int_handler
        if is_own and current_thread() is main_thread():
            signal.signal(signal.SIGINT, handler)


def session(
    app_name: str,
    master: str | None = None,
    extra: Mapping[str, str] | None = None,
    config: Config | None = None,
) -> SparkSession:
    """Return the Spark session of this process, with Delta; start one if there is none.

    Under spark-submit, spark-submit decides the master and all settings that Spark reads only at
    its start; these are ignored here.

    Args:
        app_name: The name that Spark shows for the program.
        master: `local[*]` by default.
        extra: Settings that override `SETTINGS` and `LOCAL`.
        config: The pipeline. A JVM that is started gets the jars of its object store and the
            settings of `[spark]`, and the session its `[storage]`.

    Executors on other machines get the encoders that this machine has compiled.

    Raises `CdcError` if Java is missing or too old, if Spark does not start (the first start
    downloads Delta's jars, 16 MB), or if a JVM that already runs lacks Delta;
    `BadOption` if it does not reach the object store.
    """
    base, settings = (config.base, {**config.spark}) if config else ("", {})
    if JAVA_OPTIONS in settings:
        settings[JAVA_OPTIONS] = f"{LOCAL[JAVA_OPTIONS]} {settings[JAVA_OPTIONS]}"
    spark = _session(app_name, master, {**settings, **(extra or {})}, packages(base))
    declare_packages(spark._jvm)
    if not str(spark.sparkContext.master).startswith("local"):
        for library in loading.stored_libraries():
            spark.sparkContext.addFile(str(library))
    if config is not None:
        connect(spark, config.storage, base)
    return spark


@_preserve_ctrl_c()
def _session(
    app_name: str, master: str | None, extra: dict[str, str], jars: tuple[str, ...]
) -> SparkSession:
    builder = SparkSession.builder.appName(app_name)
    if under_spark_submit() or SparkContext._active_spark_context is not None:
        spark = _configure(builder, extra).getOrCreate()
        if str(spark.sparkContext.master).startswith("local"):
            # As `log4j2.properties` does for a JVM that this process starts.
            spark.sparkContext.setLogLevel("ERROR")
        require_delta(spark)
        return spark
    master = master or "local[*]"
    local = master.startswith("local")
    settings = SETTINGS | (LOCAL if local else {}) | extra
    given = [each for each in settings.get(PACKAGES, "").split(",") if each]
    settings[PACKAGES] = delta_packages([*given, *jars])
    started = use_cache(settings) if local else settings
    builder = _configure(builder.master(master), started)
    if local:
        # No Spark setting binds the web UI and the block manager to one address.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        # By default Spark's workers run the `python3` on the PATH, not this environment's.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    server = fork_server(settings) if local else None  # it imports while Java starts
    if SparkContext._gateway is None:
        start_jvm(SparkConf(loadDefaults=False).setAll(_without_credentials(builder._options)))
    spark = builder.getOrCreate()
    if server is not None:
        spark.sparkContext.pythonExec = server.python
    if local and PACKAGES in started and "spark.jars" not in settings:
        record_jars(settings[PACKAGES], spark)
    return spark


def delta_packages(others: Iterable[str] = ()) -> str:
    """The Maven coordinates of Delta for this PySpark, and others, as Spark's setting has them."""
    builder = configure_spark_with_delta_pip(SparkSession.builder, extra_packages=list(others))
    return str(builder._options[PACKAGES])


def end(spark: SparkSession) -> None:
    """Stop a session and end the JVM that `session` started for it.

    A program need not call this: its own end ends the JVM. A notebook's kernel continues, and may
    start another session.
    """
    spark.stop()
    end_jvm()
    end_fork_server()


def under_spark_submit() -> bool:
    """Whether spark-submit started this program, and the JVM before it."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def require_delta(spark: SparkSession) -> None:
    """Raise `CdcError` unless the session has Delta's jar, extension and catalog.

    Without this check Spark only warns about a missing jar, and the first MERGE fails with a
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


def _without_credentials(settings: Mapping[str, str]) -> list[tuple[str, str]]:
    """The settings that the command line of a JVM may show: everybody can read it.

    The SparkContext, which is created in the running JVM, gets all of them.
    """
    is_credential = re.compile(SETTINGS["spark.redaction.regex"])
    return [each for each in settings.items() if not is_credential.search(each[0])]


def _configure(builder: SparkSession.Builder, settings: Mapping[str, str]) -> SparkSession.Builder:
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder
