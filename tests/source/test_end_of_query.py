"""The end of the planner's process: Spark closes its connection when the query ends."""

from __future__ import annotations

import subprocess
import sys

import pytest

# As Spark's python_streaming_source_runner ends: `stop` in a finally block, then the stack trace of
# the error, on stderr.
_LOOP = """
import sys
from cdc import options, source
from pyspark.sql.types import StructType

uri = "mongodb://127.0.0.1:1/?replicaSet=rs0"
parsed = options.parse({"uri": uri, "collections": "shop.orders"})
reader = source.ChangeReader(parsed, StructType())
try:
    raise getattr(__builtins__, sys.argv[1])("of the loop")
finally:
    reader.stop()
"""


@pytest.mark.parametrize(("error", "is_shown"), [("EOFError", False), ("ValueError", True)])
def test_only_the_end_of_the_connection_prints_no_stack_trace(error: str, is_shown: bool) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _LOOP, error], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    assert ("of the loop" in ended.stderr) == is_shown, ended.stderr
    assert is_shown or ended.stderr == ""
