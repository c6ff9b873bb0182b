"""Program `status`: the status of a pipeline, whether it runs or not.

It reads the checkpoint, the tables and metrics of the source. It does not start Spark, and reads
no documents except a sample of the collection that is being copied.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from cdc.checkpoint import Checkpoint
from cdc.cli.commands import json_option, print_result, run_as_command
from cdc.errors import BadOption, CdcError
from cdc.logs import escape_controls
from cdc.model import Namespace, Timestamp, timestamp
from cdc.mongo.inspect import COPYING
from cdc.monitoring import Tables, TableStats, View, read_status
from cdc.pipeline import Config
from cdc.pipeline import config as configuration
from cdc.terminal import Terminal

_EVERY_SECONDS = 2.0

# --- on the terminal -----------------------------------------------------------------------------


def show(console: Console, view: View) -> None:
    """Print the collections, then one line for each fact and each warning."""
    console.print(_collections(view))
    for line in _lines(view):
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


def _screen(view: View) -> RenderableType:
    return Group(_collections(view), *(Text(escape_controls(line)) for line in _lines(view)))


def _lines(view: View) -> list[str]:
    lines = [f"{name + ':':14}{text}" for name, text in summarize_view(view).items()]
    return lines + [f"WARNING: {warning}" for warning in view.warnings]


def summarize_view(view: View) -> dict[str, str]:
    """The status of the whole pipeline as text, by label."""
    metrics = view.metrics
    return {
        "batches": f"{_batches(view.checkpoint)} ({view.path})",
        "T": "none yet" if metrics.time is None else _moment(metrics.time),
        "live edge": "unknown" if metrics.live_edge is None else _moment(metrics.live_edge),
        "lag": "none yet" if metrics.time is None else _known(metrics.lag_seconds, "{:,} s"),
        "freshness": _freshness(view),
        "changes": _known(metrics.events_per_second, "{:,.1f} events/s in the last batches"),
        "oplog": _known(metrics.oplog_left, "{0.hours:.1f} hours ({0.percent:.0f} %) left"),
        "copied": _known(metrics.snapshot_percent, "{:.1f} %"),
        "dead letters": _known(view.letters, "{:,}"),
    }


def _collections(view: View) -> Table:
    table = Table(
        "collection", "documents", "phase", "copied", "mirror", "changelog", "written", "lag"
    )
    for extent, tables in view.collections:
        share = _known(extent.copied, "{:.0%}") if extent.phase == COPYING else ""
        table.add_row(
            escape_controls(str(extent.namespace)),
            f"{extent.documents:,}",
            extent.phase,
            share,
            _rows(tables.mirror),
            _rows(tables.changelog),
            _age(tables),
            _lag(extent.namespace, tables, view),
        )
    return table


def _rows(table: TableStats | None) -> str:
    return "" if table is None else f"{table.rows:,}"


def _age(tables: Tables) -> str:
    newest = [each.newest for each in (tables.changelog, tables.mirror) if each and each.newest]
    if not newest:
        return ""
    return f"{time.time() - max(made.moment for made in newest):,.0f} s ago"


def _lag(namespace: Namespace, tables: Tables, view: View) -> str:
    """The batches that mirror and history lack, and their freshness.

    Empty if they lack nothing, or if it is not known.
    """
    freshness = view.followers_freshness(namespace, tables)
    return ", ".join(
        f"{kind} {each.batches:,} batch{'' if each.batches == 1 else 'es'},"
        f" {_known(freshness[kind], '{:,} s')}"
        for kind, each in tables.backlogs(namespace).items()
        if each.batches
    )


def _freshness(view: View) -> str:
    changelog, mirror = view.freshness
    if changelog is None:
        return "none yet" if view.metrics.time is None else "unknown"
    followers = "" if mirror is None else f", mirrors and histories {mirror:,} s"
    return f"changelogs and live views {changelog:,} s{followers}"


def _batches(checkpoint: Checkpoint) -> str:
    if checkpoint.planned is None:
        return "none yet"
    if checkpoint.last is None:
        return f"{checkpoint.planned} is planned, none is written"
    last = checkpoint.last
    if last.moment is None:
        text = f"{last.batch} is written, and began {time.time() - last.began:,.0f} s ago"
    else:
        text = f"{last.batch} was written {time.time() - last.moment:,.0f} s ago"
    if checkpoint.planned == last.batch:
        return text
    return f"{text}, {checkpoint.planned} is planned"


def _moment(at: Timestamp) -> str:
    return f"{_second(at.time)} ({timestamp.text(at)})"


def _second(moment: float) -> str:
    return f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%dT%H:%M:%SZ}"


def _known(value: Any, form: str) -> str:
    return "unknown" if value is None else form.format(value)


# --- for programs --------------------------------------------------------------------------------


def describe(view: View) -> dict[str, Any]:
    """A status as a JSON object; `metrics` is the same as in Spark's progress."""
    last = view.checkpoint.last
    return {
        "checkpoint": view.path,
        "batches": {
            "planned": view.checkpoint.planned,
            "written": last and last.batch,
            "beganAt": last and _second(last.began),
            "writtenAt": last and last.moment and _second(last.moment),
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
                "mirror": _describe_table(tables.mirror),
                "history": _describe_table(tables.history),
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


def _write(path: str, view: View) -> None:
    try:
        from cdc.monitoring import html_report
    except ImportError as error:
        raise BadOption(
            "--html needs matplotlib, which is not installed.",
            "Install it: pip install 'mongodb-cdc-spark[report]'.",
        ) from error
    Path(path).write_text(html_report.render_page(view, summarize_view(view)))


def _describe_table(table: TableStats | None) -> dict[str, Any] | None:
    if table is None:
        return None
    newest = table.newest
    return {
        "rows": table.rows,
        "batch": newest and newest.commit.batch,
        "time": newest and timestamp.text(newest.commit.watermark),
        "writtenAt": newest and _second(newest.moment),
    }


@click.command()
@click.option("--config", "path", type=click.Path(), help="TOML file; see conf/example.toml.")
@click.option("-o", "--option", "overrides", multiple=True, help="name=value; overrides the file.")
@json_option
@click.option("--html", "page", type=click.Path(), help="Write a page with plots to this file.")
@click.option("--watch", "is_live", is_flag=True, help="Refresh every two seconds until Ctrl-C.")
@run_as_command
def main(
    path: str | None,
    overrides: tuple[str, ...],
    json_path: str | None,
    page: str | None,
    is_live: bool,
) -> int:
    """Show the status of a pipeline, running or not: copies, T, lag, the oplog's window.

    Example: mongodb-cdc status --config conf/local.toml --watch
    """
    if is_live and (json_path or page):
        raise BadOption(
            "--watch cannot be combined with --json or --html.", "Call the program repeatedly."
        )
    config = configuration.load(path, overrides)
    if is_live:
        watch(Terminal(), config)
    view = read_status(config)
    if page:
        _write(page, view)
    print_result(describe(view), json_path, lambda: show(Terminal(), view))
    return 0


if __name__ == "__main__":
    main()
