"""The file that BackfillOperator gives to spark-submit.

It has a folder of its own: Python puts a script's folder first on its path.
"""

from cdc.cli import command

command("backfill")()
