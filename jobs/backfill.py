"""Read documents or changes again.

For spark-submit. Options: `mongodb-cdc backfill --help`.
"""

from cdc.cli import command

if __name__ == "__main__":
    command("backfill")()
