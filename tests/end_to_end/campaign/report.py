"""What a campaign does and has done: lines, a table, build/soak.json run after run, a picture."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path

import rich.table
from rich.console import Console

from tests.end_to_end.campaign.picture import plot

OUT = Path("build/soak.json")
_LINE_SECONDS = 15.0


@dataclass
class Report:
    """`machine`: what it ran on, versions included; `events_checked` are rows of changes,
    `documents_checked` those of copies; `unnamed_files` are data files in the changelogs' folders
    that no commit names, as killed attempts leave them; `methods` counts rounds by `read.by`;
    `endings` are exit codes of the job, by how often; `writes_refused` those whose outcome the
    writers do not know; `ends` is when the last round begins at the latest, by the monotonic
    clock."""

    source: str
    seed: int
    machine: str
    began: str = field(default_factory=lambda: f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}")
    seconds: float = 0.0
    rounds: int = 0
    methods: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    events_checked: int = 0
    documents_checked: int = 0
    unnamed_files: int = 0
    violations: list[str] = field(default_factory=list)
    endings: Counter[int] = field(default_factory=Counter)
    writes_refused: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._start, self._said = time.monotonic(), -_LINE_SECONDS
        self.ends: float | None = None

    def say(self, phase: str, batch: int) -> None:
        """Print a line of what goes on, at most one each 15 s."""
        now = time.monotonic()
        if now < self._said + _LINE_SECONDS:
            return
        self._said = now
        left = f", {max(0, self.ends - now):,.0f} s left" if self.ends else ""
        print(
            f"{self.source}, round {self.rounds + 1}, {phase}: batch {batch},"
            f" {self.faults.total():,} faults, {self.events_checked:,} events and"
            f" {self.documents_checked:,} documents of earlier rounds compared,"
            f" {len(self.violations)} violations{left}",
            flush=True,
        )

    def written(self) -> None:
        self.seconds = round(time.monotonic() - self._start)
        OUT.parent.mkdir(parents=True, exist_ok=True)
        reported = {each.name: getattr(self, each.name) for each in fields(self)}
        runs = json.loads(OUT.read_text()) if OUT.exists() else []
        others = [run for run in runs if run["began"] != self.began]
        runs = [*others, reported]
        OUT.write_text(json.dumps(runs, indent=2) + "\n")
        plot(OUT.with_suffix(".svg"), runs)

    def show(self, console: Console) -> None:
        table = rich.table.Table("fault", "times", title=f"{self.source}, seed {self.seed}")
        for kind, times in sorted(self.faults.items()):
            table.add_row(kind, str(times))
        console.print(table)
        console.print(
            f"{self.seconds:,.0f} s, {self.rounds} rounds ({_text(self.methods)}),"
            f" {self.faults.total():,} faults, {self.documents_checked:,} documents copied and"
            f" {self.events_checked:,} events checked, {len(self.violations)} violations",
            highlight=False,
        )


def _text(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
