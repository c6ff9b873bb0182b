"""The offsets in a checkpoint: up to where each batch goes, in time and in keys."""

from __future__ import annotations

import base64
import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bson
from bson import Timestamp

from cdc.model import Namespace
from cdc.pipeline import Config


@dataclass(frozen=True)
class Frontier:
    """A checkpointed offset. `swept` is the last name that was copied or is being copied, None if
    all are; `copying` the one being copied, and the key below which it is."""

    time: Timestamp
    swept: str | None
    copying: tuple[str, int | float] | None
    late: int = 0

    def below(self, namespace: Namespace) -> int | float | None:
        """The keys below that are done as of `time`; None: all are."""
        if self.copying is not None and self.copying[0] == str(namespace):
            return self.copying[1]
        is_reached = self.swept is None or str(namespace) <= self.swept
        return None if is_reached else float("-inf")

    @property
    def is_streaming(self) -> bool:
        return self.swept is None and self.copying is None


class Checkpoint:
    """The offsets of a pipeline's batches, remembered after Spark has removed their files. The last
    ones may be damaged, and others when they are repaired."""

    def __init__(self, config: Config) -> None:
        self._folder = Path(config.checkpoint)
        self._planned: dict[int, Frontier] = {}
        self._last = set[int]()

    def planned(self) -> list[Frontier]:
        """One per batch, in order, the last of them perhaps not written to the tables yet."""
        found = sorted((int(path.name), path) for path in self._folder.glob("offsets/[0-9]*"))
        for batch, path in found:
            if batch not in self._planned or batch in self._last:
                self._planned.pop(batch, None)
                with suppress(FileNotFoundError, ValueError, IndexError):
                    lines = path.read_text().splitlines()
                    self._planned[batch] = _frontier(json.loads(lines[-1]))
        self._last = {batch for batch, _ in found[-2:]}
        for batch in [each for each in self._planned if found and each > found[-1][0]]:
            del self._planned[batch]
        assert sorted(self._planned) == list(range(len(self._planned))), "an offset was missed"
        return [frontier for _, frontier in sorted(self._planned.items())]

    def committed(self) -> int:
        """The number of the last batch that is in all tables for certain; -1 before the first."""
        return max((int(path.name) for path in self._folder.glob("commits/[0-9]*")), default=-1)


def _frontier(offset: dict[str, Any]) -> Frontier:
    assert not offset["again"], "a collection was replaced"
    seconds, increment = map(int, offset["time"].split(":"))
    copying = None
    if offset["copying"]:
        key = bson.decode(base64.b64decode(offset["copying"]["below"]))["_id"]
        below = key if isinstance(key, int) else float("-inf")
        copying = offset["copying"]["namespace"], below
    late = sum(map(len, offset["late"].values()))
    return Frontier(Timestamp(seconds, increment), offset["swept"], copying, late)
