"""The files of a checkpoint on any file system that Spark can access.

On the local file system Hadoop keeps a checksum beside each file (`.N.crc`). A file that does not
match its checksum is unreadable, for Spark too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from cdc.errors import BadOption

# Or removed just now.
_UNREADABLE = (
    *("org.apache.hadoop.fs.ChecksumException", "java.io.EOFException"),
    "java.io.FileNotFoundException",
)
# The file system has no atomic rename that replaces a file. Spark does without it, too.
_NO_CONTEXT = "org.apache.hadoop.fs.UnsupportedFileSystemException"


@dataclass(frozen=True, slots=True)
class HadoopFiles:
    """Files as Hadoop has them."""

    spark: SparkSession

    def names(self, folder: str) -> list[str]:
        path = self._path(folder)
        files = self._files(path)
        if not files.exists(path):
            return []
        return [str(status.getPath().getName()) for status in files.listStatus(path)]

    def exists(self, path: str) -> bool:
        there = self._path(path)
        return bool(self._files(there).exists(there))

    def read(self, path: str) -> bytes | None:
        there = self._path(path)
        files = self._files(there)
        if not files.exists(there):
            return None
        try:
            stream = files.open(there)
            try:
                return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
            finally:
                stream.close()
        except Py4JJavaError as error:
            if str(error.java_exception.getClass().getName()) in _UNREADABLE:
                return None
            raise

    def replace(self, path: str, content: bytes) -> None:
        there, temporary = self._path(path), self._path(f"{path}.repaired")
        self._write(temporary, content)
        options = getattr(self._jvm.org.apache.hadoop.fs, "Options$Rename")
        gateway: Any = self.spark.sparkContext._gateway
        over = gateway.new_array(options, 1)
        over[0] = options.OVERWRITE
        context = self._jvm.org.apache.hadoop.fs.FileContext
        try:
            context.getFileContext(there.toUri(), self._hadoop).rename(temporary, there, over)
        except Py4JJavaError as error:
            if str(error.java_exception.getClass().getName()) != _NO_CONTEXT:
                raise
            self._write(there, content)
            self._files(temporary).delete(temporary, False)

    def _write(self, path: Any, content: bytes) -> None:
        stream = self._files(path).create(path, True)
        try:
            stream.write(content)
        finally:
            stream.close()

    def remove(self, path: str) -> None:
        there = self._path(path)
        self._files(there).delete(there, False)

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(path)

    def _files(self, path: Any) -> Any:
        """The file system of a path. Raises BadOption if Spark has none for it."""
        try:
            return path.getFileSystem(self._hadoop)
        except (Py4JJavaError, PySparkException) as error:
            raise BadOption(
                f"Spark has no file system for {path.toString()}, or lacks a part of it.",
                "Start the program by spark-submit with the jar of that file system (--packages)"
                " and its credentials; a path in S3 begins with s3a:.",
            ) from error

    @property
    def _hadoop(self) -> Any:
        return self.spark._jsc.hadoopConfiguration()

    @property
    def _jvm(self) -> Any:
        return self.spark._jvm
