"""Compact the tables of a pipeline.

For spark-submit. Options: `mongodb-cdc maintain --help`.
"""

from cdc.cli import command

if __name__ == "__main__":
    command("maintain")()
