"""What is logged where nobody has said what becomes of it is shown as what it is."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# A collection may be called so.
_NAME = "shop.a\x1b[2J\nerror: b"
_WARNS = f"""
import logging
try:
    raise LookupError({_NAME!r})
except LookupError:
    logging.getLogger("cdc.delta.sink").warning("%s is reported", {_NAME!r}, exc_info=True)
"""
PROGRAMS = {
    "a job": """
from cdc.cli.commands import run_as_command
@run_as_command
def program():
    exec({warns!r})
    return 0
program()
""",
    # As Spark's Python processes do, which have no program of ours.
    "a reader": "import cdc.source.batch_readers\nexec({warns!r})",
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_name_in_the_log_is_no_command_to_the_terminal_and_no_line_of_its_own(
    program: str,
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAMS[program].format(warns=_WARNS)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0
    first, *trace = done.stderr.splitlines()
    said = r"shop.a\x1b[2J\nerror: b is reported"
    form = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z WARNING cdc\.delta\.sink: "
    assert re.fullmatch(form + re.escape(said), first)
    assert trace[0].startswith("Traceback")
    assert "\x1b" not in done.stderr
