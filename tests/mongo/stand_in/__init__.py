"""A stand-in for a mongos: a proxy in front of real servers that answers like a router.

In: a replica set, or the two shards and the config server of `tests.mongo.cluster`. Out: an address
to which a driver connects as to a mongos. No mongos can be had with the servers' wheels.

The data, the change streams, the metadata and the times are those of the real servers. The
stand-in's own are what a router adds: its identity, the identifiers of cursors, the cache of the
metadata, which shards are asked, and the merge of what they return. Each of these rules names the
file of the server's public source that it imitates. So a test shows what the connector asks a
router for, and what it does with the answers. It does not show what a real router would answer.

Not imitated are access control, transactions, views and time series, the targeting of reads by the
shard key, DDL on sharded collections, `$lookup`, `$out` and `$merge`, an end of what runs for a
client that has left, limits of time of the router's own, and routers behind a load balancer.
"""

from tests.mongo.stand_in.faults import Faults
from tests.mongo.stand_in.stand_in import StandIn

__all__ = ["Faults", "StandIn"]
