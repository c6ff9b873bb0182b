"""A lakehouse as its files report it: the commits of all its tables, in the order in which they
were made, what the tables hold, and what a writer leaves that is killed between two of them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder


class Made(NamedTuple):
    """A commit: the table's path under the lakehouse, and the version that it made."""

    table: str
    version: int

    def file(self, base: Path) -> Path:
        return base / self.table / f"_delta_log/{self.version:020}.json"

    def is_creation(self, base: Path) -> bool:
        """Whether it only creates the table."""
        return '"operation":"CREATE TABLE"' in self.file(base).read_text()

    def is_growth(self, base: Path) -> bool:
        """Whether it changes the columns of a table that is there."""
        return self.version > 0 and '{"metaData":' in self.file(base).read_text()


def made(base: Path) -> list[Made]:
    """All commits, the first first."""
    files = sorted(base.rglob("_delta_log/*.json"), key=lambda file: file.stat().st_mtime_ns)
    return [Made(str(each.parents[1].relative_to(base)), int(each.stem)) for each in files]


def newest(commits: Iterable[Made]) -> dict[str, int]:
    """The version of each table after these commits."""
    return {each.table: each.version for each in sorted(commits)}


def held(base: Path, versions: Mapping[str, int]) -> dict[str, Any]:
    """What each table is at that version, by another engine: rows, columns, properties, and what
    its last commit says."""
    return {table: _held(base, Made(table, version)) for table, version in versions.items()}


def _held(base: Path, commit: Made) -> tuple[Any, ...]:
    table = DeltaTable(str(base / commit.table), version=commit.version)
    rows = QueryBuilder().register("t", table).execute("SELECT * FROM t").read_all()
    actions = map(json.loads, commit.file(base).read_text().splitlines())
    [info] = [each["commitInfo"] for each in actions if "commitInfo" in each]
    return (
        sorted(map(repr, pa.table(rows).to_pylist())),
        table.schema().to_json(),
        table.metadata().configuration,
        info.get("userMetadata"),
    )


def left_over(base: Path, into: Path, commits: Iterable[Made]) -> None:
    """What there would be on disk if only these of its commits had been made: data files of later
    ones too, for they come before their commit."""
    shutil.copytree(base, into)
    last = newest(commits)
    for log in [*into.rglob("_delta_log")]:
        table = str(log.parent.relative_to(into))
        if table not in last:
            shutil.rmtree(log.parent)
            continue
        for file in log.iterdir():
            number = file.name.lstrip(".").partition(".")[0]
            if number.isdecimal() and int(number) > last[table]:
                file.unlink()
