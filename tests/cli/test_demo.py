"""The demo as a user starts it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.jvm import SHORT_LIVED

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_demo_copies_follows_and_verifies_and_leaves_nothing(tmp_path: Path) -> None:
    report = tmp_path / "demo.json"
    done = subprocess.run(
        [sys.executable, "-m", "cdc.cli.demo", "--documents", "3000", "--json", str(report)],
        cwd=ROOT,
        env={**os.environ, **SHORT_LIVED, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    measured = json.loads(report.read_text())
    assert measured["equal"] is True
    assert measured["documents"] >= 3000 * 0.8
    assert measured["changes"] > 0
    assert "changelog" in done.stdout
    left = [path.name for path in tmp_path.iterdir() if path.name != "demo.json"]
    assert not [name for name in left if name.startswith(("mongod", "mongodb-cdc-demo"))], left
