"""Apply changelogs to mirrors and histories, or rebuild these.

For spark-submit. Options: `mongodb-cdc follow --help`.
"""

from cdc.cli import command

if __name__ == "__main__":
    command("follow")()
