"""Backfills as DAGs of Airflow 3.

An Airflow worker imports only this package of the project, and needs no other dependency of it. The
files that spark-submit needs must exist on the worker.
"""

from cdc.airflow.dags import backfill_dag, window_dag
from cdc.airflow.operator import BackfillOperator

__all__ = ["BackfillOperator", "backfill_dag", "window_dag"]
