"""DAGs of backfills: the changes of each hour, and anything on demand."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from airflow.sdk import DAG, CronDataIntervalTimetable, Param

from jobs.airflow.operator import FLAGS, BackfillOperator

_TEXTS = {
    "min": "Documents from this _id on, in Extended JSON.",
    "max": "Documents below this _id, in Extended JSON.",
    "filter": "Documents that pass this; the syntax is a match's.",
    "at": "The changelog's: the cluster time t:i to read at.",
    "from": "Changes from this time on, into the changelog.",
    "to": "Changes up to, but without, this time.",
}
_WHAT_FLAGS_DO = {
    "repair": "Take out of the mirror what is not in the source.",
    "dry-run": "Tell what would be done, and write nothing.",
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
    """Each interval's changes of these collections, from the oplog into their changelogs.

    Every interval from `start_date` on is read, also those that passed while Airflow stood. A run
    reads from its data interval's start up to its end, and writes what a changelog does not have:
    runs may be repeated, overlap with a job, and be made for the past with `airflow backfill
    create`, as far as the oplog reaches back. `operator`: see `BackfillOperator`.
    """
    dag = DAG(
        dag_id,
        description="The changes of each interval, from MongoDB's oplog into changelogs",
        schedule=CronDataIntervalTimetable(schedule, timezone="UTC"),
        start_date=start_date,
        # An interval that was missed is made up for: a changelog without it would have a hole.
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
    """A backfill that is triggered by hand, with its options as params; see `mongodb-cdc backfill`.

    `operator`: see `BackfillOperator`.
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
        description="Both if left out.",
    )
    optional = ["null", "string"]
    texts = {name: Param(None, type=optional, description=does) for name, does in _TEXTS.items()}
    flags = {name: Param(False, type="boolean", description=_WHAT_FLAGS_DO[name]) for name in FLAGS}
    return {"collection": collection, "into": tables, **texts, **flags}


def _task_id(collection: str) -> str:
    """The collection's name, where Airflow takes it; else one that is like it and its own."""
    plain = re.sub(r"[^A-Za-z0-9_.-]", "_", collection)[:200]
    return plain if plain == collection else f"{plain}-{zlib.crc32(collection.encode()):08x}"
