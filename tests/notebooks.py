"""The notebooks, as they are to be committed, and as they run.

    python -m tests.notebooks

takes out of each what opening and running it has put in.
"""

from __future__ import annotations

import ast
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import nbformat
import psutil
from nbclient import NotebookClient
from nbformat import NotebookNode

from tests.jvm import INTERPRETED, with_spark_settings

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "notebooks"
NAMES = sorted(path.stem for path in FOLDER.glob("*.ipynb"))
# Without the name that somebody has given to an environment, and the version of its Python.
_METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
_CELL_SECONDS, _END_SECONDS = 600, 60.0
_KERNEL = "ipykernel_launcher"


def path_of(name: str) -> Path:
    return FOLDER / f"{name}.ipynb"


def stripped(text: str) -> str:
    """A notebook's file, with its text and code alone."""
    notebook = nbformat.reads(text, as_version=4)
    notebook.metadata = nbformat.from_dict(_METADATA)
    for cell in notebook.cells:
        cell.metadata = NotebookNode()
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    return nbformat.writes(notebook) + "\n"


@dataclass
class Run:
    """A notebook that is run in a folder, which also has all its temporary files. `left` is what
    was running besides the kernel when its last cell had been run."""

    notebook: NotebookNode
    folder: Path
    left: list[str] = field(default_factory=list)

    @property
    def outputs(self) -> Iterator[NotebookNode]:
        for cell in self.notebook.cells:
            yield from cell.get("outputs", ())

    @property
    def found(self) -> dict[str, Any]:
        """What the last cell that shows anything says it has found."""
        shown = [each.data["text/plain"] for each in self.outputs if "data" in each]
        found: dict[str, Any] = ast.literal_eval(shown[-1])
        return found

    @property
    def plots(self) -> list[str]:
        """PNG in base64."""
        shown = [each.data for each in self.outputs if "data" in each]
        return [data["image/png"] for data in shown if "image/png" in data]


def run(name: str, folder: Path, environment: Mapping[str, str] = MappingProxyType({})) -> Run:
    """Runs a notebook as Jupyter does, in a kernel that has ended after it; with a server of its
    own unless the environment names one."""
    begun = prepared(name, folder)
    execute(begun, environment)
    return begun


def prepared(name: str, folder: Path) -> Run:
    """One that is not yet run: what a failure has left of its outputs is to be looked at."""
    for part in ("temporary", "work"):
        (folder / part).mkdir(parents=True)
    return Run(nbformat.read(path_of(name), as_version=4), folder)


def execute(begun: Run, environment: Mapping[str, str] = MappingProxyType({})) -> None:
    """Raises CellExecutionError."""
    last = len(begun.notebook.cells) - 1

    def look(cell_index: int, **_: object) -> None:
        if cell_index == last:
            begun.left = left_in(begun.folder, _KERNEL)

    NotebookClient(
        begun.notebook,
        timeout=_CELL_SECONDS,
        # By default a kernel has a minute to begin, and a cell's outputs four seconds to arrive.
        startup_timeout=_CELL_SECONDS,
        iopub_timeout=_CELL_SECONDS,
        kernel_name="python3",
        resources={"metadata": {"path": str(begun.folder / "work")}},
        on_cell_executed=look,
    ).execute(env=_environment(begun.folder) | environment)


def _environment(folder: Path) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name != "MONGODB_URI"}
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    temporary = str(folder / "temporary")
    settings = {"java.io.tmpdir": temporary, **INTERPRETED}
    return {
        **inherited,
        **with_spark_settings(settings),
        "PYTHONPATH": os.pathsep.join(paths),
        "IPYTHONDIR": str(folder / "ipython"),
        "TMPDIR": temporary,
    }


def left_in(folder: Path, besides: str = "") -> list[str]:
    """The programs that run with that folder for temporary files, once none does or a minute is
    over: those of a JVM that has just ended see it a moment later."""
    deadline = time.monotonic() + _END_SECONDS
    while (left := list(_running(folder, besides))) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def _running(folder: Path, besides: str) -> Iterator[str]:
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            command = process.cmdline()
            is_here = process.environ().get("TMPDIR") == str(folder / "temporary")
            if is_here and not (besides and besides in command):
                yield " ".join(command)


def main() -> None:
    for path in map(path_of, NAMES):
        path.write_text(stripped(path.read_text()))


if __name__ == "__main__":
    main()
