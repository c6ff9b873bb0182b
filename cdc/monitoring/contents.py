"""Whether the tables of a pipeline contain all changes before a time."""

from __future__ import annotations

from collections.abc import Iterator

from cdc.delta.followers import KINDS
from cdc.delta.log import is_readable_locally
from cdc.errors import BadOption
from cdc.model import Namespace, Timestamp, timestamp
from cdc.mongo.inspect import STREAMING
from cdc.monitoring.pipeline_status import MOST_COLLECTIONS, Tables, View
from cdc.pipeline import Config


def find_lacks(config: Config, view: View, before: Timestamp) -> list[str]:
    """State what lacks changes before a time; empty if all tables contain them.

    Args:
        config: the configuration of the pipeline.
        view: its status.
        before: the time; a collection that is not copied completely lacks changes.

    Raises BadOption if a mirror or a history is a table that `status` cannot read.
    """
    written = None if view.checkpoint.last is None else view.metrics.time
    found = []
    for number, (extent, tables) in enumerate(view.collections):
        name = extent.namespace
        if extent.phase != STREAMING:
            found.append(f"{name}: its copy is not complete ({extent.phase})")
            continue
        times = {"changelog": written, **dict(_followers(config, view, name, tables, number))}
        for kind, time in times.items():
            if time is None or time < before:
                until = "an unknown time" if time is None else timestamp.text(time)
                found.append(f"{name}: its {kind} contains the changes up to {until} only")
    return found


def _followers(
    config: Config, view: View, name: Namespace, tables: Tables, number: int
) -> Iterator[tuple[str, Timestamp | None]]:
    """The followers of a collection's changelog, as far as it has them, and T of each."""
    contained = view.followers_contain(name, tables)
    for kind in (each.name for each in KINDS):
        stats = tables.followers.get(kind)
        table = config.table(kind, name)
        if table is None:
            continue
        is_read = number < MOST_COLLECTIONS and not table.is_shared
        if not is_read or not is_readable_locally(table.target):
            raise BadOption(
                f"Whether the {kind} of {name} contains all changes cannot be read.",
                "Ask only about tables on paths, of one collection each, and at most"
                f" {MOST_COLLECTIONS} collections.",
            )
        if config.table("changelog", name) is None and stats is not None:
            yield kind, view.metrics.time  # it is written with each batch
        else:
            yield kind, contained.get(kind)
