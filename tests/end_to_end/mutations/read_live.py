"""Reads a live view as a user's program does: `read_live NAMESPACE OUT OPTION…`."""

from __future__ import annotations

import sys

from cdc.delta.reading import live
from cdc.model import Namespace
from cdc.pipeline import config, end, session


def main(namespace: str, out: str, *options: str) -> None:
    loaded = config.load(None, options)
    spark = session("live view")
    rows = live(spark, loaded.layout, Namespace.parse(namespace)).rows
    rows.select("key", "document").write.parquet(out)
    end(spark)


if __name__ == "__main__":
    main(*sys.argv[1:])
