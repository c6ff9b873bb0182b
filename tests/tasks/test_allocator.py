"""Large buffers go back to the system in Spark's Python workers, once rows are large."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# `hblks` is the number of buffers that glibc has outside of its heap.
PROGRAM = """
import ctypes, sys
import numpy as np
import pyarrow as pa
from cdc.tasks import DataFiles, Part, Storage

class Usage(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in ("a", "b", "c", "hblks", *"defghi")]

usage = ctypes.CDLL(None).mallinfo2
usage.restype = Usage
large = np.empty(2**24, np.uint8)
del large  # glibc keeps buffers of this size from now on
files = DataFiles(2**40, Storage())
files.add(Part(sys.argv[1], pa.RecordBatch.from_pydict({"text": ["x" * int(sys.argv[2])]})))
before = usage().hblks
again = np.empty(2**23, np.uint8)
print(usage().hblks - before)
"""


@pytest.mark.parametrize(("bytes_per_row", "expected"), [(2**22, "1"), (2**20, "0")])
def test_a_large_buffer_is_in_the_heap_until_a_row_is_large(
    tmp_path: Path, bytes_per_row: int, expected: str
) -> None:
    """Guards: gaps in the heap of a worker that writes large rows; and CPU time that usual rows
    would lose."""
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path), str(bytes_per_row)],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "SPARK_REUSE_WORKER": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.strip() == expected
