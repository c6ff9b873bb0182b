"""The time up to which a bounded run through routers reads.

The router is a stand-in (`tests.mongo.stand_in`): none of this has met a real mongos.
"""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock, patch

import pymongo
import pytest
from bson.timestamp import Timestamp
from pyspark.sql.types import StructType

from cdc import options as declared
from cdc import source as sources
from cdc.errors import TransientError
from cdc.model import NEVER
from cdc.mongo.plan import wait_until
from cdc.mongo.topology import discover, router_time
from tests.mongo.capture import TIMEOUT_MS
from tests.mongo.cluster import Cluster
from tests.mongo.routed import newest_time
from tests.mongo.stand_in import StandIn
from tests.mongo.stand_in.change_stream import MergedStream
from tests.mongo.topology.test_sharded_cluster import Orders


def test_the_present_includes_the_last_write_of_an_idle_cluster(
    cluster: Cluster, db: str, router: StandIn
) -> None:
    """Guards: the live edge is one increment before the newest time, which is that of a write."""
    orders = Orders(cluster, db, 10)
    source = discover(router.uri, TIMEOUT_MS)
    for region in (1, 6, 1):
        orders.update(region)
        known = newest_time(cluster)
        assert source.present() >= known


def test_a_bounded_run_does_not_end_before_its_changes_if_a_shard_does_not_answer(
    cluster: Cluster, db: str, router: StandIn
) -> None:
    """Guards: the live edge is unknown then. A run up to it read nothing, and succeeded."""
    orders = Orders(cluster, db, 10)
    given = {"uri": router.uri, "collections": orders.full, "retry.seconds": "1"}
    reader = sources.ChangeReader(declared.parse(given), StructType())
    orders.update(1)
    known = newest_time(cluster)
    router.faults.cold.add("s2")
    with (
        patch.object(router_time, "_PRESENT_SECONDS", 0.5),
        pytest.raises(TransientError, match="reached the present time"),
    ):
        reader.prepareForTriggerAvailableNow()
    router.faults.cold.clear()
    reader.prepareForTriggerAvailableNow()
    assert reader._until is not None
    assert reader._until >= known
    reader.stop()


def test_an_unknown_live_edge_is_not_taken_for_one_that_lags() -> None:
    time = Timestamp(1_000_000, 1)
    source = Mock()
    source.live_edge.side_effect = [NEVER, time]
    assert wait_until(source, time)


def test_a_limit_of_time_does_not_become_the_wait_for_an_idle_stream(
    cluster: Cluster, db: str, router: StandIn
) -> None:
    """Guards: the driver replaces `maxTimeMS` by what is left; the reply then came too late."""
    source, waits = discover(router.uri, TIMEOUT_MS), list[Any]()
    next_batch = MergedStream.next_batch

    async def recording(self: MergedStream, request: Any, size: Any, wait_ms: Any) -> Any:
        waits.append(wait_ms)
        return await next_batch(self, request, size, wait_ms)

    with patch.object(MergedStream, "next_batch", recording), pymongo.timeout(60):
        source.live_edge(NEVER)
    assert 0 < max(waits) <= 50
