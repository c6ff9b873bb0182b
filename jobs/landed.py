"""What a pipeline's tables tell without Spark: how many rows they hold, and what came last.

Read by another engine than the one that writes them. Nothing is told of a table in a catalog, which
is known by its name only, nor of one whose path holds a percent sign: `path` in `[sink]` may, and
so does the folder of an odd name that an earlier version made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import TableNotFoundError

from cdc.delta.commit import Commit
from cdc.delta.target import Target

_COMMITS = 200


@dataclass(frozen=True, slots=True)
class Made:
    """One commit of ours, when it was made, in seconds since 1970, and how many rows it brought or
    changed; None: not told."""

    commit: Commit
    moment: float
    rows: int | None

    @property
    def freshness(self) -> float:
        """Seconds from the batch's own time to the commit."""
        return max(0.0, self.moment - self.commit.watermark.time)


@dataclass(frozen=True, slots=True)
class Landed:
    """What is in a table. `commits` are the newest of ours, the newest first."""

    rows: int
    commits: tuple[Made, ...]

    @property
    def newest(self) -> Made | None:
        return self.commits[0] if self.commits else None


def is_told(target: Target) -> bool:
    """Whether anything can be told of that table."""
    # This engine takes a percent sign in a path for an escape, whatever is put in its place.
    return not target.is_name and "%" not in target.address


def landed(target: Target) -> Landed | None:
    """None if there is no such table yet, or if nothing can be told of it."""
    if not is_told(target):
        return None
    try:
        table = DeltaTable(target.address)
    except TableNotFoundError:
        return None
    found = (_made(each) for each in table.history(_COMMITS))
    return Landed(_rows(table), tuple(each for each in found if each is not None))


def _rows(table: DeltaTable) -> int:
    """Those that a deletion vector has taken away are none."""
    counted = QueryBuilder().register("t", table).execute("SELECT count(*) AS n FROM t").read_all()
    return int(counted["n"][0].as_py())


def _made(entry: Mapping[str, Any]) -> Made | None:
    commit = Commit.parse(entry.get("userMetadata"))
    return None if commit is None else Made(commit, entry["timestamp"] / 1000, _changed(entry))


def _changed(entry: Mapping[str, Any]) -> int | None:
    told = entry.get("operationMetrics", {})
    count = told.get("numSourceRows", told.get("numOutputRows"))
    return None if count is None else int(count)
