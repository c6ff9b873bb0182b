"""The files in the folder of a local table that its retained versions need, read without Spark.

VACUUM deletes all other files that are old enough. delta-rs cannot tell these: it counts the files
of deletion vectors as unused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from pyarrow.parquet import ParquetFile

from cdc.delta.log.deletion_vectors import vector_path
from cdc.delta.log.live_files import identity_of
from cdc.delta.log.table_reader import NeedsSpark
from cdc.delta.log.target import Target
from cdc.tasks import DELTA_LOG, local_path

_ACTIONS = ("add", "remove")
_FIELDS = ("path", "deletionTimestamp", "deletionVector")
_COMMIT, _CHECKPOINT = ".json", ".checkpoint.parquet"


def list_unneeded(target: Target, before: float) -> list[str]:
    """List the files that VACUUM would delete, relative to the table's folder.

    Args:
        target: An existing table on the local disk.
        before: Seconds since 1970. A file is deleted if it was written earlier, and no version
            needs it that was the newest one at that time or later.

    Raises NeedsSpark if the log has a form that only Delta reads.
    """
    folder = Path(local_path(target.address))
    needed = set(_needed(target, folder / DELTA_LOG, before * 1000))
    return [
        name
        for path in _data_files(folder)
        if (name := str(path.relative_to(folder))) not in needed and path.stat().st_mtime < before
    ]


def _data_files(folder: Path) -> Iterator[Path]:
    """The files of a table, without its log and without hidden files and folders."""
    for path in folder.iterdir():
        if path.name.startswith((".", "_")) and path.name != "_change_data":
            continue
        if path.is_dir():
            yield from _data_files(path)
        else:
            yield path


def _needed(target: Target, log: Path, before: float) -> Iterator[str]:
    """The files of the newest version, and those removed since `before`, in milliseconds."""
    state: dict[Any, Mapping[str, Any]] = {}
    for commit in _read_log(target, log):
        # The actions of one commit are in no order.
        for kind in ("remove", "add"):
            for action in commit:
                if found := action.get(kind):
                    state[identity_of(found)] = found | {"is_live": kind == "add"}
    for found in state.values():
        if found["is_live"] or (found.get("deletionTimestamp") or 0) >= before:
            yield unquote(found["path"])
            if (vector := vector_path(found.get("deletionVector"))) is not None:
                yield vector


def _read_log(target: Target, log: Path) -> Iterator[Sequence[Mapping[str, Any]]]:
    """The actions of the newest checkpoint, and those of each later commit."""
    names = {path.name for path in log.iterdir()}
    commits, checkpoints = (
        sorted(int(name[:20]) for name in names if name[:20].isdecimal() and name[20:] == suffix)
        for suffix in (_COMMIT, _CHECKPOINT)
    )
    first = 0
    if checkpoints:
        first = checkpoints[-1] + 1
        yield [*_read_checkpoint(log / f"{checkpoints[-1]:020}{_CHECKPOINT}")]
    later = [number for number in commits if number >= first]
    if later != list(range(first, first + len(later))) or not (later or checkpoints):
        raise NeedsSpark(f"the log of {target} begins with a checkpoint that only Delta reads")
    for number in later:
        lines = (log / f"{number:020}{_COMMIT}").read_bytes().splitlines()
        yield [json.loads(line) for line in lines if line]


def _read_checkpoint(path: Path) -> Iterator[Mapping[str, Any]]:
    columns = [f"{action}.{name}" for action in _ACTIONS for name in _FIELDS]
    with ParquetFile(path) as file:
        for batch in file.iter_batches(columns=columns):
            yield from batch.to_pylist()
