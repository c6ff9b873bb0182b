"""The parts of the documents that are made of the code: `python -m tests.reference` renews them."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import click

from cdc import errors, options
from cdc.cli.commands import EXIT_CODES, PROGRAMS, command
from cdc.delta.tables import layout
from cdc.errors import CdcError, UnmappableValue
from cdc.mongo.connection import privileges
from cdc.monitoring.prometheus import METRICS, PREFIX
from cdc.pipeline.sections import SINK_KEYS
from cdc.tasks import STORAGE_KEYS
from tests import schema

ROOT = Path(__file__).parents[1]
# What users of Spark and Airflow call, by the file that defines it.
PYTHON = {
    "cdc": ("cdc/__init__.py", ("register", "live")),
    "cdc.Pipeline": (
        "cdc/api.py",
        (
            *("from_toml", "from_options", "spark", "run", "plan", "status", "summary", "batches"),
            *("verify", "backfill", "restore", "live", "as_of", "table", "commits"),
            "mirrored_until",
        ),
    ),
    "cdc.delta.reading.point_in_time": ("cdc/delta/reading/point_in_time.py", ("as_of",)),
    "cdc.delta.followers.history": ("cdc/delta/followers/history.py", ("history",)),
    "cdc.delta.columns": ("cdc/delta/columns/changelog_forms.py", ("cdf", "debezium")),
    "cdc.airflow": ("cdc/airflow/dags.py", ("backfill_dag", "window_dag")),
    "cdc.airflow.assets": ("cdc/airflow/assets.py", ("changelog", "mirror")),
}
_PART = re.compile(r"<!-- (generated: [\w ]+) -->\n.*?<!-- end -->", re.S)


def parts() -> dict[str, Callable[[], str]]:
    """Each part, by the name that stands where it belongs."""
    return {
        "options": options.table,
        "sink": lambda: _keys(SINK_KEYS),
        "storage": lambda: _keys(STORAGE_KEYS),
        "table": layout.table,
        "privileges": privileges.table,
        "programs": lambda: _table(["`mongodb-cdc …`", "what it does"], _quoted(PROGRAMS)),
        "commands": _commands,
        "exit codes": lambda: _table(
            ["code", "meaning"], [(str(code), meaning) for code, meaning in EXIT_CODES.items()]
        ),
        "errors": _errors,
        "metrics": _metrics,
        "python": _python,
    }


def pages() -> dict[Path, str]:
    """The pages that have such parts, and the schema of the configuration, as they are to be."""
    made = parts()
    found = {path: path.read_text() for path in sorted(ROOT.glob("docs/**/*.md"))}
    return {ROOT / "conf/pipeline.schema.json": schema.text()} | {
        path: _PART.sub(lambda part: _filled(part[1], made), text)
        for path, text in found.items()
        if _PART.search(text)
    }


def placed() -> list[str]:
    """The names of the parts that have a place, in the order of the pages."""
    texts = (path.read_text() for path in sorted(ROOT.glob("docs/**/*.md")))
    return [name.removeprefix("generated: ") for text in texts for name in _PART.findall(text)]


def _filled(name: str, made: Mapping[str, Callable[[], str]]) -> str:
    text = made[name.removeprefix("generated: ")]().strip("\n")
    return f"<!-- {name} -->\n\n{text}\n\n<!-- end -->"


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(head), ["---"] * len(list(head)), *map(list, rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _quoted(texts: Mapping[str, str]) -> list[tuple[str, str]]:
    return [(f"`{name}`", text) for name, text in texts.items()]


def _keys(keys: Mapping[str, str]) -> str:
    return _table(["option", "meaning"], _quoted(keys))


def _metrics() -> str:
    rows = (
        (f"`{PREFIX}{name}`", _quoted_list("pipeline", *metric.labels), metric.meaning)
        for name, metric in METRICS.items()
    )
    return _table(["metric", "labels", "meaning"], rows)


def _quoted_list(*names: str) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _commands() -> str:
    return "\n\n".join(_command(name) for name in PROGRAMS)


def _command(name: str) -> str:
    """What `mongodb-cdc NAME --help` states."""
    program = command(name)
    context = click.Context(program, info_name=f"mongodb-cdc {name}", terminal_width=100)
    return f"### `{name}`\n\n```\n{program.get_help(context).rstrip()}\n```"


def _errors() -> str:
    kinds = [each for each in vars(errors).values() if isinstance(each, type)]
    ends = [each for each in kinds if issubclass(each, CdcError) and each is not UnmappableValue]
    return _table(
        ["error", "code", "meaning"],
        [(_linked(each.__name__), str(each.exit_code), _first_line(each)) for each in ends],
    )


def _linked(error: str) -> str:
    """Its section on the page of remedies."""
    return f"[`{error}`](../operate/troubleshooting.md#{error.lower()})"


def _first_line(kind: type) -> str:
    return (kind.__doc__ or "").strip().partition("\n\n")[0].replace("\n    ", " ")


def _python() -> str:
    return "\n\n".join(
        f"### `{module}.{name}`\n\n```\n{_function(ROOT / file, name)}\n```"
        for module, (file, names) in PYTHON.items()
        for name in names
    )


def _function(path: Path, name: str) -> str:
    """Its signature and docstring, as they are in the file; also of a method."""
    text = path.read_text()
    [node] = [
        each
        for each in ast.walk(ast.parse(text))
        if isinstance(each, ast.FunctionDef) and each.name == name
    ]
    lines = text.splitlines()[node.lineno - 1 : node.body[0].end_lineno]
    return textwrap.dedent("\n".join(lines))


if __name__ == "__main__":
    for page, text in pages().items():
        page.write_text(text)
