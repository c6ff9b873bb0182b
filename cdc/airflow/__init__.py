"""Operators, assets and DAGs for Airflow 3.

An Airflow worker imports only this package of the project and `cdc.errors`, and needs no other
dependency of it. The files that spark-submit needs must exist on the worker.
"""

from cdc.airflow.assets import changelog, mirror
from cdc.airflow.dags import backfill_dag, window_dag
from cdc.airflow.operators import (
    BackfillOperator,
    MaintainOperator,
    ReplicateOperator,
    VerifyOperator,
)
from cdc.airflow.waiting import WaitOperator

__all__ = [
    "BackfillOperator",
    "MaintainOperator",
    "ReplicateOperator",
    "VerifyOperator",
    "WaitOperator",
    "backfill_dag",
    "changelog",
    "mirror",
    "window_dag",
]
