"""Repair a damaged checkpoint.

For spark-submit. Options: `mongodb-cdc repair-checkpoint --help`.
"""

from cdc.cli import command

if __name__ == "__main__":
    command("repair-checkpoint")()
