"""The one command: what each program says of itself, and what the shell and the documents know."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from cdc import errors
from cdc.cli.commands import EXIT_CODES, PROGRAMS, json_option, main, pipeline_options
from tests.documents import DOCUMENTS, ROOT

# Bash as it is when somebody presses the tabulator after `mongodb-cdc re`.
_TABULATOR = """
eval "$(_MONGODB_CDC_COMPLETE=bash_source mongodb-cdc)"
COMP_WORDS=(mongodb-cdc re) COMP_CWORD=1
_mongodb_cdc_completion mongodb-cdc
printf '%s\\n' "${COMPREPLY[@]}"
"""
_TABLE = """
from rich.table import Table
from cdc.terminal import Terminal
console = Terminal()
table = Table("collection")
table.add_row("shop.orders")
with console.status("waits"):
    console.print(table)
"""


def program(name: str) -> click.Command:
    command = main.get_command(click.Context(main), name)
    assert command is not None
    return command


def row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_example_in_a_program_s_help_is_taken_by_it(name: str) -> None:
    command = program(name)
    _, example = (command.help or "").split("Example: mongodb-cdc ")
    given, *arguments = shlex.split(example)
    assert given == name
    with command.make_context(name, arguments) as context:
        assert not context.args


@pytest.mark.parametrize("name", PROGRAMS)
def test_help_reports_what_each_option_is_for(name: str) -> None:
    options = [each for each in program(name).params if isinstance(each, click.Option)]
    assert [each.name for each in options if not each.help] == []


@pytest.mark.parametrize(
    "name", sorted(PROGRAMS.keys() - {"follow", "init", "prepare", "replicate", "token"})
)
def test_each_program_that_finds_something_reports_it_as_json_in_the_same_way(name: str) -> None:
    [common] = json_option(click.Command("any")).params
    [own] = [each for each in program(name).params if "--json" in each.opts]
    assert own.to_info_dict() == common.to_info_dict()


def test_bash_completes_the_beginning_of_a_name_without_importing_spark() -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", _TABULATOR],
        env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "PYTHONPROFILEIMPORTTIME": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [name for name in PROGRAMS if name.startswith("re")]
    assert "cdc.cli.commands" in done.stderr
    assert "pyspark" not in done.stderr


def test_the_documents_report_each_program_and_each_exit_code() -> None:
    for name, says in PROGRAMS.items():
        assert row(f"`{name}`", says) in DOCUMENTS
    for code, says in EXIT_CODES.items():
        assert row(code, says) in DOCUMENTS


def test_each_exit_code_is_listed() -> None:
    """Those of errors, and those that are written out anywhere in the programs."""
    raised = {each.exit_code for each in vars(errors).values() if isinstance(each, type)}
    sources = "".join(path.read_text() for path in ROOT.glob("cdc/**/*.py"))
    written = {int(code) for code in re.findall(r"\b(?:exit|end)\((\d+)\)", sources)}
    assert raised | written <= EXIT_CODES.keys()
    assert CliRunner().invoke(main, ["no-such-program"]).exit_code in EXIT_CODES


def test_a_result_is_not_written_where_there_is_no_folder_and_nothing_is_begun(
    tmp_path: Path,
) -> None:
    arguments = ["plan", "-o", "nonsense", "--json", str(tmp_path / "none" / "plan.json")]
    result = CliRunner().invoke(main, arguments)
    assert (result.exit_code, "nonsense" in result.stderr) == (2, False)
    assert f"there is no folder {tmp_path / 'none'}" in result.stderr


def test_colours_and_bars_are_for_terminals_alone() -> None:
    """Guards: a log full of escape sequences."""
    command, ours = [sys.executable, "-c", _TABLE], {**os.environ, "TERM": "xterm"}
    piped = subprocess.run(command, cwd=ROOT, env=ours, capture_output=True, check=True)
    assert b"shop.orders" in piped.stdout
    assert b"\x1b" not in piped.stdout + piped.stderr
    reported, terminal = os.openpty()
    with subprocess.Popen(command, cwd=ROOT, env=ours, stdout=terminal) as process:
        os.close(terminal)
        shown = b""
        while b"shop.orders" not in shown:
            shown += os.read(reported, 4096)
        process.kill()
    os.close(reported)
    assert b"\x1b[" in shown


def test_ctrl_c_ends_a_program_that_is_still_being_imported() -> None:
    """Guards: a stack trace, or the code 1 of a failure."""
    source = socket.create_server(("127.0.0.1", 0))  # which never answers, should it come to that
    uri = f"uri=mongodb://127.0.0.1:{source.getsockname()[1]}"
    options = ["-o", uri, "-o", "collections=a.b", "-o", "sink.path=nowhere"]
    start = [sys.executable, "-X", "importtime", "-c", "from cdc.cli.commands import main; main()"]
    with (
        source,
        subprocess.Popen(
            [*start, "plan", *options],
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process,
    ):
        assert process.stderr is not None
        said = next(line for line in process.stderr if re.search(r"\| +rich", line))
        os.killpg(process.pid, signal.SIGINT)
        said += process.stderr.read()
        assert process.wait() == 130, said
    assert "Traceback" not in said
    assert "Aborted" not in said


def test_settings_of_spark_are_given_as_spark_submit_takes_them() -> None:
    """Guards: a setting that nobody reads, because its name is not one of Spark's."""

    @click.command
    @pipeline_options
    def program(path: str | None, overrides: tuple[str, ...]) -> None:
        click.echo(",".join(overrides))

    settings = ["--conf", "spark.driver.memory=4g", "-o", "mode=latest"]
    assert CliRunner().invoke(program, settings).output == "mode=latest,spark.driver.memory=4g\n"
    refused = CliRunner().invoke(program, ["--conf", "driver.memory=4g"])
    assert refused.exit_code == 2
    assert "write spark.NAME=VALUE" in refused.output


def test_spark_that_is_not_installed_is_reported_with_what_to_install() -> None:
    """Guards: the wheel without its extras, where no vendor's Spark is."""
    program = "import sys; sys.modules['pyspark'] = sys.modules['delta'] = None;"
    program += "from cdc.cli.commands import main; main(['plan'])"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: The Python packages of Spark and Delta")
    assert "mongodb-cdc-spark[spark]" in done.stderr
    assert len(done.stderr.splitlines()) == 1
