"""Uploads that were begun and never completed: a store charges for their parts, and lists no file.

VACUUM lists files, and so never finds them. A task that is killed leaves its upload unfinished.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from cdc.delta.log import Target, hadoop

_log = logging.getLogger(__name__)
# A method of Hadoop's S3A. No other file system of Hadoop lists uploads.
_LIST = "listUploads"


@dataclass(frozen=True, slots=True)
class Upload:
    """The file that an upload was to become, and the time when it began (ISO 8601, UTC)."""

    url: str
    begun: str


def abort_uploads(
    spark: SparkSession, target: Target, hours: float, dry_run: bool
) -> tuple[Upload, ...] | None:
    """Abort the uploads below a table's folder that began more than `hours` ago; return them.

    The caller chooses `hours` longer than any task may write one file: younger uploads may be those
    of running tasks, and stay. With `dry_run` all stay. Local file systems have none.

    Returns None, and logs the reason once, if the file system cannot list uploads or refuses.
    """
    folder, system = hadoop(spark, target.folder(spark))
    scheme = str(system.getScheme())
    if scheme == "file":
        return ()
    store = str(system.getUri())
    if _LIST not in dir(system):
        _report(store, f"Hadoop's file system of {scheme}:// does not list them")
        return None
    oldest = datetime.now(UTC) - timedelta(hours=hours)
    attempted, found = "s3:ListBucketMultipartUploads", []
    try:
        uploads = system.listUploads(f"{system.pathToKey(folder)}/")
        while uploads.hasNext():
            upload = uploads.next()
            begun = datetime.fromtimestamp(upload.initiated().toEpochMilli() / 1000, UTC)
            if begun < oldest:
                found.append((begun, upload.key(), upload.uploadId()))
        attempted = "s3:AbortMultipartUpload"
        for _, key, upload_id in [] if dry_run else found:
            system.abortMultipartUpload(key, upload_id)
    except Py4JJavaError as error:
        # Its text may quote a key or a signature.
        kind = error.java_exception.getClass().getSimpleName()
        _report(store, f"it refuses {attempted} ({kind})")
        return None
    return tuple(
        Upload(str(system.keyToQualifiedPath(key)), begun.isoformat(timespec="seconds"))
        for begun, key, _ in found
    )


@cache
def _report(store: str, reason: str) -> None:
    """Log a reason once, however many tables the store has."""
    _log.warning("unfinished uploads in %s are left to the store: %s", store, reason)
