"""Maintain: purge tombstones, compact, and delete what no version of the tables needs."""

from __future__ import annotations

from dataclasses import asdict

import click
import rich.table
from rich.console import Console

from cdc.delta.maintenance import LEAST_RETENTION_HOURS, Maintained
from jobs import config as configuration
from jobs.maintenance import maintain, require_safe
from jobs.result import json_option, tell, told
from jobs.session import session
from jobs.terminal import Terminal


def show(console: Console, done: list[Maintained]) -> None:
    table = rich.table.Table("table", "tombstones", "files rewritten", "into", "files deleted")
    for each in done:
        rewritten, added = ("?" if n is None else f"{n:,}" for n in (each.rewritten, each.added))
        table.add_row(each.table, f"{each.purged:,}", rewritten, added, f"{each.vacuumed:,}")
    console.print(table)


@click.command()
@click.option("--config", "path", type=click.Path(), help="The TOML file that replicate ran with.")
@click.option("-o", "--option", "overrides", multiple=True, help="name=value, over the file's.")
@click.option(
    "--retention-hours",
    "hours",
    type=float,
    default=LEAST_RETENTION_HOURS,
    show_default=True,
    help="Versions younger than this can still be read afterwards.",
)
@click.option(
    "--tombstone-days",
    "days",
    type=click.FloatRange(min=0),
    default=30,
    show_default=True,
    help="How long deleted documents are remembered where delete = soft.",
)
@click.option("--dry-run", is_flag=True, help="Only tell what would be done.")
@json_option
@told
def main(
    path: str | None,
    overrides: tuple[str, ...],
    hours: float,
    days: float,
    dry_run: bool,
    json_path: str | None,
) -> int:
    """Compact the tables of a pipeline and delete what no version of them needs; jobs may go on.

    Example: mongodb-cdc maintain --config conf/local.toml --dry-run
    """
    config = configuration.load(path, overrides)
    require_safe(hours)
    done = maintain(session("mongodb-cdc maintain"), config, hours, days, dry_run)
    tell([asdict(each) for each in done], json_path, lambda: show(Terminal(), done))
    return 0


if __name__ == "__main__":
    main()
