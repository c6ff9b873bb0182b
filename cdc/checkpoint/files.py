"""A checkpoint's files, on any file system that Spark can access.

Any file may be damaged; files are written in Spark's format. On the local file system Hadoop keeps
a checksum beside each file (`.N.crc`). A file that does not match its checksum is unreadable, for
Spark too.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from cdc.checkpoint.checkpoint import PlannedBatch, parse_json, parse_plan
from cdc.errors import BadOption

OFFSETS, COMMITS, METADATA = "offsets", "commits", "metadata"
_UNREADABLE = ("org.apache.hadoop.fs.ChecksumException", "java.io.EOFException")


@dataclass(frozen=True, slots=True)
class Folder:
    """The checkpoint of one query. A missing or damaged file reads as None."""

    spark: SparkSession
    path: str

    def numbers(self, log: str) -> list[int]:
        """The batch numbers in `offsets` or `commits`, in order, whatever their files contain."""
        folder = self._path(log)
        files = self._files(folder)
        if not files.exists(folder):
            return []
        names = [str(status.getPath().getName()) for status in files.listStatus(folder)]
        return sorted(int(name) for name in names if name.isdecimal())

    def read_plan(self, batch: int) -> PlannedBatch | None:
        """Read `offsets/N`. Raises ForeignOffset if it is complete but of another source."""
        return parse_plan(self._read(f"{OFFSETS}/{batch}"), f"{self.path}/{OFFSETS}/{batch}")

    def is_written(self, batch: int) -> bool:
        """Whether a readable `commits/N` shows that the batch is in all its changelogs."""
        version, _, about = self._read(f"{COMMITS}/{batch}").partition("\n")
        return version.startswith("v") and isinstance(parse_json(about), dict)

    def pipeline(self) -> str | None:
        """The id of the query, which the tables record as their pipeline."""
        metadata = parse_json(self._read(METADATA))
        query = metadata.get("id") if isinstance(metadata, dict) else None
        return query if isinstance(query, str) else None

    def is_begun(self) -> bool:
        """Whether the folder contains any file of a checkpoint, damaged or not."""
        return self.exists(METADATA) or bool(self.numbers(OFFSETS) or self.numbers(COMMITS))

    def write_plan(self, batch: int, offset: Any, before: int) -> None:
        """Write `offsets/N`.

        Args:
            offset: The end of the batch, as JSON.
            before: The batch whose Spark settings are copied, if its file is readable.
        """
        old = self.read_plan(before)
        about = {"batchWatermarkMs": 0, "conf": {}} if old is None else dict(old.about)
        about["batchTimestampMs"] = int(time.time() * 1000)
        self._write(f"{OFFSETS}/{batch}", f"v1\n{json.dumps(about)}\n{json.dumps(offset)}")

    def write_pipeline(self, pipeline: str) -> None:
        self._write(METADATA, json.dumps({"id": pipeline}))

    def remove(self, name: str) -> None:
        path = self._path(name)
        self._files(path).delete(path, False)

    def exists(self, name: str) -> bool:
        path = self._path(name)
        return bool(self._files(path).exists(path))

    def _read(self, name: str) -> str:
        """The text of a file, empty if the file is missing or damaged; raises any other error."""
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
        """Replace a file, atomically if the file system has an atomic rename."""
        path, temporary = self._path(name), self._path(f"{name}.repaired")
        stream = self._files(temporary).create(temporary, True)
        try:
            stream.write(text.encode())
        finally:
            stream.close()
        options = getattr(self._jvm.org.apache.hadoop.fs, "Options$Rename")
        gateway: Any = self.spark.sparkContext._gateway
        over = gateway.new_array(options, 1)
        over[0] = options.OVERWRITE
        context = self._jvm.org.apache.hadoop.fs.FileContext
        context.getFileContext(path.toUri(), self._hadoop).rename(temporary, path, over)

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.path}/{name}")

    def _files(self, path: Any) -> Any:
        """The file system of a path. Raises BadOption if Spark has none for it."""
        try:
            return path.getFileSystem(self._hadoop)
        except (Py4JJavaError, PySparkException) as error:
            raise BadOption(
                f"Spark has no file system for {self.path}, or lacks a part of it.",
                "Start the program by spark-submit with the jar of that file system (--packages)"
                " and its credentials; a path in S3 begins with s3a:.",
            ) from error

    @property
    def _hadoop(self) -> Any:
        return self.spark._jsc.hadoopConfiguration()

    @property
    def _jvm(self) -> Any:
        return self.spark._jvm
