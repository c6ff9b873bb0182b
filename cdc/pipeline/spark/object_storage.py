"""Object stores: Spark's side of `[storage]`, and the proof that tasks reach the same folder."""

from __future__ import annotations

from uuid import uuid4

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from cdc.delta.log import hadoop
from cdc.errors import BadOption
from cdc.tasks import S3_SCHEMES, Storage, explain, is_remote, probe_file, scheme_of

# Hadoop's version is that of PySpark's jars. Its own dependency is a bundle of all of Amazon's
# services, 690 MB; these modules are what S3A uses of it, 15 MB.
_HADOOP, _SDK = "3.5.0", "2.35.4"
S3_PACKAGES = (
    f"org.apache.hadoop:hadoop-aws:{_HADOOP}",
    f"software.amazon.awssdk:s3-transfer-manager:{_SDK}",
    f"software.amazon.awssdk:sts:{_SDK}",
)


def packages(base: str) -> tuple[str, ...]:
    """The jars that Spark needs for the tables below a path or URL."""
    return S3_PACKAGES if scheme_of(base) in S3_SCHEMES else ()


def connect(spark: SparkSession, storage: Storage, base: str) -> None:
    """Let Spark use the storage options below a URL, and check that it reaches the URL.

    They hold for the bucket alone, and for file systems that Spark opens afterwards: keys that
    change need a new program. They are set in the running JVM, so no command line shows them.

    Raises BadOption.
    """
    if not is_remote(base):
        return
    configuration = spark.sparkContext._jsc.hadoopConfiguration()
    for name, value in storage.hadoop(base).items():
        if not (name.endswith(".impl") and configuration.get(name)):
            configuration.set(name, value)
    try:
        path, system = hadoop(spark, base)
        system.exists(path)
    except Py4JError as error:
        problem = _explain_java(error)
    else:
        return
    raise BadOption(f"Spark cannot read '{base}': {problem}.", _remedy(base))


def mismatch(spark: SparkSession, storage: Storage, base: str) -> str | None:
    """The reason why tasks and Spark do not see the same files below a URL; None if they do.

    Tries it: pyarrow writes a small file, which Hadoop has to find and pyarrow removes.
    """
    try:
        with probe_file(storage, base, f"_mongodb-cdc-probe-{uuid4()}") as (name, size):
            path, system = hadoop(spark, f"{base}/{name}")
            found = system.getFileStatus(path).getLen() if system.exists(path) else None
    except (OSError, ValueError, NotImplementedError) as error:
        return f"pyarrow cannot write to '{base}' ({explain(error)})"
    except Py4JError as error:
        return f"Spark cannot read '{base}' ({_explain_java(error)})"
    return None if found == size else f"Spark does not find at '{base}' what pyarrow wrote"


def _explain_java(error: Py4JError) -> str:
    """The class and the code of an error of the JVM. Its text may quote a key or a signature."""
    java = getattr(error, "java_exception", None)
    if java is None:
        return type(error).__name__
    text = str(java.toString())
    kind = text.partition(":")[0].rpartition(".")[2]
    if kind == "UnsupportedFileSystemException" or "ClassNotFoundException" in text:
        return "it has no file system of that scheme"
    return f"{kind}: {explain(OSError(text))}"


def _remedy(base: str) -> str:
    jars = (
        "Under spark-submit add the jars of its file system with --packages;"
        " see docs/deploy/object-stores.md"
    )
    if scheme_of(base) not in S3_SCHEMES:
        return f"{jars}."
    return f"Correct 'endpoint', 'access.key' and 'secret.key' in [storage]. {jars}."
