"""A MongoDB of its own under load, for the demo, the notebooks and the tests."""

from cdc.demo.load import Writers, drop_orders, load_orders, make_order
from cdc.demo.processes import Replicate
from cdc.demo.replica_set import ReplicaSet

__all__ = ["ReplicaSet", "Replicate", "Writers", "drop_orders", "load_orders", "make_order"]
