"""Program `backfill`: read documents or changes again, while the job continues.

The mirror gets the documents that it lacks or that differ, as of the time up to which the job has
written it. The changelog gets all documents that were read, or the changes of a time window. A
newer row wins, and a repeated call with the same arguments results in the same tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace

import click
from rich.console import Console

from cdc.cli.commands import LEFT, json_option, print_result, run_as_command
from cdc.errors import BadOption
from cdc.model import Timestamp, timestamp
from cdc.pipeline import (
    BackfillResult,
    Part,
    backfill_changelog,
    backfill_documents,
    backfill_mirror,
    require_whole,
    session,
)
from cdc.pipeline import config as configuration
from cdc.terminal import Terminal

_INTO = ("mirror", "changelog")


def show(console: Console, done: BackfillResult) -> None:
    """Print the result in one line."""
    console.print(
        f"{done.collection} at {done.at or 'the live edge'}: {done.missing:,} missing in the"
        f" mirror, {done.differing:,} differing, {done.extra:,} extra, {done.undecided:,}"
        f" undecided; {done.left:,} of these remain; {done.changelog_rows:,} rows into the"
        " changelog",
        soft_wrap=True,
    )


@click.command()
@click.option("--config", "path", type=click.Path(), help="The TOML file of the pipeline.")
@click.option("-o", "--option", "overrides", multiple=True, help="name=value; overrides the file.")
@click.option("--collection", required=True, help="db.coll")
@click.option("--into", type=click.Choice(_INTO), multiple=True, help="Default: both.")
@click.option("--min", "least", help="Documents from this _id on, in Extended JSON.")
@click.option("--max", "below", help="Documents below this _id, in Extended JSON.")
@click.option("--filter", "condition", help="Documents that match this $match filter.")
@click.option("--at", help="Changelog only: the time t:i to read as of; default: the mirror's.")
@click.option(
    "--repair", is_flag=True, help="Delete from the mirror the documents that the source lacks."
)
@click.option("--from", "start", help="Changes from this time on, into the changelog.")
@click.option("--to", "end", help="Changes before this time; needs --from.")
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
    namespace, part = config.parse_captured(collection), Part(least, below, condition)
    part.options(config)
    window = {name: value for name, value in (("from", start), ("to", end)) if value is not None}
    kinds = [kind for kind in into or _INTO if config.table(kind, namespace)]
    if window:
        _require_bare(part.is_whole and not repair and at is None and "mirror" not in into)
        kinds = []
    elif at is not None:
        _require_changelog_only(timestamp.parse(at), kinds)
    if repair:
        require_whole(part)
    spark = session("mongodb-cdc backfill", config=config)
    done = BackfillResult(collection, at or end or "")
    if window:
        done = replace(
            done, changelog_rows=backfill_changelog(spark, config, namespace, window, dry)
        )
    if "mirror" in kinds:
        done = backfill_mirror(spark, config, namespace, part, repair, dry)
    if "changelog" in kinds:
        done = backfill_documents(spark, config, namespace, part, done, dry, run)
    print_result(asdict(done), json_path, lambda: show(Terminal(), done))
    return LEFT if done.left else 0


def _require_bare(is_bare: bool) -> None:
    if not is_bare:
        raise BadOption(
            "A time window (--from, --to) is read whole, into the changelog only.",
            "Remove --min, --max, --filter, --repair, --at and --into mirror.",
        )


def _require_changelog_only(at: Timestamp, kinds: Sequence[str]) -> None:
    if "mirror" in kinds:
        raise BadOption(
            f"A mirror can be repaired only as of its own time, not as of {timestamp.text(at)}.",
            "Remove --at, or set --into changelog.",
        )


if __name__ == "__main__":
    main()
