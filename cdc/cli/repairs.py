"""Programs `repair-checkpoint` and `replay-dead-letters`: repair what a failure left."""

from __future__ import annotations

from dataclasses import asdict

import click

from cdc.cli.commands import json_option, pipeline_options, print_result, run_as_command
from cdc.cli.starting import run_locally, start_session
from cdc.errors import LEFT
from cdc.pipeline import access_by_spark, access_locally, repair, replay
from cdc.pipeline import config as configuration
from cdc.terminal import Terminal


@click.command("repair-checkpoint")
@pipeline_options
@click.option("--dry-run", is_flag=True, help="Only show the steps.")
@json_option
@run_as_command
def repair_checkpoint(
    path: str | None, overrides: tuple[str, ...], dry_run: bool, json_path: str | None
) -> int:
    """Repair a checkpoint whose last files are damaged or missing.

    No job may use the checkpoint meanwhile. A batch that a table contains is planned again with
    the same content; a batch that no table contains may get another content.

    Example: mongodb-cdc repair-checkpoint --config conf/local.toml --dry-run
    """
    config = configuration.load(path, overrides)
    name = "mongodb-cdc repair-checkpoint"
    steps = run_locally(
        lambda: repair(access_locally(config), config, dry_run),
        lambda: repair(access_by_spark(start_session(name, config)), config, dry_run),
    )
    done = [f"{'would ' if dry_run else ''}{step.description}" for step in steps]
    lines = done or [f"{config.checkpoint} is not damaged"]
    result = {"checkpoint": config.checkpoint, "dry_run": dry_run, "steps": done}
    print_result(result, json_path, lambda: Terminal().print(*lines, sep="\n", soft_wrap=True))
    return 0


@click.command("replay-dead-letters")
@pipeline_options
@json_option
@run_as_command
def replay_dead_letters(path: str | None, overrides: tuple[str, ...], json_path: str | None) -> int:
    """Deliver dead letters whose column `repaired` contains BSON, or that can be mapped now.

    Exit code 6: some could not be delivered.

    Example: mongodb-cdc replay-dead-letters --config conf/local.toml
    """
    config = configuration.load(path, overrides)
    result = replay(start_session("mongodb-cdc replay-dead-letters", config), config)
    line = f"{result.delivered:,} delivered, {result.left:,} left"
    print_result(asdict(result), json_path, lambda: Terminal().print(line))
    return LEFT if result.left else 0
