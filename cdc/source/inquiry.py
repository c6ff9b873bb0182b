"""What jobs ask of a source by its options, without Spark in between."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cdc import options as declared
from cdc.model.offset import Offset
from cdc.model.selection import Namespace
from cdc.mongo.cluster import Source
from cdc.mongo.enumerator import Collection, estimated_documents
from cdc.mongo.examination import Examination, examine
from cdc.mongo.preflight import check, shards_of
from cdc.mongo.standing import Passed, Standing
from cdc.mongo.standing import standing as stands
from cdc.source.translation import wanted_of
from cdc.task import asked, found


@dataclass(frozen=True, slots=True)
class Captured:
    """A selected collection and about how many documents it holds."""

    namespace: Namespace
    documents: int


def preflight(given: Mapping[str, str], is_new: bool = True) -> list[Captured]:
    """The collections of a run with these options, for jobs: the same checks as the source's own,
    without Spark in between. With a checkpoint (`is_new` False) a collection may be gone, or not
    be there yet, for good reason. Raises CdcError."""
    options = declared.parse(given)

    def captured(source: Source) -> list[Captured]:
        listed = check(source, wanted_of(source, options, is_new)).collections
        return [Captured(each.namespace, _documents(source, each)) for each in listed]

    return asked(options, captured)


def _documents(source: Source, collection: Collection) -> int:
    clients = (source.clients[shard] for shard in shards_of(source, collection))
    return sum(estimated_documents(client, collection.namespace) for client in clients)


def plan(given: Mapping[str, str]) -> Examination:
    """What a new run with these options would meet, and whether it could succeed; nothing is read
    for it but numbers. Raises BadOption, SourceUnreachable, UnsuitableSource."""
    options = declared.parse(given)

    def examined(source: Source) -> Examination:
        return examine(source, wanted_of(source, options), options.split_size_mb * 2**20)

    return asked(options, examined)


def standing(given: Mapping[str, str], at: Offset | None, passed: Passed | None) -> Standing:
    """Where a run with these options stands whose tables are at an offset; `passed` are its last
    batches. Raises CdcError."""
    options = declared.parse(given)
    return stands(found(options), options.selection, options.capture, at, passed)
