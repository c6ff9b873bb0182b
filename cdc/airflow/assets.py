"""The tables of a pipeline as assets of Airflow.

A task that writes a table has its asset as an outlet, and a DAG whose `schedule` is the asset runs
after each such task. An asset names the table, not its place: it has no path and no credentials.
"""

from __future__ import annotations

from urllib.parse import quote

from airflow.sdk import Asset


def changelog(pipeline: str, collection: str) -> Asset:
    """The asset of a changelog.

    Args:
        pipeline: The name of the pipeline, any text; one for each pipeline.
        collection: Full name `db.coll`.
    """
    return _table(pipeline, collection, "changelog")


def mirror(pipeline: str, collection: str) -> Asset:
    """The asset of a mirror; see `changelog`."""
    return _table(pipeline, collection, "mirror")


def _table(pipeline: str, collection: str, kind: str) -> Asset:
    if not pipeline:
        raise ValueError("The assets of tables need the name of their pipeline: pipeline='shop'.")
    parts = (pipeline, collection, kind)
    return Asset("mongodb-cdc://" + "/".join(quote(each, safe="") for each in parts))
