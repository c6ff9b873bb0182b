"""DAG factories for backfills: of each interval's changes, and on demand."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from airflow.sdk import DAG, CronDataIntervalTimetable, Param

from cdc.airflow.operators import BackfillOperator

_TEXTS = {
    "min": "Documents from this _id on, in Extended JSON.",
    "max": "Documents below this _id, in Extended JSON.",
    "filter": "Documents that match this $match filter.",
    "at": "Changelog only: the cluster time t:i to read as of.",
    "from": "Changes from this time on, into the changelog.",
    "to": "Changes before this time; needs from.",
}
_FLAG_TEXTS = {
    "repair": "Delete from the mirror the documents that the source lacks.",
    "dry-run": "Show what would be done; write nothing.",
}
_TRIES = {
    "retries": 3,
    "retry_delay": timedelta(minutes=1),
    "retry_exponential_backoff": True,
    "max_retry_delay": timedelta(minutes=15),
}
_TIME = "%Y-%m-%dT%H:%M:%SZ"


def window_dag(
    dag_id: str,
    *,
    config: str,
    collections: Sequence[str],
    start_date: datetime,
    schedule: str = "@hourly",
    **operator: Any,
) -> DAG:
    """A DAG that reads each interval's changes from the oplog into the changelogs.

    A run reads the changes from the start of its data interval to before its end, and adds the rows
    that the changelog lacks. It leaves changes after the last batch of `replicate` to `replicate`.
    Runs may be repeated and may overlap with a job. `airflow backfill create` makes runs for the
    past, as far as the oplog reaches back.

    Args:
        config: The pipeline's file, as the worker sees it.
        collections: Full names `db.coll`.
        start_date: The first interval starts here. Intervals that passed while Airflow was stopped
            are read too.
        operator: Further arguments of `BackfillOperator`.
    """
    dag = DAG(
        dag_id,
        description="The changes of each interval, from MongoDB's oplog into changelogs",
        schedule=CronDataIntervalTimetable(schedule, timezone="UTC"),
        start_date=start_date,
        # Read missed intervals too: a changelog without them would have a gap.
        catchup=True,
        max_active_runs=1,
        default_args=_TRIES,
        tags=["mongodb-cdc"],
    )
    window = {
        "from": f"{{{{ data_interval_start.strftime('{_TIME}') }}}}",
        "to": f"{{{{ data_interval_end.strftime('{_TIME}') }}}}",
    }
    for collection in collections:
        BackfillOperator(
            task_id=_task_id(collection),
            config=config,
            arguments={"collection": collection, **window},
            dag=dag,
            **operator,
        )
    return dag


def backfill_dag(dag_id: str, *, config: str, **operator: Any) -> DAG:
    """A DAG that runs a backfill on demand, with the options of `mongodb-cdc backfill` as params.

    Args:
        config: The pipeline's file, as the worker sees it.
        operator: Further arguments of `BackfillOperator`.
    """
    dag = DAG(
        dag_id,
        description="Read documents or changes of MongoDB again, into Delta tables",
        schedule=None,
        max_active_runs=1,
        default_args=_TRIES,
        params=_params(),
        tags=["mongodb-cdc"],
    )
    shown = {name: f"{{{{ params[{name!r}] or '' }}}}" for name in _params()}
    BackfillOperator(task_id="backfill", config=config, arguments=shown, dag=dag, **operator)
    return dag


def _params() -> dict[str, Param]:
    collection = Param(type="string", pattern=r"^[^.]+\.", description="db.coll")
    tables = Param(
        None,
        type=["null", "string"],
        enum=[None, "mirror", "changelog"],
        description="Default: mirror.",
    )
    optional = ["null", "string"]
    texts = {name: Param(None, type=optional, description=text) for name, text in _TEXTS.items()}
    flags = {
        name: Param(False, type="boolean", description=text) for name, text in _FLAG_TEXTS.items()
    }
    return {"collection": collection, "into": tables, **texts, **flags}


def _task_id(collection: str) -> str:
    """The collection's name if Airflow accepts it; else a similar name with a checksum."""
    plain = re.sub(r"[^A-Za-z0-9_.-]", "_", collection)[:200]
    return plain if plain == collection else f"{plain}-{zlib.crc32(collection.encode()):08x}"
