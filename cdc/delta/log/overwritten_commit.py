"""A commit that another process has overwritten, which can happen on a local disk only.

Two processes must not make the same version of a table. HDFS and object stores refuse the second
one. On a local disk Delta looks whether the file of the version exists, and then renames its own
file to that name. If two processes do so within the same millisecond, both succeed, and the rows of
the first one are gone. So the file is read after a commit.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from cdc.delta.log.conflict import Outdated


def require_found(spark: SparkSession, transaction: Any, version: int) -> None:
    """Raise Outdated if another process has overwritten the version that a transaction made.

    Delta then forgets what it knows of the table. It has taken its own commit for the version, and
    would take the repeated one for done.
    """
    log = transaction.deltaLog()
    folder = log.logPath().toUri()
    if folder.getScheme() != "file":
        return
    own, file = transaction.txnId(), Path(folder.getPath()) / f"{version:020}.json"
    if _made_by(file) == own:
        return
    # It is made by Delta after the commit, and says which transactions the version contains.
    checksum = file.with_suffix(".crc")
    with suppress(FileNotFoundError):
        if json.loads(checksum.read_bytes())["txnId"] == own:
            checksum.unlink()
    jvm: Any = spark._jvm
    delta_log = jvm.org.apache.spark.sql.delta.DeltaLog
    delta_log.invalidateCache(spark._jsparkSession, log.dataPath())
    raise Outdated(f"Another process has overwritten version {version} of {log.dataPath()}.")


def _made_by(file: Path) -> str | None:
    """The id of the transaction that made a version, which is in one of the first lines."""
    with file.open("rb") as lines:
        for line in lines:
            if b'"commitInfo"' in line and (about := json.loads(line).get("commitInfo")):
                return str(about["txnId"])
    return None
