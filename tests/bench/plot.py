"""Ours beside the peer, and where the CPU time goes, as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl

from tests.bench.processes import KINDS
from tests.bench.result import Result

mpl.use("svg")
from matplotlib import pyplot
from matplotlib.axes import Axes


def plot(path: Path, results: Sequence[Result]) -> None:
    compared = [each for each in reversed(results) if each.ratio is not None]
    works = {f"{name}: {r.work}": cpu for r in reversed(results) for name, cpu in r.cpu.items()}
    heights = [0.6 + 0.35 * len(compared), 1.2 + 0.35 * len(works)]
    figure, (above, below) = pyplot.subplots(
        2, figsize=(10, sum(heights)), height_ratios=heights, layout="constrained"
    )
    _compare(above, compared)
    left = [0.0] * len(works)
    for kind in KINDS:
        seconds = [cpu[kind] for cpu in works.values()]
        below.barh(list(works), seconds, left=left, label=kind)
        left = [sum(pair) for pair in zip(left, seconds, strict=True)]
    below.set_xlabel("CPU seconds of a run")
    if works:
        below.legend(loc="upper center", bbox_to_anchor=(0.4, -0.2), ncols=3)
    figure.savefig(path)


def _compare(axes: Axes, results: Sequence[Result]) -> None:
    colours = ["tab:green" if each.met else "tab:red" for each in results]
    axes.barh([each.work for each in results], [each.ratio or 0 for each in results], color=colours)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xlabel("times the peer")
