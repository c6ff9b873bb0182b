"""Program `infer`: add typed columns to a configuration, inferred from documents."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from cdc.cli.commands import json_option, print_result, run_as_command
from cdc.pipeline import (
    InferredColumns,
    add_columns,
    column_text,
    infer,
    select_namespaces,
    session,
)
from cdc.pipeline import config as configuration
from cdc.terminal import Terminal

_SAMPLE = 10_000


def show(console: Console, results: Iterable[InferredColumns]) -> None:
    """Print one line per collection, then one for each of its columns."""
    for inferred in results:
        _show(console, inferred)


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


@click.command()
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
@json_option
@run_as_command
def main(
    path: str,
    overrides: tuple[str, ...],
    only: tuple[str, ...],
    sample: int,
    dry_run: bool,
    json_path: str | None,
) -> int:
    """Infer typed columns from documents and write them into the configuration.

    Example: mongodb-cdc infer --config pipeline.toml --dry-run
    """
    config = configuration.load(path, overrides)
    chosen = select_namespaces(config, only)
    spark, console, file = session("mongodb-cdc infer", config=config), Terminal(), Path(path)
    results = [infer(spark, config, namespace, sample) for namespace in chosen]
    for inferred in [] if dry_run else results:
        file.write_text(add_columns(file.read_text(), inferred))
    described = [describe(inferred) for inferred in results]
    print_result(described, json_path, lambda: show(console, results))
    return 0


if __name__ == "__main__":
    main()
