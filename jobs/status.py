"""Status: where a pipeline stands, running or not, by its checkpoint, its tables and its source.

Starts no Spark, and reads no document but a sample of what is being copied.
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

from cdc.errors import BadOption, CdcError
from cdc.logs import plain
from cdc.model import timestamp
from cdc.model.timestamp import Timestamp
from cdc.mongo.copies import COPYING
from jobs import config as configuration
from jobs.checkpoint import Checkpoint
from jobs.config import Config
from jobs.landed import Landed
from jobs.result import json_option, tell, told
from jobs.standing import Tables, View, look
from jobs.terminal import Terminal

_EVERY_SECONDS = 2.0

# --- on the terminal -----------------------------------------------------------------------------


def show(console: Console, view: View) -> None:
    """The collections, then one line each for batches, time, oplog and copy, and the warnings."""
    console.print(_collections(view))
    for line in _lines(view):
        console.print(line, soft_wrap=True)


def watch(console: Console, config: Config) -> NoReturn:
    """Anew every two seconds, until Ctrl-C. What fails for now is told, and asked again."""
    said: RenderableType = _screen(look(config))
    with Live(said, console=console, auto_refresh=False) as live:
        while True:
            live.update(said, refresh=True)
            time.sleep(_EVERY_SECONDS)
            try:
                said = _screen(look(config))
            except CdcError as error:
                said = Text(plain(f"error: {error}"))


def _screen(view: View) -> RenderableType:
    return Group(_collections(view), *(Text(plain(line)) for line in _lines(view)))


def _lines(view: View) -> list[str]:
    said = [f"{name + ':':14}{text}" for name, text in facts(view).items()]
    return said + [f"WARNING: {warning}" for warning in view.warnings]


def facts(view: View) -> dict[str, str]:
    """What is told of the pipeline, in words, by what it is of."""
    metrics = view.metrics
    return {
        "batches": f"{_batches(view.kept)} ({view.path})",
        "T": "none yet" if metrics.time is None else _moment(metrics.time),
        "live edge": "unknown" if metrics.live_edge is None else _moment(metrics.live_edge),
        "lag": _known(metrics.lag_seconds, "{} s"),
        "freshness": _known(view.freshness, "{:.1f} s, of the last commit with rows"),
        "changes": _known(metrics.events_per_second, "{:,.1f} events/s in the last batches"),
        "oplog": _known(metrics.oplog_left, "{0.hours:.1f} hours ({0.percent:.0f} %) left"),
        "copied": _known(metrics.snapshot_percent, "{:.1f} %"),
        "dead letters": _known(view.letters, "{:,}"),
    }


def _collections(view: View) -> Table:
    table = Table("collection", "documents", "phase", "copied", "mirror", "changelog", "written")
    for extent, tables in view.collections:
        share = _known(extent.copied, "{:.0%}") if extent.phase == COPYING else ""
        table.add_row(
            plain(str(extent.namespace)),
            f"{extent.documents:,}",
            extent.phase,
            share,
            _rows(tables.mirror),
            _rows(tables.changelog),
            _age(tables),
        )
    return table


def _rows(table: Landed | None) -> str:
    return "" if table is None else f"{table.rows:,}"


def _age(tables: Tables) -> str:
    newest = [each.newest for each in (tables.changelog, tables.mirror) if each and each.newest]
    if not newest:
        return ""
    return f"{time.time() - max(made.moment for made in newest):,.0f} s ago"


def _batches(kept: Checkpoint) -> str:
    if kept.planned is None:
        return "none yet"
    if kept.last is None:
        return f"{kept.planned} is planned, none is written"
    last = kept.last
    if last.moment is None:
        text = f"{last.batch} is written, and began {time.time() - last.began:,.0f} s ago"
    else:
        text = f"{last.batch} was written {time.time() - last.moment:,.0f} s ago"
    return text if kept.planned == kept.last.batch else f"{text}, {kept.planned} is planned"


def _moment(at: Timestamp) -> str:
    return f"{_second(at.time)} ({timestamp.text(at)})"


def _second(moment: float) -> str:
    return f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%dT%H:%M:%SZ}"


def _known(value: Any, form: str) -> str:
    return "unknown" if value is None else form.format(value)


# --- for programs --------------------------------------------------------------------------------


def described(view: View) -> dict[str, Any]:
    """All of it as JSON takes it; `metrics` as Spark's progress has them."""
    last = view.kept.last
    return {
        "checkpoint": view.path,
        "batches": {
            "planned": view.kept.planned,
            "written": last and last.batch,
            "beganAt": last and _second(last.began),
            "writtenAt": last and last.moment and _second(last.moment),
        },
        "metrics": view.metrics.to_json(),
        "freshnessSeconds": None if view.freshness is None else round(view.freshness, 1),
        "deadLetters": view.letters,
        "warnings": view.warnings,
        "collections": [
            {
                "namespace": str(extent.namespace),
                "documents": extent.documents,
                "phase": extent.phase,
                "copiedPercent": None if extent.copied is None else round(100 * extent.copied, 1),
                "mirror": _described(tables.mirror),
                "changelog": _described(tables.changelog),
            }
            for extent, tables in view.collections
        ],
    }


def _write(path: str, view: View) -> None:
    try:
        from jobs import report
    except ImportError as error:
        raise BadOption(
            "--html needs matplotlib, which is not installed.",
            "pip install 'mongodb-cdc-spark[report]'",
        ) from error
    Path(path).write_text(report.page(view, facts(view)))


def _described(table: Landed | None) -> dict[str, Any] | None:
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
@click.option("--config", "path", type=click.Path(), help="TOML file; conf/example.toml shows all.")
@click.option("-o", "--option", "overrides", multiple=True, help="name=value, over the file's.")
@json_option
@click.option("--html", "page", type=click.Path(), help="Write a page with plots to this file.")
@click.option("--watch", "goes_on", is_flag=True, help="Look again every two seconds, to Ctrl-C.")
@told
def main(
    path: str | None,
    overrides: tuple[str, ...],
    json_path: str | None,
    page: str | None,
    goes_on: bool,
) -> int:
    """Tell where a pipeline stands, running or not: copies, T, lag, what the oplog has left.

    Example: mongodb-cdc status --config conf/local.toml --watch
    """
    if goes_on and (json_path or page):
        raise BadOption("--watch is for a terminal only.", "Call it again and again.")
    config = configuration.load(path, overrides)
    if goes_on:
        watch(Terminal(), config)
    view = look(config)
    if page:
        _write(page, view)
    tell(described(view), json_path, lambda: show(Terminal(), view))
    return 0


if __name__ == "__main__":
    main()
