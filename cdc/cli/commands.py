"""The command `mongodb-cdc NAME`: its programs, and what they share: output, errors, exit codes.

`token` has no `--json FILE`: click would read its argument as the file.
"""

from __future__ import annotations

import difflib
import importlib
import json
import logging
import os
import re
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, NoReturn, ParamSpec, TypeVar

import click
from click.shell_completion import CompletionItem

from cdc import errors
from cdc.errors import INTERRUPTED, LEFT, TERMINATED, CdcError
from cdc.logs import LEVEL_VARIABLE, LEVELS, escape_controls, escape_default_logs, show_from
from cdc.shutdown import Interrupt

PROGRAMS = {
    "backfill": "Read documents or changes again into tables, while the job continues.",
    "demo": "Run a whole pipeline on this machine, with an embedded MongoDB.",
    "follow": "Apply changelogs to mirrors and histories, or rebuild these, beside replicate.",
    "infer": "Infer typed columns from documents and write them into the configuration.",
    "init": "Write the configuration file of a new pipeline.",
    "maintain": "Compact the tables and delete files that no retained version needs.",
    "plan": "Check whether a run can succeed, and estimate how long its copy takes.",
    "prepare": "Make later starts faster, once per machine.",
    "repair-checkpoint": "Return a damaged checkpoint to the last batch that is known.",
    "replay-dead-letters": "Deliver images again that were repaired or can be mapped now.",
    "replicate": "Copy collections into Delta tables, then follow their changes.",
    "restore": "Write a collection as of a time back into MongoDB.",
    "status": "Show the status of a pipeline, running or not.",
    "token": "Explain a resume token or a row's position.",
    "verify": "Compare collections with their mirrors.",
}
# Programs that are not the `main` of a module of their own name.
_SHARED = {
    "infer": ("configure", "infer_columns"),
    "init": ("configure", "create"),
    "prepare": ("starting", "prepare_machine"),
    "repair-checkpoint": ("repairs", "repair_checkpoint"),
    "replay-dead-letters": ("repairs", "replay_dead_letters"),
}
STDOUT = "-"
EXIT_CODES = {
    0: "done, or stopped by a signal (replicate, follow)",
    1: "the program cannot continue, see the message",
    2: "bad arguments",
    3: "source unreachable or not answering: start the program again",
    4: "history lost",
    5: "other writers changed a table at each attempt: start the program again",
    LEFT: "differences remain (verify, backfill, replay-dead-letters, restore, demo), or changes"
    " are missing (status --contains)",
    INTERRUPTED: "ended at once by Ctrl-C",
    TERMINATED: "ended at once by SIGTERM",
}

P = ParamSpec("P")
F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
_RAISED = re.compile(r"cdc\.errors\.(\w+): (.+)")


def command(name: str) -> click.Command:
    """The command of a name of `PROGRAMS`. Its module is imported by this call: `--help` must not
    wait for Spark's modules."""
    module, function = _SHARED.get(name, (name, "main"))
    try:
        with Interrupt():  # some modules swallow what is raised while they are imported
            program: click.Command = getattr(importlib.import_module(f"cdc.cli.{module}"), function)
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] not in ("pyspark", "delta"):
            raise
        missing = CdcError(
            "The Python packages of Spark and Delta are not installed here.",
            "Run pip install 'mongodb-cdc-spark[spark]', or use the Python of a Spark with Delta.",
        )
        _end(CdcError, str(missing))
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


def _require_folder(
    context: click.Context, parameter: click.Parameter, path: str | None
) -> str | None:
    """Check the folder of the file before an hour's work, not after it."""
    if path not in (None, STDOUT) and not (folder := Path(path).absolute().parent).is_dir():
        raise click.BadParameter(f"there is no folder {folder}")
    return path


json_option = click.option(
    "--json",
    "json_path",
    is_flag=False,
    flag_value=STDOUT,
    metavar="[FILE]",
    type=click.Path(dir_okay=False, writable=True, allow_dash=True),
    callback=_require_folder,
    help="Print the result as JSON; with FILE, print text and write the JSON to the file.",
)


