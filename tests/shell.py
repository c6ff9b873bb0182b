"""The documented commands for MongoDB's shell, run by a driver."""

from __future__ import annotations

import json
import re
from typing import Any

from pymongo import MongoClient

_COMMAND = re.compile(r'db\.getSiblingDB\("(\w+)"\)\.runCommand\((.*)\)\s*', re.S)


def run_in_shell(client: MongoClient[dict[str, Any]], text: str) -> None:
    """Do what the shell makes of `db.getSiblingDB(…).runCommand(…)`."""
    found = _COMMAND.fullmatch(text)
    assert found is not None, text
    client[found[1]].command(json.loads(re.sub(r"(\w+):", r'"\1":', found[2])))
