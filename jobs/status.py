"""Status: where a pipeline stands, running or not, by its checkpoint and its source.

Starts no Spark, and reads no document but a sample of what is being copied.
"""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from cdc.model import timestamp
from cdc.model.timestamp import Timestamp
from cdc.mongo.copies import COPYING, Extent
from cdc.mongo.standing import Passed, Standing
from cdc.source.inquiry import standing
from jobs import checkpoint
from jobs import config as configuration
from jobs.checkpoint import Checkpoint
from jobs.config import Config
from jobs.failure import told
from jobs.terminal import Terminal


def look(config: Config) -> tuple[Checkpoint, Standing]:
    """The checkpoint, and what the source says to it. Raises CdcError."""
    kept = checkpoint.read(config.checkpoint)
    last, before, passed = kept.last, kept.before, None
    if last and before:
        passed = Passed(before.offset, last.offset, last.began - before.began)
    return kept, standing(config.source, last.offset if last else None, passed)


# --- on the terminal -----------------------------------------------------------------------------


def show(console: Console, path: str, kept: Checkpoint, found: Standing) -> None:
    """The collections, then one line each for batches, time, oplog and copy."""
    metrics = found.metrics
    console.print(_collections(found.collections))
    for name, text in (
        ("batches", f"{_batches(kept)} ({path})"),
        ("T", "none yet" if metrics.time is None else _moment(metrics.time)),
        ("live edge", "unknown" if metrics.live_edge is None else _moment(metrics.live_edge)),
        ("lag", _known(metrics.lag_seconds, "{} s")),
        ("changes", _known(metrics.events_per_second, "{:,.1f} events/s in the last batches")),
        ("oplog", _known(metrics.oplog_left, "{0.hours:.1f} hours ({0.percent:.0f} %) left")),
        ("copied", _known(metrics.snapshot_percent, "{:.1f} %")),
    ):
        console.print(f"{name + ':':11}{text}", soft_wrap=True)


def _collections(found: list[Extent]) -> Table:
    table = Table("collection", "documents", "phase", "copied")
    for each in found:
        share = _known(each.copied, "{:.0%}") if each.phase == COPYING else ""
        table.add_row(str(each.namespace), f"{each.documents:,}", each.phase, share)
    return table


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


def described(path: str, kept: Checkpoint, found: Standing) -> dict[str, Any]:
    """All of it as JSON takes it; `metrics` as Spark's progress has them."""
    last = kept.last
    return {
        "checkpoint": path,
        "batches": {
            "planned": kept.planned,
            "written": last and last.batch,
            "beganAt": last and _second(last.began),
            "writtenAt": last and last.moment and _second(last.moment),
        },
        "metrics": found.metrics.to_json(),
        "collections": [
            {
                "namespace": str(each.namespace),
                "documents": each.documents,
                "phase": each.phase,
                "copiedPercent": None if each.copied is None else round(100 * each.copied, 1),
            }
            for each in found.collections
        ],
    }


@click.command()
@click.option("--config", "path", type=click.Path(), help="TOML file; conf/example.toml shows all.")
@click.option("-o", "--option", "overrides", multiple=True, help="name=value, over the file's.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
@told
def main(path: str | None, overrides: tuple[str, ...], as_json: bool) -> int:
    """Tell where a pipeline stands, running or not: copies, T, lag, what the oplog has left.

    Example: mongodb-cdc status --config conf/local.toml
    """
    config = configuration.load(path, overrides)
    kept, found = look(config)
    if as_json:
        click.echo(json.dumps(described(config.checkpoint, kept, found), indent=2))
    else:
        show(Terminal(), config.checkpoint, kept, found)
    return 0


if __name__ == "__main__":
    main()