def pipeline_options(program: Callable[..., T]) -> Callable[..., T]:
    """Decorate a program with `--config`, `-o` and `--conf`: its arguments `path`, `overrides`."""

    @click.option("--config", "path", type=click.Path(), help="The TOML file of the pipeline.")
    @click.option(
        "-o", "--option", "overrides", multiple=True, help="name=value; overrides the file."
    )
    @click.option(
        "--conf",
        "settings",
        multiple=True,
        callback=_require_spark,
        help="Setting of Spark, as for spark-submit: spark.driver.memory=4g.",
    )
    @wraps(program)
    def run(*, overrides: tuple[str, ...], settings: tuple[str, ...], **arguments: Any) -> T:
        return program(overrides=(*overrides, *settings), **arguments)

    return run


def _require_spark(
    context: click.Context, parameter: click.Parameter, settings: tuple[str, ...]
) -> tuple[str, ...]:
    for each in settings:
        if not re.match(r"spark\.[^=]+=", each):
            raise click.BadParameter(f"'{each}' is no setting; write spark.NAME=VALUE")
    return settings


def log_level_option(default: str = "info") -> Callable[[F], F]:
    """Decorate a program with `--log-level`.

    Spark's Python processes are many, so by default they log only warnings.
    """

    def set_level(context: click.Context, parameter: click.Parameter, level: str | None) -> None:
        logger, variable = logging.getLogger("cdc"), os.environ.get(LEVEL_VARIABLE)
        before = logger.level
        if level is not None:
            os.environ[LEVEL_VARIABLE] = level
        show_from(level or default)

        def restore() -> None:
            logger.setLevel(before)
            os.environ.pop(LEVEL_VARIABLE, None)
            if variable is not None:
                os.environ[LEVEL_VARIABLE] = variable

        context.call_on_close(restore)

    there = "" if default == "warning" else ", there warning"
    return click.option(
        "--log-level",
        type=click.Choice(LEVELS),
        envvar=LEVEL_VARIABLE,
        callback=set_level,
        expose_value=False,
        help=(
            f"Log from this level on, also in Spark's Python processes. Default: {default}{there}."
        ),
    )


def print_result(result: Any, json_path: str | None, show: Callable[[], object]) -> None:
    """Print a result as text or as JSON.

    Args:
        result: The result, as values that JSON has.
        json_path: None for text alone; `-` for JSON alone, on stdout; else the file to write the
            JSON to, besides the text.
        show: Prints the text.
    """
    text = json.dumps(result, indent=2)
    if json_path == STDOUT:
        click.echo(text)
        return
    show()
    if json_path:
        Path(json_path).write_text(f"{text}\n")


def run_as_command(program: Callable[P, int]) -> Callable[P, None]:
    """Decorate a program: it ends the process with its exit code, or an error line.

    Spark wraps an error of a task or of the source's planner in its own exceptions and several
    stack traces. The last error of `cdc.errors` in their text is the original one.
    """

    @wraps(program)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        escape_default_logs()
        # py4j logs the stack trace of an error in a batch, which is reported below.
        logging.getLogger("py4j.clientserver").setLevel(logging.CRITICAL)
        try:
            with Interrupt():
                code = program(*args, **kwargs)
            sys.exit(code)
        except KeyboardInterrupt:  # by code, or in a thread without `Interrupt`'s handler
            sys.exit(INTERRUPTED)
        except CdcError as error:
            _end(type(error), str(error))
        except Exception as error:
            kind, message = _find_cause(error)
            if kind is None:
                raise
            _end(kind, message)

    return run


def _find_cause(error: Exception) -> tuple[type[CdcError] | None, str]:
    """The class and message of the error of `cdc.errors` in an error of Spark; None if none is."""
    from pyspark.errors import PySparkException  # half a second, and not every program needs Spark

    causes = _RAISED.findall(str(error)) if isinstance(error, PySparkException) else []
    if not causes:
        return None, ""
    name, message = causes[-1]
    return getattr(errors, name, None), message.rstrip()


def _end(kind: type[CdcError], message: str) -> NoReturn:
    sys.stderr.write(f"error: {escape_controls(message)}\n")
    sys.exit(kind.exit_code)
