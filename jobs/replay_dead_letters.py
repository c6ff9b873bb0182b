"""Deliver dead letters again.

For spark-submit. Options: `mongodb-cdc replay-dead-letters --help`.
"""

from cdc.cli import command

if __name__ == "__main__":
    command("replay-dead-letters")()
