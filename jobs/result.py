"""The output of a command and its end: text or `--json`, an error in one sentence, an exit code.

`token` alone has no `--json FILE`: its argument would be taken for the file.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec

import click

from cdc import errors
from cdc.errors import CdcError
from cdc.logs import plain, print_plainly
from jobs.stop import Interrupt

STDOUT = "-"


def _in_a_folder(
    context: click.Context, parameter: click.Parameter, path: str | None
) -> str | None:
    """Asked before an hour's work, not behind it."""
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
    callback=_in_a_folder,
    help="Print the result as JSON instead; with FILE, write it there besides.",
)


def tell(result: Any, json_path: str | None, show: Callable[[], object]) -> None:
    """The result, as `show` shows it to people, or as JSON on stdout, where nothing else is then;
    or as both, if the JSON goes to a file."""
    text = json.dumps(result, indent=2)
    if json_path == STDOUT:
        click.echo(text)
        return
    show()
    if json_path:
        Path(json_path).write_text(f"{text}\n")


LEFT, INTERRUPTED = 6, 130
EXIT_CODES = {
    0: "done, or told to stop (replicate)",
    1: "it cannot go on, see the message",
    2: "bad arguments",
    3: "source unreachable or not answering: start it again",
    4: "history lost",
    5: "other writers of a table left no gap: start it again",
    LEFT: "differences are left (verify, backfill, replay-dead-letters, restore, demo)",
    INTERRUPTED: "ended at once by Ctrl-C",
    143: "ended at once by SIGTERM",
}

P = ParamSpec("P")
_RAISED = re.compile(r"cdc\.errors\.(\w+): (.+)")


def told(program: Callable[P, int]) -> Callable[P, None]:
    """A program that ends the process with its own exit code, or with an error in one sentence.

    Spark wraps what a task or the source's planner raised in its own exceptions and several stack
    traces; the last of our errors in their text is the one that was raised first.
    """

    @wraps(program)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        print_plainly()
        # The stack trace of what a batch raises, which is told below.
        logging.getLogger("py4j.clientserver").setLevel(logging.CRITICAL)
        try:
            with Interrupt():
                code = program(*args, **kwargs)
            sys.exit(code)
        except KeyboardInterrupt:  # raised by hand, or where nobody takes signals
            sys.exit(INTERRUPTED)
        except CdcError as error:
            _end(type(error), str(error))
        except Exception as error:
            kind, message = _wrapped(error)
            if kind is None:
                raise
            _end(kind, message)

    return run


def _wrapped(error: Exception) -> tuple[type[CdcError] | None, str]:
    """The error of ours that one of Spark's tells of, if it does."""
    from pyspark.errors import PySparkException  # half a second, and not every program needs Spark

    found = _RAISED.findall(str(error)) if isinstance(error, PySparkException) else []
    if not found:
        return None, ""
    name, message = found[-1]
    return getattr(errors, name, None), message.rstrip()


def _end(kind: type[CdcError], message: str) -> None:
    sys.stderr.write(f"error: {plain(message)}\n")
    sys.exit(kind.exit_code)
