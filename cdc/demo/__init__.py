"""A MongoDB of its own under load, for the demo, the notebooks and the tests."""

from cdc.demo.load import Writers, drop_orders, load_orders, make_order
from cdc.demo.replica_set import ReplicaSet

__all__ = ["ReplicaSet", "Writers", "drop_orders", "load_orders", "make_order"]
