"""A real Airflow of a test's own, which finds the documented DAGs."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cdc.demo.mongod import find_free_ports
from tests.documents import ROOT, code
from tests.jvm import SHORT_LIVED

PROGRAM = ROOT / ".venv-airflow" / "bin" / "airflow"
_PATIENCE_SECONDS = 400


class Airflow:
    """Its database and its logs are in `home`; the DAGs read `config`, and `connection` is that of
    the source. Tries follow each other at once, and an hour is a minute."""

    def __init__(self, home: Path, config: Path, collection: str, connection: Mapping[str, Any]):
        self.home = home
        self._port = find_free_ports(1)[0]
        self.environment = {
            **os.environ,
            **SHORT_LIVED,
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__PARALLELISM": "2",
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{self._port}/execution/",
            "AIRFLOW__API_AUTH__JWT_SECRET": "of this test, whose servers are bound to loopback",
            "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "5",
            "AIRFLOW_CONN_SHOP_MONGO": json.dumps(connection),
            "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[2]"}),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        (home / "dags").mkdir(parents=True)
        (home / "dags" / "shop.py").write_text(_dags(config.parent, collection))
        self("db", "migrate")
        self("dags", "reserialize")

    def __call__(self, *arguments: str, code: int = 0) -> str:
        done = subprocess.run(
            [str(PROGRAM), *arguments],
            env=self.environment,
            cwd=self.home,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stdout[-5000:]
        return done.stdout

    def asked(self, query: str, *values: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.home / "airflow.db", timeout=30)) as database:
            return database.execute(query, values).fetchall()

    def results(self, dag: str) -> list[Any]:
        """What the tasks of its runs returned, in their order."""
        query = (
            "SELECT value FROM xcom WHERE dag_id = ? AND key = 'return_value' ORDER BY timestamp"
        )
        return [json.loads(value) for (value,) in self.asked(query, dag)]

    def backfilled(self, dag: str) -> list[str]:
        """The states of the runs that `airflow backfill create` has made."""
        query = "SELECT state FROM dag_run WHERE dag_id = ? AND run_type = 'backfill'"
        return [state for (state,) in self.asked(query, dag)]

    def tries(self, dag: str) -> list[tuple[str, int]]:
        """How each task ended, at which try."""
        query = "SELECT state, try_number FROM task_instance WHERE dag_id = ? ORDER BY start_date"
        return self.asked(query, dag)

    @contextmanager
    def running(self) -> Iterator[None]:
        """With what makes scheduled runs, in processes of their own."""
        servers = [
            ("api-server", "--host", "127.0.0.1", "--port", str(self._port), "--workers", "1"),
            ("dag-processor",),
            ("scheduler", "--skip-serve-logs"),
            ("triggerer", "--skip-serve-logs"),
        ]
        with ExitStack() as stack:
            for name, *arguments in servers:
                log = stack.enter_context((self.home / f"{name}.log").open("wb"))
                server = subprocess.Popen(
                    [str(PROGRAM), name, *arguments],
                    env=self.environment,
                    cwd=self.home,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
                stack.callback(server.wait, 60)
                stack.callback(server.terminate)
            yield

    def wait_for(self, what: Callable[[], bool]) -> None:
        ends = time.monotonic() + _PATIENCE_SECONDS
        while not what():
            assert time.monotonic() < ends, self._reported()
            time.sleep(0.5)

    def _reported(self) -> str:
        return "\n".join(path.read_text()[-3000:] for path in sorted(self.home.glob("*.log")))


def _dags(folder: Path, collection: str) -> str:
    """The documented file, but for where things are and for how long they take."""
    [text] = code("Airflow", "python")
    changes = {
        "/opt/shop": str(folder),
        "shop.orders": collection,
        "@hourly": "* * * * *",
        "datetime(2026, 11, 22)": f"datetime.fromisoformat('{datetime.now(UTC):%Y-%m-%dT%H:%M}')",
        "source = {": 'source = {"retry_delay": timedelta(seconds=1), ',
        "import datetime\n": "import datetime, timedelta\n",
        '"wait", ': '"wait", interval=timedelta(seconds=2), ',
    }
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    return text
