"""The command `mongodb-cdc NAME`, which starts one of the programs."""

from __future__ import annotations

import difflib
import importlib

import click
from click.shell_completion import CompletionItem

from cdc.cli.output import EXIT_CODES
from cdc.shutdown import Interrupt

PROGRAMS = {
    "backfill": "Read documents or changes again into tables, while the job continues.",
    "demo": "Run a whole pipeline on this machine, with an embedded MongoDB.",
    "follow": "Apply changelogs to mirrors and histories, or rebuild these, beside replicate.",
    "infer": "Infer typed columns from documents and write them into the configuration.",
    "maintain": "Compact the tables and delete files that no retained version needs.",
    "plan": "Check whether a run can succeed, and estimate how long its copy takes.",
    "repair-checkpoint": "Return a damaged checkpoint to the last batch that is known.",
    "replay-dead-letters": "Deliver images again that were repaired or can be mapped now.",
    "replicate": "Copy collections into Delta tables, then follow their changes.",
    "restore": "Write a collection as of a time back into MongoDB.",
    "status": "Show the status of a pipeline, running or not.",
    "token": "Explain a resume token or a row's position.",
    "verify": "Compare collections with their mirrors.",
}


def command(name: str) -> click.Command:
    """The command of a name of `PROGRAMS`. Its module is imported by this call: `--help` must not
    wait for Spark's modules."""
    with Interrupt():  # some modules swallow what is raised while they are imported
        module = importlib.import_module(f"cdc.cli.{name.replace('-', '_')}")
    program: click.Command = module.main
    return program


class _Programs(click.Group):
    """Imports a program when it is called, so that `--help` does not import Spark."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(PROGRAMS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        return command(name) if name in PROGRAMS else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve a name; for an unknown name, suggest the nearest one."""
        close = difflib.get_close_matches(args[0], PROGRAMS, n=1)
        if close and args[0] not in PROGRAMS and not ctx.resilient_parsing:
            ctx.fail(f"There is no program '{args[0]}'. Did you mean '{close[0]}'?")
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete a name without importing the programs."""
        names = [name for name in PROGRAMS if name.startswith(incomplete)]
        items = [CompletionItem(name, help=PROGRAMS[name]) for name in names]
        return [*items, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(PROGRAMS.items()))
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), meaning) for code, meaning in EXIT_CODES.items()])


@click.command(cls=_Programs)
@click.version_option(package_name="mongodb-cdc-spark")
def main() -> None:
    """Replicate MongoDB into Delta tables: snapshot, change stream, changelog and mirror."""
