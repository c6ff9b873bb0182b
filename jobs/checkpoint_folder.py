"""The files of a checkpoint, on any file system that Spark knows: read with doubt, and written as
Spark writes them.

Local files have a checksum beside them (`.N.crc`), which Hadoop keeps: a file that does not agree
with it cannot be read, by Spark either.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from cdc.errors import BadOption
from jobs.checkpoint import Planned, of_json, parsed

OFFSETS, COMMITS, METADATA = "offsets", "commits", "metadata"
_UNREADABLE = ("org.apache.hadoop.fs.ChecksumException", "java.io.EOFException")


@dataclass(frozen=True, slots=True)
class Folder:
    """Of one query. A file that is not there, or not what was written, is None."""

    spark: SparkSession
    path: str

    def numbers(self, log: str) -> list[int]:
        """Of the batches in `offsets` or `commits`, in order, whatever is in their files."""
        folder = self._path(log)
        files = self._files(folder)
        if not files.exists(folder):
            return []
        names = [str(status.getPath().getName()) for status in files.listStatus(folder)]
        return sorted(int(name) for name in names if name.isdecimal())

    def planned(self, batch: int) -> Planned | None:
        """What was planned. Raises ForeignOffset if it is whole, and not of this source."""
        return parsed(self._read(f"{OFFSETS}/{batch}"), f"{self.path}/{OFFSETS}/{batch}")

    def is_written(self, batch: int) -> bool:
        """Whether it says so that the batch is in all its tables."""
        version, _, about = self._read(f"{COMMITS}/{batch}").partition("\n")
        return version.startswith("v") and isinstance(of_json(about), dict)

    def pipeline(self) -> str | None:
        """The id of the query, by which the tables know their pipeline."""
        about = of_json(self._read(METADATA))
        found = about.get("id") if isinstance(about, dict) else None
        return found if isinstance(found, str) else None

    def is_begun(self) -> bool:
        """Whether a query has ever begun here, whatever is left of it."""
        return self.exists(METADATA) or bool(self.numbers(OFFSETS) or self.numbers(COMMITS))

    def plan(self, batch: int, offset: Any, before: int) -> None:
        """Say that a batch ends at an offset; settings of Spark's as they were at another batch."""
        old = self.planned(before)
        about = {"batchWatermarkMs": 0, "conf": {}} if old is None else dict(old.about)
        about["batchTimestampMs"] = int(time.time() * 1000)
        self._write(f"{OFFSETS}/{batch}", f"v1\n{json.dumps(about)}\n{json.dumps(offset)}")

    def name(self, pipeline: str) -> None:
        self._write(METADATA, json.dumps({"id": pipeline}))

    def remove(self, name: str) -> None:
        path = self._path(name)
        self._files(path).delete(path, False)

    def exists(self, name: str) -> bool:
        path = self._path(name)
        return bool(self._files(path).exists(path))

    def _read(self, name: str) -> str:
        """Empty for what cannot be read because of what it is; else the error leaves."""
        path = self._path(name)
        files = self._files(path)
        if not files.exists(path):
            return ""
        try:
            stream = files.open(path)
            try:
                data = self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream)
            finally:
                stream.close()
            return bytes(data).decode()
        except UnicodeDecodeError:
            return ""
        except Py4JJavaError as error:
            if str(error.java_exception.getClass().getName()) in _UNREADABLE:
                return ""
            raise

    def _write(self, name: str, text: str) -> None:
        """In the place of what is there, in one step, as far as the file system has one."""
        path, aside = self._path(name), self._path(f"{name}.repaired")
        stream = self._files(aside).create(aside, True)
        try:
            stream.write(text.encode())
        finally:
            stream.close()
        options = getattr(self._jvm.org.apache.hadoop.fs, "Options$Rename")
        gateway: Any = self.spark.sparkContext._gateway
        over = gateway.new_array(options, 1)
        over[0] = options.OVERWRITE
        context = self._jvm.org.apache.hadoop.fs.FileContext
        context.getFileContext(path.toUri(), self._hadoop).rename(aside, path, over)

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.path}/{name}")

    def _files(self, path: Any) -> Any:
        """Raises BadOption where Spark has none of that kind."""
        try:
            return path.getFileSystem(self._hadoop)
        except (Py4JJavaError, PySparkException) as error:
            raise BadOption(
                f"Spark has no file system for {self.path}, or not all that it needs.",
                "Start the program by spark-submit with that file system's jar (--packages) and its"
                " credentials; a path in S3 begins with s3a:.",
            ) from error

    @property
    def _hadoop(self) -> Any:
        return self.spark._jsc.hadoopConfiguration()

    @property
    def _jvm(self) -> Any:
        return self.spark._jvm
