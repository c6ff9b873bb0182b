"""`make bench` and `make bench-growth`: the figures of the page on performance, in
build/bench.json, build/bench-live.json and build/bench-growth.json."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import click
from rich.console import Console

from tests.bench import changes, growth, live, memory, snapshots
from tests.bench.plot import plot
from tests.bench.result import Result, machine, markdown, show, written
from tests.bench.stage import Stage, stage

OUT = Path("build")
_COMPARED = ["snapshots", "changes", "memory"]


@click.command()
@click.option("--runs", default=5, show_default=True, help="Of each work, after one to warm up.")
@click.option("--documents", default=1_000_000, show_default=True)
@click.option("--changes", "events", default=300_000, show_default=True)
@click.option("--large", default=10_000_000, show_default=True, help="Documents that it grows to.")
@click.option(
    "--only",
    multiple=True,
    default=_COMPARED,
    show_default=True,
    help="Of these, live and growth.",
)
@click.option("--name", default="bench", show_default=True, help="Of the files in build.")
def main(
    runs: int, documents: int, events: int, large: int, only: tuple[str, ...], name: str
) -> None:
    console, results, began = Console(), list[Result](), time.monotonic()
    with (
        tempfile.TemporaryDirectory() as folder,
        stage(Path(folder), documents, events) as scene,
    ):
        for kind, work in _works(runs, large).items():
            if kind not in only:
                continue
            for result in work(scene):
                results.append(result)
                written(OUT / f"{name}.json", results)
                took = f"after {time.monotonic() - began:.0f} s"
                figure = f"{result.ours:,.4g} {result.unit}"
                console.print(f"{took}: {result.work}: {figure}", highlight=False)
        with scene.server.client() as client:
            caption = machine(client.server_info()["version"])
    caption = f"{caption}: {documents:,} documents, {events:,} changes, medians of {runs} runs"
    console.print(caption, highlight=False)
    show(console, results)
    (OUT / f"{name}.md").write_text(markdown(caption, results))
    plot(OUT / f"{name}.svg", results)


def _works(runs: int, large: int) -> Mapping[str, Callable[[Stage], Iterator[Result]]]:
    return {
        "snapshots": partial(snapshots.run, runs=runs),
        "changes": partial(changes.run, runs=runs),
        "live": live.run,
        "memory": memory.run,
        "growth": partial(growth.run, large=large),
    }


if __name__ == "__main__":
    main()
