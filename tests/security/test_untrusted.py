"""What comes from outside is data: nothing of it is unpickled, evaluated or run."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdc.errors import BadOption
from cdc.model import Namespace
from cdc.pipeline import config as configuration

ROOT = Path(__file__).parents[2]
PROGRAM = sorted([*ROOT.glob("cdc/**/*.py"), *ROOT.glob("jobs/*.py"), *ROOT.glob("*.py")])
# Reading from any of these can run what was written.
LOADERS = {
    *("pickle", "cPickle", "_pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"),
    *("yaml", "jinja2", "runpy", "code", "codeop", "pty", "xmlrpc", "imp"),
}
LISTENERS = {"socketserver", "http", "asyncio", "xmlrpc", "multiprocessing", "wsgiref"}
CALLED = {"eval", "exec", "compile", "__import__", "execfile", "input", "breakpoint"}
METHODS = {"os.system", "os.popen", "pd.read_pickle", ".listen", ".create_server", ".accept"}
ARGUMENTS = {"allow_pickle", "shell"}


def used(path: Path) -> Iterator[str]:
    """What of the above a file imports, calls or passes, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield str(node.module).partition(".")[0]
        elif isinstance(node, ast.Call):
            yield from (f"{keyword.arg}=" for keyword in node.keywords)
            if isinstance(node.func, ast.Name):
                yield f"{node.func.id}()"
            elif isinstance(node.func, ast.Attribute):
                yield from (f".{node.func.attr}()", f"{ast.unparse(node.func)}()")


REFUSED = (
    LOADERS
    | LISTENERS
    | {f"{name}()" for name in CALLED | METHODS}
    | {f"{name}=" for name in ARGUMENTS}
)


def test_nothing_is_unpickled_evaluated_or_listened_for_by_code_of_the_project() -> None:
    """Guards: splits are pickled and unpickled by Spark alone, on its own channel."""
    assert len(PROGRAM) > 100
    found = {(path.name, name) for path in PROGRAM for name in used(path) if name in REFUSED}
    # One listens on loopback for the page of a status, one only waits for a process. One listens in
    # a folder of its user alone, and runs the modules that Spark starts as programs.
    of_fork_server = {("fork_server.py", name) for name in (".listen()", ".accept()", "runpy")}
    assert found == {("status_server.py", "http"), ("waiting.py", "asyncio"), *of_fork_server}


def test_modules_are_imported_by_names_that_stand_in_the_code() -> None:
    """Guards: an option, or an argument, that names a module to load."""
    importing = {path.name for path in PROGRAM if ".import_module()" in set(used(path))}
    # The driver names the modules of the fork server, on its command line.
    assert importing == {"commands.py", "compiling.py", "fork_server.py", "loading.py"}


CODE = [
    "!!python/object/apply:os.system ['touch {marker}']",
    "__import__('os').system('touch {marker}')",
    "$(touch {marker})",
    "`touch {marker}`",
    "{{{{ cycler.__init__.__globals__.os.system('touch {marker}') }}}}",
    "${{env:HOME}}",
    "%(HOME)s",
    "file:/etc/passwd",
]


@pytest.mark.parametrize("code", CODE)
def test_a_value_in_a_configuration_is_text_whatever_it_looks_like(
    code: str, tmp_path: Path
) -> None:
    marker, file = tmp_path / "was-here", tmp_path / "pipeline.toml"
    value = code.format(marker=marker)
    file.write_text(
        f"[source]\nuri = '''file:{value}'''\ncollections = ['a.b']\n"
        f"start = '8:1'\nmode = 'timestamp'\ncomment = '''{value}'''\n"
        "[sink]\npath = 'lake'\n"
    )
    config = configuration.load(str(file))
    assert (config.source["uri"], config.source["comment"]) == (f"file:{value}", value)
    assert not marker.exists()


@pytest.mark.parametrize(
    "text",
    [
        "import os; os.system('touch {marker}')",
        "source: !!python/object/apply:os.system ['touch {marker}']",
        "[source]\nuri = __import__('os').system('touch {marker}')",
        '{{"source": {{"uri": "x"}}}}',
    ],
)
def test_a_configuration_that_is_no_toml_is_refused_and_not_run(text: str, tmp_path: Path) -> None:
    marker, file = tmp_path / "was-here", tmp_path / "pipeline.toml"
    file.write_text(text.format(marker=marker))
    with pytest.raises(BadOption):
        configuration.load(str(file))
    assert not marker.exists()


@pytest.mark.parametrize("path", ["/lake/${env:HOME}", "${spark.app.name}", "/lake/${x"])
def test_a_path_that_spark_would_fill_in_is_refused(path: str) -> None:
    """Guards: Spark fills variables into the text of a statement, in quotes and backticks too."""
    given = ["uri=mongodb://h", "collections=a.b", f"sink.path={path}"]
    with pytest.raises(BadOption, match=r"\$\{"):
        configuration.load(None, given)


@pytest.mark.parametrize("kind", ["changelog", "mirror", "history", "dead_letters"])
@pytest.mark.parametrize(
    "template",
    [
        "../{db}/{coll}/x",
        "{db}/../../{coll}/x",
        "/etc/{db}/{coll}",
        "s3a://elsewhere/{db}/{coll}",
        "{db}/{coll}/./x",
        "{db}//{coll}",
        "{db}/{coll}/{env:HOME}",
        "..",
    ],
)
def test_a_template_that_leads_out_of_the_lakehouse_is_refused(kind: str, template: str) -> None:
    given = ["uri=mongodb://h", "collections=a.b", "sink.path=/lake", f"table.{kind}={template}"]
    with pytest.raises(BadOption):
        configuration.load(None, given)


def test_a_name_is_a_folder_of_the_lakehouse_and_no_path() -> None:
    given = ["uri=mongodb://h", "collections=a.b", "sink.path=/lake"]
    table = configuration.load(None, given).table("mirror", Namespace("..", "../../etc/passwd"))
    assert table is not None
    assert table.target.address == "/lake/!2E!2E/!2E.!2F..!2Fetc!2Fpasswd/mirror"
