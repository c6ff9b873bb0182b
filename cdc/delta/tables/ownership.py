"""Ownership: a table names its pipeline, its namespace and its kind in its properties."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import replace

from cdc.delta.log import TableReader, Target
from cdc.delta.tables.layout import Layout, Table
from cdc.delta.tables.routing import Route
from cdc.errors import TableOwnedElsewhere
from cdc.model import Namespace
from cdc.tasks import is_foreign

PIPELINE = "mongodb-cdc.pipeline"
_NAMESPACE = "mongodb-cdc.namespace"
_KIND = "mongodb-cdc.table"


def identity(pipeline: str, kind: str, table: Table) -> dict[str, str]:
    """The properties that identify a table of that pipeline and kind."""
    return {PIPELINE: pipeline, _KIND: kind, _NAMESPACE: json.dumps(table.namespace)}


def require_ours(table: Table, ours: Mapping[str, str], there: Mapping[str, str]) -> None:
    """Raise TableOwnedElsewhere unless the properties of a table contain our identity."""
    if ours.items() <= there.items():
        return
    if PIPELINE in there:
        found = (
            f"is the {there.get(_KIND)} of {_name(there.get(_NAMESPACE))} "
            f"of pipeline '{there[PIPELINE]}'"
        )
    else:
        found = "was not made by mongodb-cdc"
    raise TableOwnedElsewhere(
        f"The table at '{table.target}' {found}; the {ours[_KIND]} of {_name(ours[_NAMESPACE])}"
        f" for this checkpoint (pipeline '{ours[PIPELINE]}') cannot go there.",
        "Choose another path, put the checkpoint back that it was written by, or remove both.",
    )


def occupied(table: Table, ours: Mapping[str, str]) -> TableOwnedElsewhere:
    """The error for a folder that contains files of others and no Delta table, or for a name of
    something else."""
    if table.target.is_name:
        return TableOwnedElsewhere(
            f"The name {table.target} belongs to a view; the {ours[_KIND]} of"
            f" {_name(ours[_NAMESPACE])} cannot go there.",
            "Choose another name, or remove the view.",
        )
    return TableOwnedElsewhere(
        f"The folder {table.target} holds files, and no Delta table; the {ours[_KIND]} of"
        f" {_name(ours[_NAMESPACE])} cannot go there.",
        "Choose another path, or remove them.",
    )


def require_unoccupied(reader: TableReader, table: Table, ours: Mapping[str, str]) -> None:
    """Raise TableOwnedElsewhere if the folder of a new table contains files that no task of a
    pipeline wrote."""
    if any(map(is_foreign, reader.names_in(table.target))):
        raise occupied(table, ours)


def present(
    reader: TableReader, layout: Layout, kind: str, tables: Iterable[Table]
) -> Iterator[tuple[Table, Mapping[str, str]]]:
    """Yield those of these tables that exist, whoever created them, and their properties.

    Costs about 0.03 s for each existing table.
    """
    settled = (replace(table, target=table.target.settle(reader.exists)) for table in tables)
    wanted = {table.target: table for table in settled}
    routes = (options.routes.get(kind) for options in layout.all())
    for route in dict.fromkeys(filter(None, routes)):
        for found in _matching(reader, route):
            if (table := wanted.pop(route.own(found), None)) is not None:
                yield table, reader.properties(found)


def existing(
    reader: TableReader, layout: Layout, kind: str, known: Container[Target] = ()
) -> Iterator[tuple[Table, Mapping[str, str]]]:
    """Yield the tables of a kind, of all pipelines, at the places of the layout.

    With their properties. Their targets are settled. Tables that are `known` are left out. Costs
    about 0.03 s per table.
    """
    for options in layout.all():
        if (route := options.routes.get(kind)) is None:
            continue
        for found in _matching(reader, route):
            own = route.own(found)
            if own in known:
                continue
            properties = reader.properties(found)
            if properties.get(_KIND) != kind:
                continue
            name = json.loads(properties[_NAMESPACE])
            if name is None:
                # The route of another table of one collection may match its path too.
                table: Table | None = Table(own, None, options) if route.is_shared else None
            else:
                table = layout.table(kind, Namespace(*name))
            # A table that the layout puts elsewhere now is no table of the pipeline any more.
            if table is not None and table.target.settle(reader.exists) == own:
                yield replace(table, target=own), properties


def _name(text: str | None) -> str:
    name = json.loads(text or "null")
    return str(Namespace(*name)) if name else "several collections"


def _matching(reader: TableReader, route: Route) -> list[Target]:
    if route.is_name:
        return reader.find_names(*route.patterns())
    return reader.find(route.literals())
