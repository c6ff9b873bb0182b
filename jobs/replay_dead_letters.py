"""Replay dead letters: put images through again that can be mapped now, or that were repaired."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click
from pyspark.sql import SparkSession

from cdc import options as declared
from cdc.delta.redelivery import Delivery, deliver
from cdc.errors import BadOption
from jobs import config as configuration
from jobs.config import Config
from jobs.failure import told
from jobs.session import session
from jobs.terminal import Terminal

LEFT = 6


def replay(spark: SparkSession, config: Config) -> Delivery:
    """Deliver what can be delivered of a pipeline's dead letters. Raises BadOption if it keeps
    none."""
    targets = config.layout.letters()
    if not targets:
        raise BadOption("There are no dead_letters in [table].", "Set their template.")
    options = declared.parse(config.source)
    found = [
        deliver(spark, target, config.layout, options["document.format"], options["document.json"])
        for target in targets
        if target.exists(spark)
    ]
    return Delivery(sum(each.delivered for each in found), sum(each.left for each in found))


@click.command()
@click.option("--config", "path", type=click.Path(), help="The TOML file that replicate ran with.")
@click.option("-o", "--option", "overrides", multiple=True, help="name=value, over the file's.")
@click.option("--json", "json_path", type=click.Path(), help="Write the result to this file.")
@told
def main(path: str | None, overrides: tuple[str, ...], json_path: str | None) -> int:
    """Deliver dead letters whose column `repaired` holds BSON, or that can be mapped by now. Exit
    code 6: some cannot be.

    Example: mongodb-cdc replay-dead-letters --config conf/local.toml
    """
    config = configuration.load(path, overrides)
    result = replay(session("mongodb-cdc replay-dead-letters"), config)
    Terminal().print(f"{result.delivered:,} delivered, {result.left:,} left")
    if json_path:
        Path(json_path).write_text(json.dumps(asdict(result), indent=2) + "\n")
    return LEFT if result.left else 0


if __name__ == "__main__":
    main()
