"""The runs of campaigns as a picture: what befell them, and what was compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")
from matplotlib import pyplot


def plot(path: Path, runs: Sequence[Mapping[str, Any]]) -> None:
    """Draw runs as they are in build/soak.json. A run with violations is red."""
    faults = Counter[str]()
    for run in runs:
        faults.update(run["faults"])
    kinds = sorted(faults, key=lambda kind: faults[kind])
    names = [f"{run['began']}, {run['source']}, seed {run['seed']}" for run in runs]
    rows = [run["events_checked"] + run["documents_checked"] for run in runs]
    colours = ["tab:red" if run["violations"] else "tab:green" for run in runs]
    heights = [0.8 + 0.25 * len(kinds), 0.8 + 0.25 * len(runs)]
    figure, (above, below) = pyplot.subplots(
        2, figsize=(10, sum(heights)), height_ratios=heights, layout="constrained"
    )
    above.barh(kinds, [faults[kind] for kind in kinds])
    above.set_xlabel(f"faults of {len(runs)} runs: {faults.total():,}")
    bars = below.barh(names, rows, color=colours)
    below.bar_label(bars, [f"{len(run['violations'])} violations" for run in runs])
    below.margins(x=0.12)
    below.set_xlabel("changes and copied documents that were compared")
    figure.savefig(path)
    pyplot.close(figure)
