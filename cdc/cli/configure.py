"""Programs `init` and `infer`: write a configuration, and add typed columns of documents to it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import reduce
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import tomlkit
from rich.console import Console

from cdc.cli.commands import json_option, print_result, run_as_command
from cdc.errors import BadOption
from cdc.logs import escape_controls
from cdc.options import MODES
from cdc.pipeline import (
    InferredColumns,
    add_columns,
    check_tables,
    column_text,
    infer,
    select_namespaces,
)
from cdc.pipeline import config as configuration
from cdc.terminal import Terminal

_SAMPLE = 10_000
_FILE = """\
# A pipeline of mongodb-cdc. `mongodb-cdc plan --config {name}` checks it.
# All options: docs/reference/options.md and docs/reference/configuration.md.

[source]
# The connection string. env:NAME and file:PATH keep it, and its password, out of this file.
uri = {uri}
# Full names, or regular expressions on them such as "shop\\\\..*"; with commas, or as a list.
collections = {collections}
# Where a run without a checkpoint begins:
# initial | snapshot | latest | timestamp | token | earliest
mode = {mode}

[sink]
# The folder or URL of the tables and of the checkpoint.
path = {path}

[table]
# An empty text disables a kind of table.
changelog = "{{db}}/{{coll}}/changelog"
mirror = "{{db}}/{{coll}}/mirror"
# All versions of each document, with the time in which each was valid:
# history = "{{db}}/{{coll}}/history"
# Typed columns of mirrors: `mongodb-cdc infer --config {name}` adds them.

# Settings of Spark, without "spark." in front, for commands that start Spark themselves.
# [spark]
# driver.memory = "4g"
"""

# --- init ----------------------------------------------------------------------------------------


@click.command("init")
@click.option("--config", "path", default="pipeline.toml", show_default=True, help="The new file.")
@click.option(
    "--uri",
    prompt="Connection string, or env:NAME or file:PATH that contains it",
    default="env:MONGODB_URI",
    show_default=True,
    help="The source; env:NAME or file:PATH if it contains a password.",
)
@click.option(
    "--collections",
    prompt="Collections to capture (db.coll, or regular expressions; with commas)",
    help="Full names or regular expressions on them, with commas between them.",
)
@click.option(
    "--tables",
    prompt="Folder or URL of the tables",
    default="lakehouse",
    show_default=True,
    help="The folder or URL of the tables.",
)
@click.option(
    "--mode",
    type=click.Choice(MODES),
    default=MODES[0],
    show_default=True,
    help="Where a run without a checkpoint begins.",
)
@run_as_command
def create(path: str, uri: str, collections: str, tables: str, mode: str) -> int:
    """Write the commented configuration of a new pipeline; ask for what no option gives.

    An existing file is not changed. Nothing is connected to.

    Example: mongodb-cdc init --uri env:MONGODB_URI --collections shop.orders --tables lakehouse
    """
    file = Path(path)
    _require_no_password(uri)
    given = {"uri": uri, "collections": collections, "mode": mode, "sink.path": tables}
    configuration.load(None, [f"{name}={value}" for name, value in given.items()])
    values = {"uri": uri, "collections": collections, "mode": mode, "path": tables}
    texts = {name: tomlkit.item(value).as_string() for name, value in values.items()}
    _write_new(file, _FILE.format(name=file.name, **texts))
    Terminal().print(f"wrote {file}; check it by: mongodb-cdc plan --config {file}", soft_wrap=True)
    return 0


def _require_no_password(uri: str) -> None:
    # Not by the driver, which asks DNS about mongodb+srv. A password with a slash is refused later.
    authority = re.split(r"[/?]", uri.partition("://")[2], maxsplit=1)[0]
    has_password = ":" in authority.rpartition("@")[0]
    if has_password:
        raise BadOption(
            "The connection string contains a password, which a configuration file should not.",
            "Put it into an environment variable, and give its name: --uri env:MONGODB_URI.",
        )


def _write_new(file: Path, text: str) -> None:
    try:
        with file.open("x") as stream:
            stream.write(text)
    except FileExistsError:
        raise BadOption(f"There is a file {file} already.", "Name another with --config.") from None
    except OSError as error:
        raise BadOption(
            f"{file} cannot be written: {error.strerror}.", "Name another file with --config."
        ) from error


# --- infer ---------------------------------------------------------------------------------------


def show(console: Console, results: Iterable[InferredColumns], misfit: str) -> None:
    """Print one line per collection, one for each of its columns, and which table they misfit."""
    for inferred in results:
        _show(console, inferred)
    if misfit:
        console.print(f"WARNING: {escape_controls(misfit)}", soft_wrap=True)


def _show(console: Console, inferred: InferredColumns) -> None:
    console.print(
        f"{inferred.namespace}: {len(inferred.columns)} new columns,"
        f" from {inferred.documents:,} documents",
    )
    for column in inferred.columns:
        present, fitting = inferred.present[column.name], inferred.fitting[column.name]
        console.print(
            f"  {column.name} = {column_text(column)}: {fitting:,} of {present:,} values fit"
            f" ({fitting / present:.1%})",
            soft_wrap=True,
        )


def describe(inferred: InferredColumns) -> dict[str, Any]:
    """One collection's columns as a JSON object; `column` is the text in the configuration."""
    columns = [
        {
            "name": each.name,
            "column": column_text(each),
            "present": inferred.present[each.name],
            "fitting": inferred.fitting[each.name],
        }
        for each in inferred.columns
    ]
    name, documents = str(inferred.namespace), inferred.documents
    return {"namespace": name, "documents": documents, "columns": columns}


@click.command("infer")
@click.option("--config", "path", type=click.Path(), required=True, help="The TOML file to extend.")
@click.option("-o", "--option", "overrides", multiple=True, help="name=value; overrides the file.")
@click.option("--collection", "only", multiple=True, help="db.coll; default: all selected ones.")
@click.option(
    "--sample",
    type=click.IntRange(1),
    default=_SAMPLE,
    show_default=True,
    help="Documents to read from each collection.",
)
@click.option("--dry-run", is_flag=True, help="Show the columns; do not change the file.")
@click.option(
    "--force",
    "is_forced",
    is_flag=True,
    help="Add columns that existing tables do not fit; these have to be rebuilt then.",
)
@json_option
@run_as_command
def infer_columns(
    path: str,
    overrides: tuple[str, ...],
    only: tuple[str, ...],
    sample: int,
    dry_run: bool,
    is_forced: bool,
    json_path: str | None,
) -> int:
    """Infer typed columns from documents and write them into the configuration.

    Example: mongodb-cdc infer --config pipeline.toml --dry-run
    """
    config = configuration.load(path, overrides)
    chosen = select_namespaces(config, only)
    console, file = Terminal(), Path(path)
    results = [infer(config, namespace, sample) for namespace in chosen]
    text = reduce(add_columns, results, file.read_text())
    misfit = ""
    with TemporaryDirectory() as folder:
        new = Path(folder) / file.name
        new.write_text(text)
        try:
            check_tables(configuration.load(str(new), overrides), chosen)
        except BadOption as error:
            misfit = error.message
            if not (is_forced or dry_run):
                raise BadOption(
                    f"No column was added. {error.message}",
                    "Call infer with --force to add them, then mongodb-cdc follow --rebuild"
                    " --collection, with the collection's name.",
                ) from error
    if not dry_run:
        file.write_text(text)
    described = [describe(inferred) for inferred in results]
    print_result(described, json_path, lambda: show(console, results, misfit))
    return 0
