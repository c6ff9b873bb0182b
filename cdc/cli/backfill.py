"""Program `backfill`: read documents or changes again, while the job continues.

The mirror gets the documents that it lacks or that differ, as of the time up to which the job has
written it. The changelog gets the changes of a time window, or, on request, all documents. A
newer row wins, and a repeated call with the same arguments results in the same tables.
"""

from __future__ import annotations

from dataclasses import asdict

import click
from rich.console import Console

from cdc.cli.commands import json_option, pipeline_options, print_result, run_as_command
from cdc.cli.starting import check_locally, start_session
from cdc.errors import LEFT
from cdc.pipeline import INTO, BackfillRequest, BackfillResult, Part, check_reading
from cdc.pipeline import config as configuration
from cdc.terminal import Terminal


def show(console: Console, done: BackfillResult) -> None:
    """Print the result in one line."""
    console.print(
        f"{done.collection} at {done.at}: {done.missing:,} missing in the"
        f" mirror, {done.differing:,} differing, {done.extra:,} extra, {done.undecided:,}"
        f" undecided; {done.left:,} of these remain; {done.changelog_rows:,} rows into the"
        " changelog",
        soft_wrap=True,
    )


@click.command()
@pipeline_options
@click.option("--collection", required=True, help="db.coll")
@click.option("--into", type=click.Choice(INTO), multiple=True, help="Default: mirror.")
@click.option("--min", "least", help="Documents from this _id on, in Extended JSON.")
@click.option("--max", "below", help="Documents below this _id, in Extended JSON.")
@click.option("--filter", "condition", help="Documents that match this $match filter.")
@click.option("--at", help="Changelog only: the time t:i to read as of; default: the mirror's.")
@click.option(
    "--repair", is_flag=True, help="Delete from the mirror the documents that the source lacks."
)
@click.option("--from", "start", help="Changes from this time on, into the changelog.")
@click.option(
    "--to",
    "end",
    help="Changes before this time, and at most up to the job's last batch; needs --from.",
)
@click.option("--dry-run", "dry", is_flag=True, help="Show what would be done; write nothing.")
@click.option("--run-id", "run", help="Calls with one id add documents to the changelog only once.")
@json_option
@run_as_command
def main(
    path: str | None,
    overrides: tuple[str, ...],
    collection: str,
    into: tuple[str, ...],
    least: str | None,
    below: str | None,
    condition: str | None,
    at: str | None,
    repair: bool,
    start: str | None,
    end: str | None,
    dry: bool,
    run: str | None,
    json_path: str | None,
) -> int:
    """Read documents, or the changes of a time window, again into tables, while the job continues.

    Exit code 6: differences remain.

    Example: mongodb-cdc backfill --config conf/local.toml --collection shop.orders --repair
    """
    config = configuration.load(path, overrides)
    request = BackfillRequest(
        collection, into, Part(least, below, condition), start, end, at, repair, dry, run
    )
    names, kinds = [request.check(config)], request.kinds
    check_locally(config, lambda access: check_reading(access, config, kinds, names))
    done = request.execute(start_session("mongodb-cdc backfill", config), config)
    print_result(asdict(done), json_path, lambda: show(Terminal(), done))
    return LEFT if done.left else 0


if __name__ == "__main__":
    main()
