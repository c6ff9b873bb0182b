"""Program `verify`: compare collections with their mirrors, or live views, as of one time.

The time is the watermark of the newest commit. Writers and the replication may continue meanwhile.
`cdc.pipeline.verification` contains the comparison.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict

import click
from rich.console import Console

from cdc.cli.commands import json_option, pipeline_options, print_result, run_as_command
from cdc.cli.starting import check_locally, start_session
from cdc.errors import LEFT
from cdc.pipeline import Verdict, check_reading, select_namespaces, verify
from cdc.pipeline import config as configuration
from cdc.terminal import Terminal


def show(console: Console, verdicts: Iterable[Verdict]) -> None:
    """Print one line per collection, then the first keys of each kind of difference."""
    for verdict in verdicts:
        _show(console, verdict)


def _show(console: Console, verdict: Verdict) -> None:
    word = "equal" if verdict.is_equal else "DIFFERENT"
    console.print(
        f"{verdict.namespace} at T={verdict.at}: {word}; {verdict.documents:,} documents,"
        f" {verdict.missing} missing, {verdict.extra} extra, {verdict.differing} differing,"
        f" {verdict.doubled} doubled, {verdict.undecided} undecided",
        soft_wrap=True,
    )
    for what, keys in verdict.keys.items():
        console.print(f"  {what}: {', '.join(keys)}")


@click.command()
@pipeline_options
@click.option("--collection", "only", multiple=True, help="db.coll; default: all selected ones.")
@click.option(
    "--live", "is_live", is_flag=True, help="Compare with the live views instead of the mirrors."
)
@json_option
@run_as_command
def main(
    path: str | None,
    overrides: tuple[str, ...],
    only: tuple[str, ...],
    is_live: bool,
    json_path: str | None,
) -> int:
    """Compare collections with their mirrors as of the mirrors' times. Exit code 6: they differ.

    With --live, a mirror counts together with what its changelog contains already.

    Example: mongodb-cdc verify --config conf/local.toml
    """
    config = configuration.load(path, overrides)
    chosen = select_namespaces(config, only)
    check_locally(config, lambda access: check_reading(access, config, ["mirror"], chosen))
    spark, console = start_session("mongodb-cdc verify", config), Terminal()
    verdicts = [verify(spark, config, namespace, is_live) for namespace in chosen]
    result = [{**asdict(verdict), "equal": verdict.is_equal} for verdict in verdicts]
    print_result(result, json_path, lambda: show(console, verdicts))
    return 0 if all(verdict.is_equal for verdict in verdicts) else LEFT


if __name__ == "__main__":
    main()
