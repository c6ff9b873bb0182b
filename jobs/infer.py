"""Infer typed columns from documents.

For spark-submit. Options: `mongodb-cdc infer --help`.
"""

from cdc.cli import command

if __name__ == "__main__":
    command("infer")()
