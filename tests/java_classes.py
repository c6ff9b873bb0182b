"""`make test-slow` runs this once: it stores the classes that Spark loads, parsed and
verified, for the JVMs of the tests.

    python -m tests.java_classes

Nearly half of the time of a short program's JVM goes into classes that it loads from jars. With the
archive (Java's class data sharing) it maps them instead. Java compares the archive with its own
version and with the jars, and reads the jars where they differ.
"""

from __future__ import annotations

import tempfile
from io import StringIO
from pathlib import Path

from rich.console import Console

from cdc.cli import replicate
from cdc.demo import ReplicaSet, load_orders
from cdc.model import Namespace
from cdc.pipeline import config as configuration
from cdc.pipeline import session
from cdc.pipeline.spark_session import LOCAL, end
from tests.jvm import ARCHIVE, ARCHIVING, INTERPRETED

ORDERS = Namespace("shop", "orders")


def main() -> None:
    """Stores what a copy and changes load, with generated code and without."""
    ARCHIVE.parent.mkdir(exist_ok=True)
    options = f"{LOCAL['spark.driver.extraJavaOptions']} {ARCHIVING}"
    spark = session("classes", "local[2]", {"spark.driver.extraJavaOptions": options})
    with tempfile.TemporaryDirectory() as folder, ReplicaSet() as server:
        load_orders(server.uri, ORDERS, 100, must_be_new=True)
        given = (f"uri={server.uri}", f"collections={ORDERS}", f"sink.path={folder}/lakehouse")
        config = configuration.load(None, given)
        replicate.run(config, True, Console(file=StringIO()))
        for name, value in INTERPRETED.items():
            spark.conf.set(name, value)
        with server.client() as client:
            client[ORDERS.db][ORDERS.coll].update_many({"_id": {"$lt": 50}}, {"$set": {"n": 1}})
        replicate.run(config, True, Console(file=StringIO()))
        end(spark)
    Path(f"{ARCHIVE}.part").rename(ARCHIVE)


if __name__ == "__main__":
    main()
