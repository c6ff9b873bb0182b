"""Program `prepare`: download, compile and store what later starts need, once per machine."""

from __future__ import annotations

import click

from cdc.cli.commands import run_as_command
from cdc.pipeline import prepare
from cdc.terminal import Terminal


@click.command()
@run_as_command
def main() -> int:
    """Download Delta's jars, compile the encoders and store Spark's classes.

    Run it once per machine, or while the image of a container is built. Programs that start Spark
    themselves start faster then; nothing else changes.

    Example: mongodb-cdc prepare
    """
    prepare(Terminal(stderr=True).print)
    return 0


if __name__ == "__main__":
    main()
