"""The JVM of Spark in plain Python: the Java it needs, and a start without fifty lines of noise."""

from __future__ import annotations

import os
import re
import subprocess
import threading
from pathlib import Path

from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway

from cdc.errors import CdcError
from cdc.locked import locked
from jobs.stop import started_whole

OLDEST = 17
STDERR = 2
_FRAME = re.compile(r"at \S+\(.*\)$|\.\.\. \d+ more$")
KEPT_BYTES = 65536

REMEDY = (
    "install Java 17, on Debian and Ubuntu the package openjdk-17-jre-headless, and let JAVA_HOME "
    "name its folder if it is not the `java` on the PATH."
)


def start_jvm(conf: SparkConf) -> None:
    """Starts the JVM that the next SparkContext of this process will use.

    What the JVM prints while it starts (the resolution of jars, mostly) is dropped; everything
    that it prints to stderr later arrives on this process's stderr.

    Raises `CdcError` with the end of what was printed if it does not come up.
    """
    require_java()
    reading, writing = os.pipe()
    relay = _Relay(reading)
    try:
        with locked(_shared(conf)), started_whole():
            gateway = launch_gateway(conf, popen_kwargs={"stderr": writing})
    except PySparkRuntimeError as error:
        os.close(writing)
        relay.join(timeout=5)
        raise CdcError(
            f"Spark did not start. It printed last: {relay.last_words()}",
            "correct what it names; the first start downloads Delta's jars from Maven Central:"
            " check the connection.",
        ) from error
    os.close(writing)
    SparkContext._ensure_initialized(gateway=gateway)
    relay.forward()


def end_jvm() -> None:
    """Ends the JVM that `start_jvm` started, with all that it has started; its SparkContext is
    stopped. The next one of this process gets another."""
    gateway = SparkContext._gateway
    process = getattr(gateway, "proc", None)
    if gateway is None or process is None:
        return
    SparkContext._gateway = SparkContext._jvm = None
    gateway.shutdown()
    process.stdin.close()  # at which a JVM ends whose program has ended
    process.wait()


def _shared(conf: SparkConf) -> Path:
    """A folder to lock for a start: where jars are still to be downloaded, JVMs of a user that
    start at once find each other's half-written files in Ivy's folder, and end."""
    shared = Path(conf.get("spark.jars.ivy") or Path.home())
    shared.mkdir(parents=True, exist_ok=True)
    return shared


class _Relay(threading.Thread):
    """Reads what the JVM writes to its stderr: keeps it until `forward`, then passes it on."""

    def __init__(self, reading: int) -> None:
        super().__init__(name="jvm-stderr", daemon=True)
        self._reading = reading
        self._kept = b""
        self._forwarding = threading.Event()
        self.start()

    def run(self) -> None:
        while chunk := os.read(self._reading, 65536):
            if self._forwarding.is_set():
                os.write(STDERR, chunk)
            else:
                self._kept = (self._kept + chunk)[-KEPT_BYTES:]
        os.close(self._reading)

    def forward(self) -> None:
        self._forwarding.set()

    def last_words(self) -> str:
        """The last three lines that are no part of a stack trace, in one."""
        lines = [line.strip() for line in self._kept.decode(errors="replace").splitlines()]
        return " ".join([line for line in lines if line and not _FRAME.match(line)][-3:])


def require_java() -> None:
    """Raises `CdcError`, one sentence and its remedy, unless Spark would find Java 17 or newer.

    Looks where Spark looks: `$JAVA_HOME/bin/java` if JAVA_HOME is set, else `java` on the PATH.
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
    """17 for `openjdk version "17.0.15" …`, 8 for `java version "1.8.0_402"`; 0 if unreadable."""
    found = re.search(r'version "(?:1\.)?(\d+)', answer)
    return int(found[1]) if found else 0
