"""Connectors that each break one rule, so that the search and the oracle have something to find."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from cdc.model import MAX_KEY, Copying, Namespace, Offset, Scan, resume_token
from tests.simulation.connector import Batch, Connector, Listed, Sweep
from tests.simulation.deployment import Catalog, Deployment, Event, Migrated, number_of, rank


class ReadsAsOfTheBeginning(Connector):
    """Documents are stamped with the end of the batch, but were read before."""

    def read_time(self, batch: Batch, member: int) -> int:
        return number_of(batch.start.time)


class ReadsFromALaggard(Connector):
    """A scan is answered by a member that has not got as far as the batch."""

    def read_time(self, batch: Batch, member: int) -> int:
        return min(self.deployment.applied[member], number_of(batch.end.time))


class StreamsFromALaggard(Connector):
    """A slice counts as complete when the member that serves it has no more events."""

    def events(self, batch: Batch, member: int) -> Iterator[Event]:
        upto = min(self.deployment.applied[member], number_of(batch.end.time))
        return self.deployment.between(number_of(batch.start.time), upto)


class CutsATransaction(Connector):
    """A batch ends after the first event of its last cluster time."""

    def events(self, batch: Batch, member: int) -> Iterator[Event]:
        last = number_of(batch.end.time)
        yield from self.deployment.between(number_of(batch.start.time), last - 1)
        if last > number_of(batch.start.time):
            yield from self.deployment.events[last][:1]


class IsSilentWhileCopying(Connector):
    """Changes are emitted only when the snapshot is complete."""

    def passes(self, batch: Batch, event: Event) -> bool:
        return batch.start.is_streaming and super().passes(batch, event)


class KeepsChunkNumbers(Connector):
    """A boundary is kept as the number of the documents before it, and looked up when needed."""

    def __init__(self, deployment: Deployment) -> None:
        super().__init__(deployment)
        self.numbers: dict[tuple[Namespace, bytes], int] = {}

    def cut(self, catalog: Catalog, copying: Copying, most: int) -> list[bytes]:
        cuts = super().cut(catalog, copying, most)
        keys = sorted(catalog[copying.namespace].documents) if len(cuts) > 1 else []
        for cut in cuts[:-1] if cuts[-1] == MAX_KEY else cuts:
            self.numbers[copying.namespace, cut] = sum(key < rank(cut) for key in keys)
        return cuts

    def bounds(self, batch: Batch, scan: Scan) -> tuple[float, float]:
        lower, upper = super().bounds(batch, scan)
        name = scan.copying.namespace
        return self.cut_again(name, scan.copying.below, lower), (
            self.cut_again(name, scan.upper, upper)
        )

    def cut_again(self, name: Namespace, bound: bytes, planned: float) -> float:
        number = self.numbers.get((name, bound))
        found = self.deployment.catalogs[self.deployment.committed].get(name)
        if number is None or found is None:
            return planned
        keys = sorted(found.documents)
        return keys[number] if number < len(keys) else rank(MAX_KEY)


class SeesNoMigrations(Connector):
    """A stream is not asked for the inserts that look like a migration's."""

    def events(self, batch: Batch, member: int) -> Iterator[Event]:
        return (e for e in super().events(batch, member) if not isinstance(e, Migrated))


class IsNotCutByDdl(Connector):
    """A batch goes on to the live edge whatever happens to its collections."""

    def cuts(self, event: Event) -> bool:
        return False


class StandsStillBeforeDdl(Connector):
    """What was replaced is copied as of then, though it is another one that was listed later."""

    def is_replaced(self, start: Offset, edge: int) -> bool:
        return False


class BelievesAnyListing(Connector):
    """What was listed is not compared with the live edge."""

    def believes(self, listed: Listed, start: Offset, edge: int) -> bool:
        return True


class BelievesADeposedPrimary(Connector):
    """Only times are compared, not terms: a listing that was rolled back looks committed once the
    new primary's time has passed it."""

    def believes(self, listed: Listed, start: Offset, edge: int) -> bool:
        return number_of(start.time) <= listed.time <= edge


class LooksForNoStrangers(Connector):
    """A sweep passes collections that were born after the listing."""

    def is_stranger(self, event: Event, start: Offset, sweep: Sweep) -> bool:
        return False


class NeverHandsOver(Connector):
    """A collection that is done is one with MaxKey for its frontier."""

    def passes_done(self, event: Event, start: Offset) -> bool:
        return super().passes_done(event, start) and self.is_below(event, MAX_KEY)


class TakesTheFrontierTwice(Connector):
    """Off by one: the frontier key's events belong to both sides."""

    def is_below(self, event: Event, frontier: bytes) -> bool:
        assert event.key is not None
        return event.key <= rank(frontier)


class StampsBeforeTheEvents(Connector):
    """Documents sort before the events of the time that they were read at."""

    def position(self, batch: Batch) -> str:
        return resume_token.high_water_mark(batch.end.time)


class BelievesAnUncommittedDrop(Connector):
    """A collection that a member says is gone is taken for gone, though that may be taken back."""

    def present(self, batch: Batch, member: int) -> Catalog:
        known = max(self.deployment.applied[member], number_of(batch.end.time))
        return self.deployment.catalogs[known]


class RewindsPastDdl(Connector):
    """What was written to a collection while it was away, under another name, is taken for content
    of the batch's time: only the events of its own name are undone."""

    def documents(self, batch: Batch, copying: Copying, member: int) -> Mapping[int, int]:
        at, name = number_of(batch.end.time), copying.namespace
        documents = dict(self.present(batch, member)[name].documents)
        for event in reversed(list(self.deployment.between(at, self.deployment.committed))):
            if event.namespace == name and event.key is not None:
                documents.pop(event.key, None)
                if event.before is not None:
                    documents[event.key] = event.before
        return documents


MUTANTS = [
    ReadsAsOfTheBeginning,
    ReadsFromALaggard,
    StreamsFromALaggard,
    CutsATransaction,
    IsSilentWhileCopying,
    KeepsChunkNumbers,
    SeesNoMigrations,
    IsNotCutByDdl,
    StandsStillBeforeDdl,
    BelievesAnyListing,
    BelievesADeposedPrimary,
    LooksForNoStrangers,
    NeverHandsOver,
    TakesTheFrontierTwice,
    StampsBeforeTheEvents,
    BelievesAnUncommittedDrop,
    RewindsPastDdl,
]
