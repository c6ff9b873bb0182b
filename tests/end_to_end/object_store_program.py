"""Replicates into an object store with a JVM of its own, which has the jars of S3."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
from pyarrow import fs
from pymongo import MongoClient
from pyspark.sql import functions as F
from rich.console import Console

from cdc.checkpoint import Folder, HadoopFiles, hold, is_held
from cdc.cli.maintain import show
from cdc.delta.columns import BATCH
from cdc.errors import BadOption
from cdc.model import Namespace
from cdc.pipeline import Config, Replication, maintain, session, verify
from cdc.pipeline import config as configuration
from cdc.pipeline.replication import writes_by_tasks
from cdc.pipeline.spark import connect
from tests.object_store import YOUNG


def main(uri: str, checkpoint: str, endpoint: str) -> None:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    orders = MongoClient[dict[str, Any]](uri).stored.orders
    options = [
        *(
            f"source.uri={uri}",
            'source.collections=["stored.orders"]',
            f"storage.endpoint={endpoint}",
        ),
        *("sink.path=s3a://lake/of/it", f"sink.checkpoint={checkpoint}", "sink.mirror.interval=0"),
        *("storage.access.key=env:S3_ACCESS", "storage.secret.key=env:S3_SECRET"),
        "sink.write.by=tasks",
    ]
    config = configuration.load(None, options)
    spark = session("object store", "local[2]", config=config)
    run(spark, config)
    orders.update_many({"_id": {"$lt": 100}}, {"$set": {"changed": True}})
    orders.delete_many({"_id": {"$gte": 450}})
    run(spark, config)
    found: dict[str, Any] = {}
    name = Namespace("stored", "orders")
    found["equal"] = verify(spark, config, name, False).is_equal
    before = counts(spark, config, name), data_files(config)
    forget_after_sink(spark, config, name, Path(checkpoint))
    run(spark, config)
    found["before"], found["replayed"] = before, (counts(spark, config, name), data_files(config))
    found["equal again"] = verify(spark, config, name, False).is_equal

    stored = Folder(HadoopFiles(spark), config.base)
    with hold(stored):
        found["held"] = [is_held(stored)]
    found["held"].append(is_held(stored))

    begin_uploads(endpoint)
    for dry_run in (True, False):
        done = maintain(spark, config, dry_run=dry_run)
        show(Console(stderr=True, width=500), done)
        kept = {each.url: each.begun for table in done for each in table.uploads or ()}
        found["dry run" if dry_run else "maintained"] = kept, unfinished_uploads(endpoint)

    found["limited"] = {}
    # Else Hadoop goes on using the file system that it opened with the first keys.
    spark.sparkContext._jsc.hadoopConfiguration().set("fs.s3a.impl.disable.cache", "true")
    begin_uploads(endpoint)
    everything = dict(os.environ)
    for action, (access, secret) in json.loads(os.environ["S3_LIMITED"]).items():
        os.environ |= {"S3_ACCESS": access, "S3_SECRET": secret}
        connect(spark, config.storage, config.base)
        done = maintain(spark, config)
        os.environ |= everything
        found["limited"][action] = [each.uploads for each in done], unfinished_uploads(endpoint)

    os.environ["S3_SECRET"] = "wrong-and-secret"
    found["by tasks"] = writes_by_tasks(spark, replace(config, write_by="auto"))
    found["errors"] = []
    for attempt in (
        lambda: writes_by_tasks(spark, config),
        lambda: connect(spark, config.storage, "s3a://other/x"),
    ):
        try:
            attempt()
        except BadOption as error:
            found["errors"].append(str(error))
    Path(checkpoint, "found.json").write_text(json.dumps(found))


# Keys of unfinished uploads, by the way in which `maintain` is to treat them.
UPLOADS = {
    "aborted": ("of/it/stored/orders/changelog/cdc-old.parquet", "of/it/stored/orders/mirror/a/b"),
    "young": (f"of/it/stored/orders/changelog/cdc-{YOUNG}.parquet",),
    "of others": ("of/it/stored/orders/changelog-of-others/x", "of/it/x", "x"),
}


def store(endpoint: str) -> Any:
    keys = {
        "aws_access_key_id": os.environ["S3_ACCESS"],
        "aws_secret_access_key": os.environ["S3_SECRET"],
    }
    return boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", **keys)


def begin_uploads(endpoint: str) -> None:
    client = store(endpoint)
    for key in (key for keys in UPLOADS.values() for key in keys):
        upload = client.create_multipart_upload(Bucket="lake", Key=key)["UploadId"]
        client.upload_part(Bucket="lake", Key=key, UploadId=upload, PartNumber=1, Body=b"x")


def unfinished_uploads(endpoint: str) -> list[str]:
    found = store(endpoint).list_multipart_uploads(Bucket="lake").get("Uploads", [])
    return sorted(each["Key"] for each in found)


def forget_after_sink(spark: Any, config: Config, name: Namespace, checkpoint: Path) -> None:
    """Leave the checkpoint as a kill leaves it between the last batch with rows and its commit."""
    changelog = config.table("changelog", name)
    assert changelog
    [[last]] = changelog.target.read(spark).agg(F.max(BATCH)).collect()
    for folder, first in (("commits", last), ("offsets", last + 1)):
        for each in (checkpoint / folder).glob("[0-9]*"):
            if int(each.name) >= first:
                each.unlink()
                each.with_name(f".{each.name}.crc").unlink(missing_ok=True)


def run(spark: Any, config: Config) -> None:
    replication = Replication(spark, config, available_now=True)
    while replication.is_active():
        time.sleep(0.1)
    assert replication.stop()


def counts(spark: Any, config: Config, name: Namespace) -> dict[str, int]:
    tables = {kind: config.table(kind, name) for kind in ("changelog", "mirror")}
    return {kind: table.target.read(spark).count() for kind, table in tables.items() if table}


def data_files(config: Config) -> list[str]:
    system, path = config.storage.locate(config.base)
    found = system.get_file_info(fs.FileSelector(path, recursive=True))
    return sorted(each.path for each in found if each.base_name.startswith(("cdc-", "_mongodb")))


if __name__ == "__main__":
    main(*sys.argv[1:])
