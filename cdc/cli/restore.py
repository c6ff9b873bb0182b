"""Restore: write a collection as of a time back into MongoDB."""

from __future__ import annotations

from dataclasses import asdict

import click
from rich.console import Console

from cdc.cli.commands import json_option, pipeline_options, print_result, run_as_command
from cdc.cli.starting import start_session
from cdc.errors import LEFT
from cdc.model import Namespace, timestamp
from cdc.pipeline import RestoreResult, restore
from cdc.pipeline import config as configuration
from cdc.terminal import Terminal


def show(console: Console, result: RestoreResult) -> None:
    """Print the result, and a line with the first keys for each reason to leave documents out."""
    console.print(
        f"{result.collection} as of {result.at}: {result.documents:,} documents in {result.into}"
        + (f"; {result.inexact:,} of them may not be as of that time" if result.inexact else "")
        + (f"; {result.losses}" if result.losses else ""),
        soft_wrap=True,
    )
    for reason, count in result.reasons.items():
        keys = ", ".join(result.keys[reason])
        console.print(f"  {count:,} left out, {reason}: {keys}", soft_wrap=True)


@click.command()
@pipeline_options
@click.option("--as-of", "time", required=True, help="seconds:increment, or ISO-8601.")
@click.option(
    "--to-uri", required=True, help="URI of the target; env:NAME and file:PATH as in [source]."
)
@click.option("--namespace", required=True, help="db.coll to write into.")
@click.option("--collection", help="db.coll to restore; the one of --namespace if absent.")
@click.option("--force", is_flag=True, help="Delete the content of the target first.")
@json_option
@run_as_command
def main(
    path: str | None,
    overrides: tuple[str, ...],
    time: str,
    to_uri: str,
    namespace: str,
    collection: str | None,
    force: bool,
    json_path: str | None,
) -> int:
    """Write a collection as of a time back into MongoDB, from its changelog.

    Exit code 6: documents were left out.

    Example: mongodb-cdc restore --config conf/local.toml --as-of 2026-01-31T12:00:00Z
    --to-uri env:TARGET_URI --namespace shop.orders_restored --collection shop.orders
    """
    config = configuration.load(path, overrides)
    into, own = Namespace.parse(namespace), Namespace.parse(collection or namespace)
    at = timestamp.parse(time)
    spark = start_session("mongodb-cdc restore", config)
    result = restore(spark, config, own, at, to_uri, into, force)
    print_result(asdict(result), json_path, lambda: show(Terminal(), result))
    return LEFT if result.left_out else 0


if __name__ == "__main__":
    main()
