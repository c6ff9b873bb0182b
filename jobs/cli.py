"""`mongodb-cdc NAME`: the programs under one command."""

from __future__ import annotations

import difflib
import importlib

import click
from click.shell_completion import CompletionItem

from jobs.result import EXIT_CODES
from jobs.stop import Interrupt

PROGRAMS = {
    "backfill": "Read documents or changes again, into tables that a job may write meanwhile.",
    "demo": "Show it all on this machine, with a MongoDB of its own.",
    "infer": "Infer typed columns from documents, and write them into the configuration.",
    "maintain": "Compact the tables, and delete what no version of them needs.",
    "plan": "Tell whether a run could succeed, and about how long its copy takes.",
    "repair-checkpoint": "Go back to the last batch that is known, if the checkpoint is damaged.",
    "replay-dead-letters": "Put images through again that were repaired, or can be mapped by now.",
    "replicate": "Copy collections into Delta tables, then follow their changes.",
    "restore": "Write a collection as it was at a time back into MongoDB.",
    "status": "Tell where a pipeline stands, running or not.",
    "token": "Tell what a resume token, or a row's position, means.",
    "verify": "Compare collections with their mirrors.",
}
# A file jobs/token.py would hide Python's own module `token` from a program that is run as a file.
_MODULES = {
    "repair-checkpoint": "repair_checkpoint",
    "replay-dead-letters": "replay_dead_letters",
    "token": "resume_token",
}


class _Programs(click.Group):
    """Imports a program when it is called: `--help` should not wait for Spark's modules."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(PROGRAMS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in PROGRAMS:
            return None
        module = _MODULES.get(name, name)
        with Interrupt():  # some modules swallow what is raised while they are imported
            command: click.Command = importlib.import_module(f"jobs.{module}").main
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """With the name that was probably meant, where there is none of that name."""
        close = difflib.get_close_matches(args[0], PROGRAMS, n=1)
        if close and args[0] not in PROGRAMS and not ctx.resilient_parsing:
            ctx.fail(f"There is no program '{args[0]}'. Did you mean '{close[0]}'?")
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Without the import of every program whose name begins so."""
        found = [name for name in PROGRAMS if name.startswith(incomplete)]
        names = [CompletionItem(name, help=PROGRAMS[name]) for name in found]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(PROGRAMS.items()))
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), says) for code, says in EXIT_CODES.items()])


@click.command(cls=_Programs)
@click.version_option(package_name="mongodb-cdc-spark")
def main() -> None:
    """MongoDB into Delta tables: snapshot, change stream, changelog and mirror."""
