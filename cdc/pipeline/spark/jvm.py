"""Spark's JVM in plain Python: Java check, quiet start, end."""

from __future__ import annotations

import os
import re
import subprocess
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from py4j.java_gateway import JavaPackage
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from cdc.errors import CdcError
from cdc.file_lock import lock
from cdc.logs import print_output
from cdc.pipeline.spark.start_cache import compiled_pyspark
from cdc.shutdown import kill_children_on_error

OLDEST = 17
_PACKAGES = (
    *("java.lang", "java.util", "scala", "io.delta.tables", "org.apache.hadoop.fs"),
    *("org.apache.spark.api.python", "org.apache.spark.sql.delta.actions"),
    *("org.apache.spark.sql.execution.metric", "org.apache.spark.sql.streaming"),
)
_FRAME = re.compile(r"at \S+\(.*\)$|\.\.\. \d+ more$")
BUFFER_BYTES = 65536

# Options of the JVM that only prints the command of Spark's JVM: half of its CPU time.
_LAUNCHER = "SPARK_LAUNCHER_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

REMEDY = (
    "install Java 17 (on Debian and Ubuntu the package openjdk-17-jre-headless), and set JAVA_HOME "
    "to its folder if it is not the `java` on the PATH."
)


def start_jvm(conf: SparkConf) -> None:
    """Start the JVM that the next SparkContext of this process will use.

    The output of the JVM during its start, mostly the resolution of jars, is discarded. Later
    output to its stderr arrives on this process's stderr.

    Raises `CdcError` if Java is missing or too old, or if the JVM does not start. In the second
    case the message ends with the last lines that the JVM printed.
    """
    require_java()
    os.environ.setdefault(*_LAUNCHER)
    settings = dict(conf.getAll())
    is_local = settings.get("spark.master", "").startswith("local")
    home = compiled_pyspark(settings) if is_local else nullcontext()
    reading, writing = os.pipe()
    relay = _Relay(reading)
    try:
        with lock(_lock_folder(conf)), kill_children_on_error(), home:
            gateway = launch_gateway(conf, popen_kwargs={"stderr": writing})
    except PySparkRuntimeError as error:
        os.close(writing)
        relay.join(timeout=5)
        raise CdcError(
            f"Spark did not start. It printed last: {relay.tail()}",
            "correct what it names. The first start downloads Delta's jars from Maven Central:"
            " check the connection.",
        ) from error
    os.close(writing)
    SparkContext._ensure_initialized(gateway=gateway)
    relay.forward()


def declare_packages(jvm: Any) -> None:
    """Let py4j know the packages in which PySpark, Delta and this project look for classes.

    Otherwise py4j asks at each use whether the name of a package is that of a class, and the JVM
    searches each of its jars for it.
    """
    for name in _PACKAGES:
        place = jvm
        for part in name.split("."):
            fqn = part if place is jvm else f"{place._fqn}.{part}"
            if part not in vars(place):
                setattr(place, part, JavaPackage(fqn, jvm._gateway_client, jvm._id))
            place = vars(place)[part]


def skip_discovery(spark: SparkSession) -> None:
    """Let Spark not search the environment for data sources, which are modules `pyspark_…`.

    The search takes a CPU second, in a Python process of its own. For a JVM of which all data
    sources in Python are registered by its program.
    """
    jvm: Any = spark._jvm
    packages = jvm.scala.collection.immutable, jvm.org.apache.spark.sql.execution.datasources
    empty_map, manager = (
        getattr(getattr(package, name), "MODULE$")
        for package, name in zip(packages, ("Map$", "DataSourceManager$"), strict=True)
    )
    getattr(manager, "dataSourceBuilders_$eq")(jvm.scala.Option.apply(empty_map.empty()))


def end_jvm() -> None:
    """End the JVM that `start_jvm` started, and all processes that it started.

    The caller has stopped the SparkContext. The next SparkContext of this process needs a new JVM.
    """
    gateway = SparkContext._gateway
    process = getattr(gateway, "proc", None)
    if gateway is None or process is None:
        return
    SparkContext._gateway = SparkContext._jvm = None
    gateway.shutdown()
    process.stdin.close()  # the JVM ends itself when its stdin is closed
    process.wait()


def _lock_folder(conf: SparkConf) -> Path:
    """The folder to lock during a start.

    Before the jars are downloaded, JVMs of one user that start at the same time would read each
    other's half-written files in Ivy's folder, and fail.
    """
    folder = Path(conf.get("spark.jars.ivy") or Path.home())
    folder.mkdir(parents=True, exist_ok=True)
    return folder


class _Relay(threading.Thread):
    """Reads the stderr of the JVM: buffers it until `forward` is called, then passes it on."""

    def __init__(self, reading: int) -> None:
        super().__init__(name="jvm-stderr", daemon=True)
        self._reading = reading
        self._buffer = b""
        self._forwarding = threading.Event()
        self.start()

    def run(self) -> None:
        while chunk := os.read(self._reading, 65536):
            if self._forwarding.is_set():
                print_output(chunk)
            else:
                self._buffer = (self._buffer + chunk)[-BUFFER_BYTES:]
        os.close(self._reading)

    def forward(self) -> None:
        self._forwarding.set()

    def tail(self) -> str:
        """The last three buffered lines outside of stack traces, joined by spaces."""
        lines = [line.strip() for line in self._buffer.decode(errors="replace").splitlines()]
        return " ".join([line for line in lines if line and not _FRAME.match(line)][-3:])


def require_java() -> None:
    """Raise `CdcError` unless Spark will find Java 17 or newer.

    Checks the same program as Spark: `$JAVA_HOME/bin/java` if JAVA_HOME is set, else `java` on the
    PATH.
    """
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else "java"
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        place = f"JAVA_HOME={home}" if home else "the PATH"
        raise CdcError(
            f"Spark needs Java {OLDEST} and {place} has none that runs.", REMEDY
        ) from error
    version = major_version(answer.stderr)
    if version < OLDEST:
        raise CdcError(
            f"Spark needs Java {OLDEST} or newer and `{java}` is Java {version}.", REMEDY
        )


def major_version(answer: str) -> int:
    """The major version: 17 for `openjdk version "17.0.15" …`, 8 for `java version "1.8.0_402"`.

    0 if the text contains no version.
    """
    match = re.search(r'version "(?:1\.)?(\d+)', answer)
    return int(match[1]) if match else 0
