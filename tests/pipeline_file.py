"""The configuration of a test's own pipeline, as a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pymongo.database import Database

from cdc.demo import ReplicaSet


def write_pipeline(
    folder: Path, mongod: ReplicaSet, database: Database[dict[str, Any]], sink: str = ""
) -> Path:
    """A pipeline of the collection `orders` into `lakehouse` in the folder.

    `sink`: more lines of TOML for `[sink]`.
    """
    file = folder / "pipeline.toml"
    file.write_text(
        f'[source]\nuri = "{mongod.uri}"\ncollections = ["{database.name}.orders"]\n'
        f'[sink]\npath = "{folder / "lakehouse"}"\n{sink}'
    )
    return file
