"""Write a collection as of a time back into MongoDB.

For spark-submit. Options: `mongodb-cdc restore --help`.
"""

from cdc.cli import command

if __name__ == "__main__":
    command("restore")()
