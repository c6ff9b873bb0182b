"""A table's log and its data files, read as JSON and Parquet, and counted by delta-rs.

What must not be: a commit that names a missing file, a file that two commits add, a batch or a
transaction in two commits, statistics that exclude a row, a summary that counts other rows than a
commit has. A file that no commit names is allowed where an attempt was killed or failed; nobody
reads it, and VACUUM removes it.
"""

from __future__ import annotations

import datetime
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable, QueryBuilder

_CONTROL_OPS = ("watermark", "void")


class LogEntry(NamedTuple):
    """A commit. `stated` is its userMetadata if a batch of a pipeline made it, else empty."""

    version: int
    actions: list[dict[str, Any]]
    stated: Mapping[str, Any]

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [action[kind] for action in self.actions if kind in action]


def read_log(folder: Path) -> list[LogEntry]:
    """The commits whose JSON is still there, the first first; none if there is no table."""
    return [_entry(path) for path in sorted((folder / "_delta_log").glob("[0-9]*.json"))]


def _entry(path: Path) -> LogEntry:
    actions = [json.loads(line) for line in path.read_text().splitlines()]
    stated: Mapping[str, Any] = {}
    for action in actions:
        text = action.get("commitInfo", {}).get("userMetadata", "")
        with suppress(ValueError):  # somebody else may state anything there
            if text and "batch" in (found := json.loads(text)):
                stated = found
    return LogEntry(int(path.stem), actions, stated)


def newest(folder: Path, batch: int | None = None) -> tuple[int, int]:
    """The version and the batch of a table's last commit of a batch up to `batch`; -1 and -1
    without one."""
    stated = [(each.version, each.stated["batch"]) for each in read_log(folder) if each.stated]
    return max((each for each in stated if batch is None or each[1] <= batch), default=(-1, -1))


def count_rows(folder: Path, version: int) -> int:
    """The rows of a version, counted by delta-rs."""
    return int(query(folder, version, "SELECT count(*) AS n FROM t")[0]["n"])


def query(folder: Path, version: int, sql: str) -> list[dict[str, Any]]:
    """The rows of a query of the table `t`, which is a version, by delta-rs."""
    engine = QueryBuilder().register("t", DeltaTable(str(folder), version=version))
    rows: list[dict[str, Any]] = pa.table(engine.execute(sql).read_all()).to_pylist()
    return rows


def unnamed_files(folder: Path) -> set[str]:
    """The data files in a table's folder that no commit has ever named."""
    found = {path.name for path in folder.glob("*.parquet")}
    return found - {_path(add) for entry in read_log(folder) for add in entry.of("add")}


def log_violations(folder: Path) -> Iterator[str]:
    """What is wrong with the commits of a table."""
    log, added = read_log(folder), dict[str, int]()
    for entry in log:
        removed = {_path(each) for each in entry.of("remove")}
        names = Counter(map(_path, entry.of("add")))
        for name, count in names.items():
            if count > 1:
                yield f"version {entry.version} adds {name} {count} times"
            if name in added and name not in removed:
                yield f"versions {added[name]} and {entry.version} add {name}"
            if not (folder / name).is_file():
                yield f"version {entry.version} names {name}, which is missing"
            added[name] = entry.version
    written = Counter((each["appId"], each["version"]) for entry in log for each in entry.of("txn"))
    for (_, version), count in written.items():
        if count > 1:
            yield f"{count} commits have the transaction {version}"


def _path(action: Mapping[str, Any]) -> str:
    return unquote(str(action["path"]))


def repeated_batches(folder: Path) -> Iterator[str]:
    """The batches that several commits of a changelog contain."""
    batches = Counter(each.stated["batch"] for each in read_log(folder) if each.stated)
    for batch, count in batches.items():
        if count > 1:
            yield f"{count} commits contain batch {batch}"


def wrong_summaries(folder: Path, rows: Mapping[int, Mapping[str, int]]) -> Iterator[str]:
    """The batches whose commit counts other rows than it has; `rows` by batch and operation."""
    for entry in read_log(folder):
        stated = Counter[str]()
        for group in entry.stated.get("groups", ()):
            if group.get("coll") is not None and group["op"] not in _CONTROL_OPS:
                stated[group["op"]] += group["rows"]
        batch = entry.stated.get("batch")
        if batch in rows and stated != Counter(rows[batch]):
            yield f"the commit of batch {batch} states {dict(stated)}, and has {dict(rows[batch])}"


def wrong_statistics(folder: Path) -> Iterator[str]:
    """The files of the newest version whose statistics exclude a row, or count others."""
    active = dict[str, dict[str, Any]]()
    for entry in read_log(folder):
        for removed in entry.of("remove"):
            active.pop(_path(removed), None)
        active.update((_path(added), added) for added in entry.of("add"))
    for name, added in active.items():
        if added.get("stats") and (folder / name).is_file():
            for what in _excluded(folder / name, json.loads(added["stats"])):
                yield f"{name}: {what}"


def _excluded(path: Path, stats: Mapping[str, Any]) -> Iterator[str]:
    with pq.ParquetFile(path) as file:
        if stats.get("numRecords") != file.metadata.num_rows:
            yield f"'numRecords' is {stats.get('numRecords')}"
        bounds = {
            kind: dict(_leaves(stats.get(kind, {})))
            for kind in ("minValues", "maxValues", "nullCount")
        }
        columns = sorted({".".join(place) for each in bounds.values() for place in each})
        rows = file.read(columns=columns)
    for place in sorted({place for each in bounds.values() for place in each}):
        values = _values(rows, place)
        name, nulls = ".".join(place), bounds["nullCount"].get(place)
        if nulls is not None and nulls != values.null_count:
            yield f"'nullCount' of {name} is {nulls}"
        seen = pc.min_max(values).as_py()
        for kind, is_out in (("min", lambda a, b: a > b), ("max", lambda a, b: a < b)):
            bound = bounds[f"{kind}Values"].get(place)
            if None not in (bound, seen[kind]) and is_out(_plain(bound, seen[kind]), seen[kind]):
                yield f"a row lies beyond the {kind}imum of {name}"


def _leaves(tree: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterable[tuple[Any, Any]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _leaves(value, (*above, name))
        else:
            yield (*above, name), value


def _values(rows: pa.Table, place: tuple[str, ...]) -> Any:
    values = rows.column(place[0]).combine_chunks()
    for name in place[1:]:
        values = pc.struct_field(values, name)
    return values


def _plain(bound: Any, like: Any) -> Any:
    """A bound in JSON as a value of the column."""
    if isinstance(like, datetime.datetime):
        found = datetime.datetime.fromisoformat(bound)
        return found if like.tzinfo else found.replace(tzinfo=None)
    return bound
