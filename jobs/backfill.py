"""Backfill: read a collection, or a part of it, again as of one time, while the job goes on.

Into the mirror goes what it lacks or holds otherwise, at the time up to which the job has written
it; into the changelog all that is read, or the changes of a window of time. What is newer wins, and
the same arguments twice make the same tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace

import click
from rich.console import Console

from cdc.errors import BadOption
from cdc.model import timestamp
from cdc.model.timestamp import Timestamp
from jobs import config as configuration
from jobs.reread import (
    Backfilled,
    Part,
    documents_into_changelog,
    into_changelog,
    into_mirror,
    require_whole,
)
from jobs.result import LEFT, json_option, tell, told
from jobs.session import session
from jobs.terminal import Terminal

_INTO = ("mirror", "changelog")


def show(console: Console, done: Backfilled) -> None:
    """One line."""
    console.print(
        f"{done.collection} at {done.at or 'the live edge'}: {done.missing:,} missing in the"
        f" mirror, {done.differing:,} differing, {done.extra:,} extra, {done.undecided:,}"
        f" undecided, of which {done.left:,} are left; {done.changelog_rows:,} rows into the"
        " changelog",
        soft_wrap=True,
    )


@click.command()
@click.option("--config", "path", type=click.Path(), help="The TOML file that replicate ran with.")
@click.option("-o", "--option", "overrides", multiple=True, help="name=value, over the file's.")
@click.option("--collection", required=True, help="db.coll")
@click.option("--into", type=click.Choice(_INTO), multiple=True, help="Both if left out.")
@click.option("--min", "least", help="Documents from this _id on, in Extended JSON.")
@click.option("--max", "below", help="Documents below this _id, in Extended JSON.")
@click.option("--filter", "condition", help="Documents that pass this; the syntax is a match's.")
@click.option("--at", help="The changelog's: the time t:i to read at; the mirror's if left out.")
@click.option("--repair", is_flag=True, help="Take out of the mirror what is not in the source.")
@click.option("--from", "start", help="Changes from this time on, into the changelog.")
@click.option("--to", "end", help="Changes up to, but without, this time.")
@click.option("--dry-run", "dry", is_flag=True, help="Tell what would be done, and write nothing.")
@click.option("--run-id", "run", help="Tries under one id add documents to the changelog once.")
@json_option
@told
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
    """Read documents, or the changes of a window of time, again into tables that a job may write
    meanwhile. Exit code 6: differences are left.

    Example: mongodb-cdc backfill --config conf/local.toml --collection shop.orders --repair
    """
    config = configuration.load(path, overrides)
    namespace, part = config.captured(collection), Part(least, below, condition)
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
    spark = session("mongodb-cdc backfill")
    done = Backfilled(collection, at or end or "")
    if window:
        done = replace(done, changelog_rows=into_changelog(spark, config, namespace, window, dry))
    if "mirror" in kinds:
        done = into_mirror(spark, config, namespace, part, repair, dry)
    if "changelog" in kinds:
        done = documents_into_changelog(spark, config, namespace, part, done, dry, run)
    tell(asdict(done), json_path, lambda: show(Terminal(), done))
    return LEFT if done.left else 0


def _require_bare(is_bare: bool) -> None:
    if not is_bare:
        raise BadOption(
            "A window of time goes into the changelog, whole.", "Leave out all but --from and --to."
        )


def _require_changelog_only(at: Timestamp, kinds: Sequence[str]) -> None:
    if "mirror" in kinds:
        raise BadOption(
            f"A mirror is brought to what it is to be at its own time, not {timestamp.text(at)}.",
            "Leave out --at, or choose --into changelog.",
        )


if __name__ == "__main__":
    main()
