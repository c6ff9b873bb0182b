"""A checkpoint's folder, on any file system. Files are written in Spark's format.

Any file may be damaged.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any, Protocol

from cdc.checkpoint.checkpoint import PlannedBatch, parse_json, parse_plan

OFFSETS, COMMITS, METADATA = "offsets", "commits", "metadata"


class Files(Protocol):
    """A file system as Hadoop sees it, with Hadoop's checksums. Files are named by their paths."""

    def names(self, folder: str) -> list[str]:
        """The names in a folder; none if it does not exist."""

    def exists(self, path: str) -> bool: ...

    def read(self, path: str) -> bytes | None:
        """The content of a file; None if the file is missing or does not match its checksum."""

    def replace(self, path: str, content: bytes) -> None:
        """Write a file, atomically if the file system has an atomic rename."""

    def remove(self, path: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Folder:
    """The checkpoint of one query. A missing or damaged file reads as None."""

    files: Files
    path: str

    def numbers(self, log: str) -> list[int]:
        """The batch numbers in `offsets` or `commits`, in order, whatever their files contain."""
        names = self.files.names(f"{self.path}/{log}")
        return sorted(int(name) for name in names if name.isdecimal())

    def next_batch(self) -> int:
        """Return the batch that a query writes first; all earlier ones are in their changelogs.

        It is the last planned batch, unless that is written. The last commit does not show it: a
        repair removes a damaged one, and the batch of it stays written.
        """
        planned = self.numbers(OFFSETS)
        if not planned:
            return 0
        return planned[-1] + self.is_written(planned[-1])

    def read_plan(self, batch: int) -> PlannedBatch | None:
        """Read `offsets/N`. Raises ForeignOffset if it is complete but of another source."""
        return parse_plan(self.read_text(f"{OFFSETS}/{batch}"), f"{self.path}/{OFFSETS}/{batch}")

    def is_written(self, batch: int) -> bool:
        """Whether a readable `commits/N` shows that the batch is in all its changelogs."""
        version, _, about = self.read_text(f"{COMMITS}/{batch}").partition("\n")
        return version.startswith("v") and isinstance(parse_json(about), dict)

    def pipeline(self) -> str | None:
        """The id of the query, which the tables record as their pipeline."""
        metadata = parse_json(self.read_text(METADATA))
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
        self.write_text(f"{OFFSETS}/{batch}", f"v1\n{json.dumps(about)}\n{json.dumps(offset)}")

    def write_pipeline(self, pipeline: str) -> None:
        self.write_text(METADATA, json.dumps({"id": pipeline}))

    def remove(self, name: str) -> None:
        self.files.remove(f"{self.path}/{name}")

    def exists(self, name: str) -> bool:
        return self.files.exists(f"{self.path}/{name}")

    def read_text(self, name: str) -> str:
        """The text of a file, empty if the file is missing or damaged; raises any other error."""
        try:
            return (self.files.read(f"{self.path}/{name}") or b"").decode()
        except UnicodeDecodeError:
            return ""

    def write_text(self, name: str, text: str) -> None:
        self.files.replace(f"{self.path}/{name}", text.encode())
