"""Ours beside the peer, as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl

from tests.bench.result import Result

mpl.use("svg")
from matplotlib import pyplot


def plot(path: Path, results: Sequence[Result]) -> None:
    compared = [each for each in reversed(results) if each.ratio is not None]
    figure, axes = pyplot.subplots(figsize=(9, 0.6 + 0.35 * len(compared)))
    colours = ["tab:green" if each.met else "tab:red" for each in compared]
    axes.barh(
        [each.work for each in compared], [each.ratio or 0 for each in compared], color=colours
    )
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xlabel("times the peer")
    figure.tight_layout()
    figure.savefig(path)
