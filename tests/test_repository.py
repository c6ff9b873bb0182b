"""The files that git tracks."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def git(*arguments: str, folder: Path = ROOT) -> str:
    command = ["git", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout


def test_no_tracked_file_is_a_symbolic_link() -> None:
    """The target of a link need not exist in another clone."""
    tracked = git("ls-files", "--stage").splitlines()
    assert tracked
    assert [line for line in tracked if line.startswith("120000")] == []


@pytest.mark.parametrize("name", [".venv", ".venv-airflow"])
def test_git_ignores_an_environment_that_is_a_symbolic_link(tmp_path: Path, name: str) -> None:
    git("init", "--quiet", folder=tmp_path)
    shutil.copy(ROOT / ".gitignore", tmp_path)
    (tmp_path / name).symlink_to(tmp_path)
    assert git("status", "--porcelain", folder=tmp_path).split() == ["??", ".gitignore"]
