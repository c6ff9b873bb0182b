"""Program `replay-dead-letters`: deliver images that were repaired or can be mapped now."""

from __future__ import annotations

from dataclasses import asdict

import click

from cdc.cli.commands import LEFT, json_option, print_result, run_as_command
from cdc.pipeline import config as configuration
from cdc.pipeline import replay, session
from cdc.terminal import Terminal


@click.command()
@click.option("--config", "path", type=click.Path(), help="The TOML file of the pipeline.")
@click.option("-o", "--option", "overrides", multiple=True, help="name=value; overrides the file.")
@json_option
@run_as_command
def main(path: str | None, overrides: tuple[str, ...], json_path: str | None) -> int:
    """Deliver dead letters whose column `repaired` contains BSON, or that can be mapped now.

    Exit code 6: some could not be delivered.

    Example: mongodb-cdc replay-dead-letters --config conf/local.toml
    """
    config = configuration.load(path, overrides)
    result = replay(session("mongodb-cdc replay-dead-letters", config=config), config)
    line = f"{result.delivered:,} delivered, {result.left:,} left"
    print_result(asdict(result), json_path, lambda: Terminal().print(line))
    return LEFT if result.left else 0


if __name__ == "__main__":
    main()
