"""The data files that a table consists of, read from the JSON files of its log.

What was read once is kept: to follow a table costs one small file per commit. Only a log that was
cleaned up, or that grew by many commits, is read by Delta, with a Spark job.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeAlias
from urllib.parse import unquote

from pyspark.sql import DataFrame, SparkSession

from cdc.delta.log.commit_metadata import Commit
from cdc.delta.log.conflict import Outdated
from cdc.delta.log.target import Target
from cdc.tasks import DELTA_LOG, DataFile, Folder, Storage, open_folder

# A file may be in the table with one vector and have been removed with another.
_Identity: TypeAlias = tuple[str, str]
# To read one file of the log takes less than a millisecond on a local disk.
_MOST_COMMITS = 100
_TIGHT = re.compile(r'"tightBounds":\s*(?:true|false)')


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A data file of a table.

    Attributes:
        action: the fields of its action `add`.
        statistics: Delta's statistics.
    """

    action: Mapping[str, Any]
    statistics: Mapping[str, Any]

    @classmethod
    def of(cls, action: Mapping[str, Any]) -> LiveFile:
        return cls(action, json.loads(action.get("stats") or "{}"))

    @property
    def name(self) -> str:
        """The path of the file in the folder of its table."""
        return unquote(self.action["path"])

    @property
    def is_elsewhere(self) -> bool:
        """Whether the file lies in another folder, as those of a shallow clone do."""
        path = self.action["path"]
        first, *_ = parts = unquote(path).split("/")
        return not first or ":" in first or ".." in parts

    @property
    def vector(self) -> Mapping[str, Any] | None:
        found: Mapping[str, Any] | None = self.action.get("deletionVector")
        return found

    @property
    def stats(self) -> str:
        """The statistics as text."""
        return self.action.get("stats") or "{}"

    @property
    def rows(self) -> int | None:
        """How many rows the file has, those included that its deletion vector marks."""
        found: int | None = self.statistics.get("numRecords")
        return found

    def bounds(self, column: str) -> tuple[str | None, str | None]:
        """Texts that no value of the column is below, or above; None where there is none."""
        return (
            self.statistics.get("minValues", {}).get(column),
            self.statistics.get("maxValues", {}).get(column),
        )

    def removed(self, now: int) -> dict[str, Any]:
        """The action that removes the file, at a time in milliseconds since 1970."""
        kept = ("path", "partitionValues", "size", "tags", "deletionVector", "stats")
        found = {name: self.action[name] for name in kept if self.action.get(name) is not None}
        more = {"deletionTimestamp": now, "dataChange": True, "extendedFileMetadata": True}
        return {"remove": found | more}

    def without_rows(self, vector: Mapping[str, Any]) -> dict[str, Any]:
        """The action that adds the file again with another vector.

        Its bounds are still bounds, though perhaps of values that are gone.
        """
        # As text: Python would round the bounds of decimals.
        text, count = _TIGHT.subn('"tightBounds":false', self.stats)
        statistics = text if count else text.rstrip().removesuffix("}") + ',"tightBounds":false}'
        found = {name: value for name, value in self.action.items() if value is not None}
        return {"add": found | {"deletionVector": vector, "stats": statistics, "dataChange": True}}


@dataclass(slots=True)
class LiveFiles:
    """The data files of one table at a version, `version`. Used by one thread at a time."""

    target: Target
    version: int = -1
    _files: dict[_Identity, LiveFile] = field(default_factory=dict)

    def read(self, spark: SparkSession, version: int, storage: Storage) -> list[LiveFile]:
        """The files of that version of the table, the newest.

        Raises Outdated if there is a newer one.
        """
        log = open_folder(f"{self.target.address}/{DELTA_LOG}", storage)
        is_known = 0 <= version - self.version <= _MOST_COMMITS
        if not is_known or not self._follow(log, version):
            self._load(spark, version)
        return [*self._files.values()]

    def _follow(self, log: Folder, version: int) -> bool:
        """Read the commits after the known version; return whether the log contains them all."""
        files = dict(self._files)
        for number in range(self.version + 1, version + 1):
            if (actions := _read_commit(log, number)) is None:
                return False
            _replay(files, actions)
        self._files, self.version = files, version
        return True

    def _load(self, spark: SparkSession, version: int) -> None:
        snapshot = self.target.snapshot(spark)
        if snapshot.version() != version:
            raise Outdated
        rows = DataFrame(snapshot.allFiles().toJSON().toDF(), spark).collect()
        found = (LiveFile.of(json.loads(row.value)) for row in rows)
        self._files = {identity_of(each.action): each for each in found}
        self.version = version


def files_of_batches(
    target: Target, versions: Mapping[int, int], storage: Storage
) -> dict[int, list[DataFile]] | None:
    """The data files that batches added to a table, as long as nobody has changed or moved them.

    None if somebody has, or if the log does not contain the commits any more.

    Args:
        target: the table.
        versions: the version that each batch made.
        storage: how folders are reached that are URLs.
    """
    log = open_folder(f"{target.address}/{DELTA_LOG}", storage)
    batches = {version: batch for batch, version in versions.items()}
    found, names = dict[int, list[DataFile]](), set[str]()
    for version in count(min(batches)):
        if (actions := _read_commit(log, version)) is None:
            break
        if any("remove" in action and action["remove"]["path"] in names for action in actions):
            return None
        if version in batches:
            if not _is_of(actions, batches[version]):
                return None
            files = [LiveFile.of(action["add"]) for action in actions if "add" in action]
            if any(each.is_elsewhere or each.rows is None for each in files):
                return None
            names.update(each.action["path"] for each in files)
            found[batches[version]] = [
                DataFile(target.address, each.name, each.action["size"], each.rows, each.stats)
                for each in files
                if each.rows is not None
            ]
    return found if len(found) == len(batches) else None


def _is_of(actions: Iterable[Mapping[str, Any]], batch: int) -> bool:
    """Whether a commit is that of a batch."""
    about = next((each["commitInfo"] for each in actions if "commitInfo" in each), None)
    commit = Commit.parse(about and about.get("userMetadata"))
    return commit is not None and commit.batch == batch


def _read_commit(log: Folder, version: int) -> list[Mapping[str, Any]] | None:
    """The actions of a commit; None if the log does not contain it."""
    try:
        stream = log.open(f"{version:020}.json")
    except FileNotFoundError:
        return None
    with closing(stream):
        return [json.loads(line) for line in stream.read().splitlines()]


def _replay(files: dict[_Identity, LiveFile], actions: Iterable[Mapping[str, Any]]) -> None:
    """Apply the actions of one commit, which are in no order."""
    added = list[Mapping[str, Any]]()
    for action in actions:
        if "remove" in action:
            files.pop(identity_of(action["remove"]), None)
        elif "add" in action:
            added.append(action["add"])
    for each in added:
        files[identity_of(each)] = LiveFile.of(each)


def identity_of(action: Mapping[str, Any]) -> _Identity:
    """What distinguishes the file of an action `add` or `remove` from others in the table."""
    vector = action.get("deletionVector") or {}
    place = f"{vector.get('storageType')}{vector.get('pathOrInlineDv')}@{vector.get('offset')}"
    return action["path"], place if vector else ""
