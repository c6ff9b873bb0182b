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
_GROWTH = 1.1
# What is no trend: of a batch more or less, of a heap that Java has not looked through yet. The
# backlog's is that of the lag.
_SLACK = {
    "lag": 5.0,
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

    @property
    def achieved(self) -> float:
        """Writes a second that the server took."""
        first, last = self.samples[0], self.samples[-1]
        return (last.written - first.written) / (last.second - first.second)

    def medians(self, name: str) -> tuple[float, float]:
        """Of the middle third and of the last one."""
        third = len(self.samples) // 3
        values = [getattr(each, name) for each in self.samples]
        middle, last = values[third : 2 * third], values[2 * third :]
        return statistics.median(middle), statistics.median(last)

    @property
    def growing(self) -> dict[str, tuple[float, float]]:
        """What is larger in the last third than in the middle one by more than chance explains."""
        slack = {**_SLACK, "backlog": _SLACK["lag"] * self.rate}
        found = {name: self.medians(name) for name in slack}
        return {
            name: (middle, last)
            for name, (middle, last) in found.items()
            if last > _GROWTH * middle + slack[name]
        }

    def to_json(self) -> dict[str, Any]:
        return {
            "machine": self.machine,
            "seconds": self.seconds,
            "rate": self.rate,
            "achieved": round(self.achieved),
            "medians": {name: self.medians(name) for name in _SLACK},
            "most": {name: max(getattr(each, name) for each in self.samples) for name in _SLACK},
            "growing": sorted(self.growing),
            "samples": [asdict(each) for each in self.samples],
        }


def written(load: Load) -> None:
    OUT.mkdir(exist_ok=True)
    (OUT / "load.json").write_text(json.dumps(load.to_json(), indent=1) + "\n")
    _plot(load, OUT / "load.svg")


def show(load: Load) -> None:
    print(f"{load.machine}\n{load.achieved:,.0f} of {load.rate:,} writes a second")
    for name in _SLACK:
        middle, last = load.medians(name)
        word = "GROWS" if name in load.growing else "bounded"
        print(f"{name:12}{middle:14,.1f} -> {last:14,.1f}  {word}")


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
