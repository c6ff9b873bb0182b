"""`make bench-start`: the CPU seconds from `replicate` to its first row, by phase and process.

A collection of 50 documents is replicated into a new lakehouse by a program of its own. The seconds
are those that the kernel counts for its processes, so they hardly depend on what else runs.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
import psutil
from rich.console import Console
from rich.table import Table

from cdc.demo import ReplicaSet
from tests.bench.processes import THREADS, thread_name

_POLL_SECONDS = 0.02
DRIVER, WORKERS, LAUNCH = "Python driver", "Python workers", "Spark's launcher"
REST = "rest of the JVM"
COMPILERS, COLLECTOR, TASKS = dict.fromkeys(THREADS.values())
KINDS = (DRIVER, WORKERS, LAUNCH, REST, COMPILERS, COLLECTOR, TASKS)
CHECKS, JVM, QUERY, BATCH, END = (
    "imports and checks",
    "start of the JVM",
    "start of the query",
    "first batch, to its first row",
    "mirror, and the end",
)
# What begins each phase, in what the program prints or in the folder of its tables.
_PRINTED = {"starting Spark": JVM, "Spark started": QUERY}


class Phase(NamedTuple):
    """Wall seconds of a phase, and CPU seconds by the kind of process or thread."""

    name: str
    seconds: float
    cpu: Counter[str]


def measure(program: list[str], folder: Path) -> list[Phase]:
    """Run the program, which replicates into the folder, and return its phases in order."""
    process = psutil.Popen(program, stderr=subprocess.PIPE, text=True)
    lines = list[str]()
    reader = threading.Thread(target=lambda: lines.extend(process.stderr), daemon=True)
    reader.start()
    marks, spent = {CHECKS: time.monotonic()}, {CHECKS: Counter[str]()}
    newest = Counter[str]()
    while process.poll() is None:
        for kind, seconds in _cpu_seconds(process).items():
            newest[kind] = max(newest[kind], seconds)  # a process that ended counts no more
        for phase in _reached(lines, folder):
            if phase not in marks:
                marks[phase], spent[phase] = time.monotonic(), Counter(newest)
        time.sleep(_POLL_SECONDS)
    reader.join()
    if process.returncode != 0:
        raise SystemExit("".join(lines))
    names = list(marks)
    ends = [*(marks[name] for name in names[1:]), time.monotonic()]
    totals = [*(spent[name] for name in names[1:]), newest]
    return [
        Phase(name, end - marks[name], total - spent[name])
        for name, end, total in zip(names, ends, totals, strict=True)
    ]


def _reached(lines: list[str], folder: Path) -> Iterator[str]:
    """The phases that have begun, the first one left out."""
    printed = "".join(lines)
    yield from (phase for text, phase in _PRINTED.items() if text in printed)
    if (folder / "_checkpoint/offsets/0").exists():
        yield BATCH
    if (folder / f"shop/orders/changelog/_delta_log/{0:020}.json").exists():
        yield END


def _cpu_seconds(process: psutil.Process) -> Counter[str]:
    """Of the process and all below it, by kind, since they were started."""
    used = Counter[str]()
    try:
        for each in [process, *process.children(recursive=True)]:
            used.update(_of(each, each.pid == process.pid))
    except psutil.NoSuchProcess:
        pass
    return used


def _of(process: psutil.Process, is_driver: bool) -> Counter[str]:
    try:
        times, name = process.cpu_times(), process.name()
    except psutil.NoSuchProcess:
        return Counter()
    own, ended = times.user + times.system, times.children_user + times.children_system
    if is_driver:
        return Counter({DRIVER: own, LAUNCH: ended})
    if name.startswith("python"):
        return Counter({WORKERS: own + ended})
    if name != "java" or _is_launcher(process):
        return Counter({LAUNCH: own + ended})
    threads = _by_thread(process)
    return threads + Counter({LAUNCH: ended, REST: own - threads.total()})


def _is_launcher(process: psutil.Process) -> bool:
    try:
        return "org.apache.spark.deploy.SparkSubmit" not in process.cmdline()
    except psutil.NoSuchProcess:
        return True


def _by_thread(process: psutil.Process) -> Counter[str]:
    used = Counter[str]()
    try:
        for thread in process.threads():
            name = thread_name(process.pid, thread.id)
            kind = next((kind for start, kind in THREADS.items() if name.startswith(start)), None)
            if kind is not None:
                used[kind] += thread.user_time + thread.system_time
    except psutil.NoSuchProcess:
        pass
    return used


def show(console: Console, phases: list[Phase]) -> None:
    """Print a row for each phase, and the sums up to the first row and to the end."""
    table = Table("phase", "wall s", "CPU s", *KINDS)
    row = next(number for number, phase in enumerate(phases) if phase.name == END)
    _add(table, phases[:row])
    _add_sum(table, "to the first row", phases[:row])
    _add(table, phases[row:])
    _add_sum(table, "to the end", phases)
    console.print(table)


def _add(table: Table, phases: list[Phase]) -> None:
    for phase in phases:
        table.add_row(*_cells(phase), end_section=phase is phases[-1])


def _add_sum(table: Table, name: str, phases: list[Phase]) -> None:
    cpu = sum((phase.cpu for phase in phases), Counter[str]())
    whole = Phase(name, sum(phase.seconds for phase in phases), cpu)
    table.add_row(*_cells(whole), end_section=True, style="bold")


def _cells(phase: Phase) -> list[str]:
    figures = [phase.seconds, phase.cpu.total(), *(phase.cpu[kind] for kind in KINDS)]
    return [phase.name, *(f"{figure:.1f}" for figure in figures)]


def _median(runs: list[list[Phase]]) -> list[Phase]:
    """The run of which the CPU seconds are the median."""
    return sorted(runs, key=lambda run: sum(phase.cpu.total() for phase in run))[len(runs) // 2]


@click.command()
@click.option("--runs", default=3, show_default=True, help="The one of median CPU is shown.")
def main(runs: int) -> None:
    """Print where the CPU seconds from `replicate` to its first row go."""
    documents: list[dict[str, Any]] = [{"_id": n, "total": n / 2, "tags": ["a"]} for n in range(50)]
    with ReplicaSet() as server, tempfile.TemporaryDirectory() as base:
        with server.client() as client:
            images = {"enabled": True}
            client.shop.create_collection("orders", changeStreamPreAndPostImages=images)
            client.shop.orders.insert_many(documents)
        found = list[list[Phase]]()
        for number in range(runs):
            folder = Path(base, str(number))
            given = [f"uri={server.uri}", "collections=shop.orders", f"sink.path={folder}"]
            options = [part for each in given for part in ("-o", each)]
            program = [sys.executable, "-m", "cdc.cli.replicate", "--available-now", *options]
            found.append(measure(program, folder))
    show(Console(width=160), _median(found))


if __name__ == "__main__":
    main()
