"""Infer: typed columns for the selected collections, from documents, into the configuration."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from jobs import config as configuration
from jobs.column_inference import Inferred, column_text, infer, written
from jobs.result import json_option, tell, told
from jobs.session import session
from jobs.terminal import Terminal
from jobs.verification import namespaces

_SAMPLE = 10_000


def show(console: Console, found: Iterable[Inferred]) -> None:
    """One line per collection, then one for each of its columns."""
    for inferred in found:
        _show(console, inferred)


def _show(console: Console, inferred: Inferred) -> None:
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


def described(inferred: Inferred) -> dict[str, Any]:
    """As JSON takes it; `column` is what the configuration says of it."""
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
@click.option("-o", "--option", "overrides", multiple=True, help="name=value, over the file's.")
@click.option("--collection", "only", multiple=True, help="db.coll; all selected ones if absent.")
@click.option(
    "--sample",
    type=click.IntRange(1),
    default=_SAMPLE,
    show_default=True,
    help="Documents to read of each.",
)
@click.option("--dry-run", is_flag=True, help="Show it only.")
@json_option
@told
def main(
    path: str,
    overrides: tuple[str, ...],
    only: tuple[str, ...],
    sample: int,
    dry_run: bool,
    json_path: str | None,
) -> int:
    """Infer typed columns from documents, and write them into the configuration.

    Example: mongodb-cdc infer --config pipeline.toml --dry-run
    """
    config = configuration.load(path, overrides)
    chosen = namespaces(config, only)
    spark, console, file = session("mongodb-cdc infer"), Terminal(), Path(path)
    found = [infer(spark, config, namespace, sample) for namespace in chosen]
    for inferred in [] if dry_run else found:
        file.write_text(written(file.read_text(), inferred))
    result = [described(inferred) for inferred in found]
    tell(result, json_path, lambda: show(console, found))
    return 0


if __name__ == "__main__":
    main()
