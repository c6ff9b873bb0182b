"""The shard keys by which the rows of a pipeline were made, in a file of its checkpoint.

Through a router, the column `key` contains the shard key, see `cdc.model.whole_key`. With
another shard key a document would have another `key`, and its rows would not belong together any
more. Routers of MongoDB 6.0 report neither refining nor resharding. So each batch compares.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cdc.checkpoint.checkpoint import parse_json
from cdc.checkpoint.folder import Folder
from cdc.model import Namespace, ShardKey, Timestamp, shard_key_changed

_FILE = "shard_keys"


@dataclass(frozen=True, slots=True)
class RecordedKeys:
    """The record of one pipeline."""

    folder: Folder

    def read(self) -> dict[Namespace, tuple[str, ...]]:
        """Return the fields of the shard key of each known collection; none if `_id` is enough."""
        found = parse_json(self.folder.read_text(_FILE))
        known = found if isinstance(found, dict) else {}
        return {Namespace.parse(name): tuple(fields) for name, fields in known.items()}

    def require_same(
        self,
        keys: Mapping[Namespace, ShardKey],
        names: Iterable[Namespace],
        gone: Iterable[Namespace],
        until: Timestamp,
    ) -> None:
        """Compare the shard keys of a batch with the record, and record new ones.

        May be repeated. Raises UnsuitableSource if a collection got another shard key: the tables
        must not get the batch then.

        Args:
            keys: the shard keys after the batch was read. One that was dropped since may be
                missing.
            names: the collections of which the batch has documents.
            gone: the collections whose rows are void after the batch.
            until: the time of the batch.
        """
        recorded = self.read()
        after = dict(recorded)
        for name in names:
            key = keys.get(name)
            if key is not None and key.since > until:
                key = None  # a later batch shows whether it belongs to another incarnation
            if key is not None and key.fields != recorded.get(name, key.fields):
                raise shard_key_changed(name)
            after.setdefault(name, () if key is None else key.fields)
        for name in gone:
            after.pop(name, None)
        if after != recorded:
            text = {str(name): list(fields) for name, fields in sorted(after.items())}
            self.folder.write_text(_FILE, json.dumps(text))
