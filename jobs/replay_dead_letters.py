"""Replay dead letters: put images through again that can be mapped now, or that were repaired."""

from __future__ import annotations

from dataclasses import asdict

import click
from pyspark.sql import SparkSession

from cdc import options as declared
from cdc.delta.redelivery import Delivery, deliver
from cdc.errors import BadOption
from jobs import config as configuration
from jobs.config import Config
from jobs.failure import LEFT, told
from jobs.result import json_option, tell
from jobs.session import session
from jobs.terminal import Terminal


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
@json_option
@told
def main(path: str | None, overrides: tuple[str, ...], json_path: str | None) -> int:
    """Deliver dead letters whose column `repaired` holds BSON, or that can be mapped by now. Exit
    code 6: some cannot be.

    Example: mongodb-cdc replay-dead-letters --config conf/local.toml
    """
    config = configuration.load(path, overrides)
    result = replay(session("mongodb-cdc replay-dead-letters"), config)
    line = f"{result.delivered:,} delivered, {result.left:,} left"
    tell(asdict(result), json_path, lambda: Terminal().print(line))
    return LEFT if result.left else 0


if __name__ == "__main__":
    main()
