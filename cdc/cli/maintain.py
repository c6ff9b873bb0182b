"""Program `maintain`: purge tombstones, compact tables, delete unused files and uploads."""

from __future__ import annotations

from dataclasses import asdict

import click
import rich.table
from rich.console import Console

from cdc.cli.commands import json_option, pipeline_options, print_result, run_as_command
from cdc.cli.starting import run_locally, start_session
from cdc.delta.maintenance import LEAST_RETENTION_HOURS, Maintained
from cdc.pipeline import access_locally, forecast, maintain, require_safe
from cdc.pipeline import config as configuration
from cdc.terminal import Terminal


def show(console: Console, done: list[Maintained]) -> None:
    """Print one line per table, `?` where a number is unknown, and one per unfinished upload."""
    table = rich.table.Table(
        *("table", "tombstones", "files rewritten", "into", "files deleted", "uploads aborted")
    )
    for each in done:
        uploads = None if each.uploads is None else len(each.uploads)
        numbers = each.purged, each.rewritten, each.added, each.vacuumed, uploads
        table.add_row(each.table, *("?" if n is None else f"{n:,}" for n in numbers))
    console.print(table)
    for upload in (upload for each in done for upload in each.uploads or ()):
        console.print(f"unfinished upload of {upload.begun}: {upload.url}", soft_wrap=True)


@click.command()
@pipeline_options
@click.option(
    "--retention-hours",
    "hours",
    type=float,
    default=LEAST_RETENTION_HOURS,
    show_default=True,
    help="Versions younger than this stay readable.",
)
@click.option(
    "--tombstone-days",
    "days",
    type=click.FloatRange(min=0),
    default=30,
    show_default=True,
    help="How long a mirror with delete = soft retains deleted documents.",
)
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@json_option
@run_as_command
def main(
    path: str | None,
    overrides: tuple[str, ...],
    hours: float,
    days: float,
    dry_run: bool,
    json_path: str | None,
) -> int:
    """Compact the tables of a pipeline and delete unused files; jobs may continue meanwhile.

    Example: mongodb-cdc maintain --config conf/local.toml --dry-run
    """
    config = configuration.load(path, overrides)
    require_safe(hours)
    name = "mongodb-cdc maintain"
    if dry_run:
        done = run_locally(
            lambda: forecast(access_locally(config).tables, config, hours, days),
            lambda: maintain(start_session(name, config), config, hours, days, dry_run=True),
        )
    else:
        done = maintain(start_session(name, config), config, hours, days)
    print_result([asdict(each) for each in done], json_path, lambda: show(Terminal(), done))
    return 0


if __name__ == "__main__":
    main()
