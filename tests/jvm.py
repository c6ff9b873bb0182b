"""The settings of Java and Spark where tests start them: little to compile, and few processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from cdc.pipeline.spark.spark_session import ONE_COMPILER

# Threads that collect garbage beside the tests would take their time from them.
SERIAL = "-XX:+UseSerialGC"

# For each commit to a table on a local disk Hadoop starts the programs `readlink` and `chmod`, half
# of them for a checksum beside the file of the log. Without such checksums a commit takes 60 ms in
# place of 85. All programs of a test agree: one that finds an outdated checksum waits for seconds.
WITHOUT_CHECKSUMS = {
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs"
}


def with_spark_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """The environment of a program with a JVM of its own, and with these settings of Spark.

    They are defaults, and their values contain no space. A `spark-defaults.conf` of the test's own
    would do it too. But its folder becomes a part of the class path, and Java then uses no archive
    of classes: 4 CPU seconds more for each start.
    """
    properties = (f"-D{name}={value}" for name, value in (WITHOUT_CHECKSUMS | settings).items())
    # Under spark-submit Java's second compiler takes more time than it saves before a short program
    # is over.
    return {"JAVA_TOOL_OPTIONS": " ".join([SERIAL, ONE_COMPILER, *properties])}


SHORT_LIVED = with_spark_settings({})


# Generated code does not pay for a handful of rows.
INTERPRETED = {
    **WITHOUT_CHECKSUMS,
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    # These tables have a handful of files.
    "spark.databricks.delta.snapshotPartitions": "1",
    # A VACUUM lists files in this many tasks: with Spark's 10,000 it takes 45 seconds.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
}


def run_without_java(
    module: str, settings: Iterable[str], java_home: str = "/nowhere"
) -> subprocess.CompletedProcess[str]:
    """A program with these options, where there is no Java to start but what JAVA_HOME names."""
    options = [argument for each in settings for argument in ("-o", each)]
    return subprocess.run(
        [sys.executable, "-m", module, *options],
        cwd=Path(__file__).parents[1],
        env={**os.environ, "PATH": "", "JAVA_HOME": java_home},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
