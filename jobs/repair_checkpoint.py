"""Repair a damaged checkpoint: go back to the last batch of which everything is known."""

from __future__ import annotations

import click
from pyspark.sql import SparkSession

from cdc.errors import CheckpointDamaged
from jobs import config as configuration
from jobs.checkpoint import alone
from jobs.checkpoint_folder import Folder
from jobs.config import Config
from jobs.failure import told
from jobs.holdings import held
from jobs.recovery import Step, require_whole, way_back
from jobs.result import json_option, tell
from jobs.session import session
from jobs.terminal import Terminal


def repair(spark: SparkSession, config: Config, dry_run: bool = False) -> list[Step]:
    """The steps that were done, or would be; none if nothing was wrong. May be repeated after any
    failure. Raises CheckpointDamaged if nothing says how to go on, or nothing is there: the tables
    would say it, but of a pipeline that may go on elsewhere, and to be two is to lose changes."""
    folder = Folder(spark, config.checkpoint)
    if not folder.is_begun():
        raise CheckpointDamaged(
            f"{config.checkpoint} has no file of a checkpoint, so that there is nothing to repair.",
            "Name the right one, put a copy of it back, or start anew: a new checkpoint and other"
            " paths.",
        )
    with alone(config.checkpoint):
        steps = way_back(folder, held(spark, config, folder.pipeline()))
        if not dry_run:
            for step in steps:
                step.do()
            require_whole(folder)
    return steps


@click.command()
@click.option("--config", "path", type=click.Path(), help="The TOML file that replicate ran with.")
@click.option("-o", "--option", "overrides", multiple=True, help="name=value, over the file's.")
@click.option("--dry-run", is_flag=True, help="Only tell what would be done.")
@json_option
@told
def main(path: str | None, overrides: tuple[str, ...], dry_run: bool, json_path: str | None) -> int:
    """Repair a checkpoint whose last files are damaged or missing, while no job runs on it: what
    stands in tables is planned again as it was, what stands in none is planned anew.

    Example: mongodb-cdc repair-checkpoint --config conf/local.toml --dry-run
    """
    config = configuration.load(path, overrides)
    steps = repair(session("mongodb-cdc repair-checkpoint"), config, dry_run)
    done = [f"{'would ' if dry_run else ''}{step.says}" for step in steps]
    lines = done or [f"{config.checkpoint} is not damaged"]
    result = {"checkpoint": config.checkpoint, "dry_run": dry_run, "steps": done}
    tell(result, json_path, lambda: Terminal().print(*lines, sep="\n", soft_wrap=True))
    return 0


if __name__ == "__main__":
    main()
