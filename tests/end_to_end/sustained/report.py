"""Whether a load was held: figures in build/load.json, and a picture of them."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl

from tests.end_to_end.sustained.samples import Sample

mpl.use("svg")
from matplotlib import pyplot

OUT = Path("build")
# What is no trend, however long a run takes: of a batch more or less, of a heap that Java has not
# looked through yet. The backlog's is that of the lag.
_SLACK = {
    "lag": 8.0,
    "backlog": 0.0,
    "driver": 50.0,
    "jvm": 300.0,
    "workers": 200.0,
    "checkpoint": 2.0**20,
    "offset": 200.0,
}


@dataclass(frozen=True, slots=True)
class Load:
    """What was asked for, on what, and what came of it."""

    rate: int
    seconds: float
    machine: str
    samples: Sequence[Sample]
    events_checked: int = 0
    violations: Sequence[str] = ()

    @property
    def achieved(self) -> float:
        """Writes a second that the server took."""
        first, last = self.samples[0], self.samples[-1]
        return (last.written - first.written) / (last.second - first.second)

    def trend(self, name: str) -> tuple[float, float]:
        """Where the straight line through the second half begins, and where it ends. (In the first
        one Java's heap fills, and it compiles.)"""
        later = self.samples[len(self.samples) // 2 :]
        seconds = [each.second for each in later]
        slope, at_zero = statistics.linear_regression(
            seconds, [getattr(each, name) for each in later]
        )
        return at_zero + slope * seconds[0], at_zero + slope * seconds[-1]

    @property
    def growing(self) -> dict[str, tuple[float, float]]:
        """What grows in the second half by more than chance explains."""
        slack = {**_SLACK, "backlog": _SLACK["lag"] * self.rate}
        found = {name: self.trend(name) for name in slack}
        return {
            name: (begin, end) for name, (begin, end) in found.items() if end - begin > slack[name]
        }

    def to_json(self) -> dict[str, Any]:
        return {
            "machine": self.machine,
            "seconds": self.seconds,
            "rate": self.rate,
            "achieved": round(self.achieved),
            "trends": {name: self.trend(name) for name in _SLACK},
            "most": {name: max(getattr(each, name) for each in self.samples) for name in _SLACK},
            "growing": sorted(self.growing),
            "events_checked": self.events_checked,
            "violations": self.violations,
            "samples": [asdict(each) for each in self.samples],
        }


def written(load: Load) -> None:
    OUT.mkdir(exist_ok=True)
    (OUT / "load.json").write_text(json.dumps(load.to_json(), indent=1) + "\n")
    _plot(load, OUT / "load.svg")


def show(load: Load) -> None:
    print(f"{load.machine}\n{load.achieved:,.0f} of {load.rate:,} writes a second")
    print(f"{load.events_checked:,} changes, {len(load.violations)} violations")
    for name in _SLACK:
        begin, end = load.trend(name)
        word = "GROWS" if name in load.growing else "bounded"
        print(f"{name:12}{begin:14,.1f} -> {end:14,.1f}  {word}")


def _plot(load: Load, path: Path) -> None:
    lines = {
        "lag, s": ("lag",),
        "backlog, writes": ("backlog",),
        "RSS, MB": ("driver", "jvm", "workers"),
        "bytes": ("checkpoint", "offset"),
    }
    figure, axes = pyplot.subplots(
        len(lines), figsize=(10, 10), sharex=True, layout="constrained", squeeze=False
    )
    seconds = [each.second for each in load.samples]
    for axis, (label, names) in zip(axes[:, 0], lines.items(), strict=True):
        for name in names:
            axis.plot(seconds, [getattr(each, name) for each in load.samples], label=name)
        axis.set_ylabel(label)
        axis.set_ylim(bottom=0)
        axis.legend(loc="upper left")
    axes[-1, 0].set_xlabel(f"seconds, at {load.achieved:,.0f} writes a second")
    figure.savefig(path)
    pyplot.close(figure)
