"""Compare collections with their mirrors.

For spark-submit. Options: `mongodb-cdc verify --help`.
"""

from cdc.cli import command

if __name__ == "__main__":
    command("verify")()
