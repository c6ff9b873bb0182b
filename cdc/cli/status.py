"""Program `status`: the status of a pipeline, whether it runs or not.

It reads the checkpoint, the tables and metrics of the source. It does not start Spark, and reads
no documents except a sample of the collection that is being copied.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from cdc.cli.commands import json_option, pipeline_options, print_result, run_as_command
from cdc.delta.followers import KINDS
from cdc.errors import LEFT, BadOption, CdcError
from cdc.logs import escape_controls
from cdc.model import timestamp
from cdc.mongo.inspect import COPYING
from cdc.monitoring import (
    StatusServer,
    TableStats,
    View,
    age,
    find_lacks,
    known,
    lag_of,
    read_status,
    render_page,
    second,
    summarize,
)
from cdc.pipeline import Config
from cdc.pipeline import config as configuration
from cdc.terminal import Terminal

_EVERY_SECONDS = 2.0

# --- on the terminal -----------------------------------------------------------------------------


def show(console: Console, view: View, lacks: Iterable[str] = ()) -> None:
    """Print the collections, then one line for each fact, each warning and each table's lack."""
    console.print(_collections(view))
    for line in [*_lines(view), *(f"lacks changes: {each}" for each in lacks)]:
        console.print(line, soft_wrap=True)


def watch(console: Console, config: Config) -> NoReturn:
    """Refresh the status every two seconds until Ctrl-C; show an error and try again."""
    screen: RenderableType = _screen(read_status(config))
    with Live(screen, console=console, auto_refresh=False) as live:
        while True:
            live.update(screen, refresh=True)
            time.sleep(_EVERY_SECONDS)
            try:
                screen = _screen(read_status(config))
            except CdcError as error:
                screen = Text(escape_controls(f"error: {error}"))


def serve(console: Console, config: Config, port: int) -> NoReturn:
    """Serve the page until Ctrl-C."""
    with StatusServer(config.name, partial(read_status, config), port) as server:
        console.print(f"The status is at {server.url} until Ctrl-C.")
        server.serve_forever()
    raise KeyboardInterrupt


def _screen(view: View) -> RenderableType:
    return Group(_collections(view), *(Text(escape_controls(line)) for line in _lines(view)))


def _lines(view: View) -> list[str]:
    lines = [f"{name + ':':14}{text}" for name, text in summarize(view).items()]
    return lines + [f"WARNING: {warning}" for warning in view.warnings]


def _collections(view: View) -> Table:
    table = Table(
        "collection", "documents", "phase", "copied", "mirror", "changelog", "written", "lag"
    )
    for extent, tables in view.collections:
        share = known(extent.copied, "{:.0%}") if extent.phase == COPYING else ""
        table.add_row(
            escape_controls(str(extent.namespace)),
            f"{extent.documents:,}",
            extent.phase,
            share,
            _rows(tables.mirror),
            _rows(tables.changelog),
            age(tables),
            lag_of(extent.namespace, tables, view),
        )
    return table


def _rows(table: TableStats | None) -> str:
    return "" if table is None else f"{table.rows:,}"


# --- for programs --------------------------------------------------------------------------------


def describe(view: View) -> dict[str, Any]:
    """A status as a JSON object; `metrics` is the same as in Spark's progress."""
    last = view.checkpoint.last
    return {
        "pipeline": view.name,
        "checkpoint": view.path,
        "batches": {
            "planned": view.checkpoint.planned,
            "written": last and last.batch,
            "beganAt": last and second(last.began),
            "writtenAt": last and last.moment and second(last.moment),
        },
        "metrics": view.metrics.to_json(),
        "freshnessSeconds": view.freshness.to_json(),
        "deadLetters": view.letters,
        "warnings": view.warnings,
        "collections": [
            {
                "namespace": str(extent.namespace),
                "documents": extent.documents,
                "phase": extent.phase,
                "copiedPercent": None if extent.copied is None else round(100 * extent.copied, 1),
                **{kind.name: _describe_table(tables.followers.get(kind.name)) for kind in KINDS},
                "changelog": _describe_table(tables.changelog),
                "freshnessSeconds": view.followers_freshness(extent.namespace, tables),
                "backlog": {
                    kind: {"batches": each.batches, "seconds": round(each.seconds, 1)}
                    for kind, each in tables.backlogs(extent.namespace).items()
                },
            }
            for extent, tables in view.collections
        ],
    }


def _describe_table(table: TableStats | None) -> dict[str, Any] | None:
    if table is None:
        return None
    newest = table.newest
    return {
        "rows": table.rows,
        "batch": newest and newest.commit.batch,
        "time": newest and timestamp.text(newest.commit.watermark),
        "writtenAt": newest and second(newest.moment),
    }


@click.command()
@pipeline_options
@json_option
@click.option("--html", "page", type=click.Path(), help="Write the status as a page to this file.")
@click.option(
    "--serve",
    "port",
    type=click.IntRange(0, 65_535),
    help="Serve the page on this port of 127.0.0.1 until Ctrl-C; 0 means any free port.",
)
@click.option(
    "--contains",
    metavar="TIME",
    help="Exit with code 6 unless all tables contain all changes before TIME (ISO-8601 or t:i).",
)
@click.option("--watch", "is_live", is_flag=True, help="Refresh every two seconds until Ctrl-C.")
@run_as_command
def main(
    path: str | None,
    overrides: tuple[str, ...],
    json_path: str | None,
    page: str | None,
    port: int | None,
    contains: str | None,
    is_live: bool,
) -> int:
    """Show the status of a pipeline, running or not: copies, T, lag, the oplog's window.

    With --contains, the exit code is 6 as long as a table lacks changes before that time.

    Example: mongodb-cdc status --config conf/local.toml --watch
    """
    modes = (is_live, port is not None, bool(json_path or page or contains))
    if sum(modes) > 1:
        raise BadOption(
            "--watch and --serve cannot be combined, nor with --json, --html or --contains.",
            "Call the program repeatedly.",
        )
    before = timestamp.parse(contains) if contains else None
    config = configuration.load(path, overrides)
    if is_live:
        watch(Terminal(), config)
    if port is not None:
        serve(Terminal(), config, port)
    view = read_status(config)
    if page:
        Path(page).write_text(render_page(view))
    if before is None:
        print_result(describe(view), json_path, lambda: show(Terminal(), view))
        return 0
    lacks = find_lacks(config, view, before)
    result = {**describe(view), "lacks": lacks}
    print_result(result, json_path, lambda: show(Terminal(), view, lacks))
    return LEFT if lacks else 0


if __name__ == "__main__":
    main()
