"""The command `mongodb-cdc`: one module per command.

In: arguments. Out: text or JSON, and an exit code. The work itself is done in `cdc.pipeline`,
`cdc.monitoring` and `cdc.demo`.
"""

from cdc.cli.commands import command, main

__all__ = ["command", "main"]
