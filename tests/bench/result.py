"""The results of each work, as text, table and picture."""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path

import psutil
import rich.table
from rich.console import Console

_HEADER = ["work", "ours", "peer", "ratio", "of the limit", "goal", "met"]


@dataclass(frozen=True, slots=True)
class Result:
    """One line: ours and the peer's figure in `unit`; `limit_ratio` is the share of what would be
    possible at most. None: there is no such thing to compare with. `cpu`: of us, the peer and the
    limits, the CPU seconds of a run by kind of process."""

    work: str
    unit: str
    ours: float
    goal: str
    met: bool
    peer: float | None = None
    limit_ratio: float | None = None
    cpu: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @property
    def ratio(self) -> float | None:
        return self.ours / self.peer if self.peer else None


def machine(server: str | None = None) -> str:
    """What it was measured on, in one line; with the server's version, if there was one."""
    names = ("pyspark", "delta-spark", "pymongo", "numba")
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    memory = round(psutil.virtual_memory().total / 2**30)
    versions = [f"{name} {version(name)}" for name in names]
    return ", ".join(
        [
            f"commit {commit.stdout.strip() or 'unknown'}",
            f"{psutil.cpu_count()} cores with {memory} GiB",
            *([f"MongoDB {server}"] if server else []),
            f"Python {platform.python_version()}",
            *versions,
        ]
    )


def written(path: Path, results: Sequence[Result]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [{**asdict(each), "ratio": each.ratio} for each in results]
    path.write_text(json.dumps(lines, indent=2) + "\n")


def show(console: Console, results: Sequence[Result]) -> None:
    table = rich.table.Table(*_HEADER)
    for each in results:
        table.add_row(*_cells(each))
    console.print(table)


def markdown(caption: str, results: Sequence[Result]) -> str:
    """The table of the page *Performance*."""
    rows = [_HEADER, ["---"] * len(_HEADER), *map(_cells, results)]
    return f"{caption}\n\n" + "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _cells(each: Result) -> list[str]:
    share = "" if each.limit_ratio is None else f"{each.limit_ratio:.0%}"
    peer = "" if each.peer is None else _number(each.peer)
    ratio = "" if each.ratio is None else f"{each.ratio:.2f}"
    met = "yes" if each.met else "NO"
    return [each.work, f"{_number(each.ours)} {each.unit}", peer, ratio, share, each.goal, met]


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
