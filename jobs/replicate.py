"""Copy collections into Delta tables, then follow their changes.

For spark-submit. Options: `mongodb-cdc replicate --help`.
"""

from cdc.cli import command

if __name__ == "__main__":
    command("replicate")()
