"""Program `repair-checkpoint`: return a damaged checkpoint to the last known batch."""

from __future__ import annotations

import click

from cdc.cli.commands import json_option, print_result, run_as_command
from cdc.pipeline import config as configuration
from cdc.pipeline import repair, session
from cdc.terminal import Terminal


@click.command()
@click.option("--config", "path", type=click.Path(), help="The TOML file of the pipeline.")
@click.option("-o", "--option", "overrides", multiple=True, help="name=value; overrides the file.")
@click.option("--dry-run", is_flag=True, help="Only show the steps.")
@json_option
@run_as_command
def main(path: str | None, overrides: tuple[str, ...], dry_run: bool, json_path: str | None) -> int:
    """Repair a checkpoint whose last files are damaged or missing.

    No job may use the checkpoint meanwhile. A batch that a table contains is planned again with
    the same content; a batch that no table contains may get another content.

    Example: mongodb-cdc repair-checkpoint --config conf/local.toml --dry-run
    """
    config = configuration.load(path, overrides)
    steps = repair(session("mongodb-cdc repair-checkpoint", config=config), config, dry_run)
    done = [f"{'would ' if dry_run else ''}{step.description}" for step in steps]
    lines = done or [f"{config.checkpoint} is not damaged"]
    result = {"checkpoint": config.checkpoint, "dry_run": dry_run, "steps": done}
    print_result(result, json_path, lambda: Terminal().print(*lines, sep="\n", soft_wrap=True))
    return 0


if __name__ == "__main__":
    main()
