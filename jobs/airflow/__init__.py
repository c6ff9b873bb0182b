"""Backfills as DAGs of Airflow 3: what a worker of Airflow imports.

Of this project and of its dependencies nothing else has to be there, but for the files that
spark-submit is given.
"""

from jobs.airflow.dags import backfill_dag, window_dag
from jobs.airflow.operator import BackfillOperator

__all__ = ["BackfillOperator", "backfill_dag", "window_dag"]
