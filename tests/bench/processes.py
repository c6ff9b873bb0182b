"""The processes that a work runs in, and the CPU time and the memory of each kind of them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

# By the beginning of a thread's name.
THREADS = {
    "Executor task": "Spark tasks",
    "C1 Compiler": "Java's compilers",
    "C2 Compiler": "Java's compilers",
    "GC Thread": "garbage collector",
    "G1 ": "garbage collector",
    "VM Thread": "garbage collector",
}
SERVER, WORKERS, DRIVER = "MongoDB", "Python workers", "rest of the driver"
_SECONDS = 0.05
KINDS = (SERVER, WORKERS, *dict.fromkeys(THREADS.values()), DRIVER)


def workers() -> Iterator[psutil.Process]:
    """Spark's Python processes on this machine, and the process from which they are forked."""
    return filter(_is_forked, psutil.Process().children(recursive=True))


def cpu_seconds() -> Counter[str]:
    """Of this process and all below it, by kind, since they were started."""
    used = Counter[str]()
    own = psutil.Process()
    known = {each.pid for each in workers()}
    for process in [own, *own.children(recursive=True)]:
        try:
            used.update(_of(process, process.pid in known))
        except psutil.NoSuchProcess:
            continue
    return used


@contextmanager
def most_held() -> Iterator[Counter[str]]:
    """The greatest RSS of a Python worker meanwhile, and of a JVM, in bytes."""
    most, stop = Counter[str](), threading.Event()

    def watch() -> None:
        while not stop.wait(_SECONDS):
            for kind, processes in ((WORKERS, workers()), (DRIVER, _jvms())):
                most[kind] = max([most[kind], *map(_rss, processes)])

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield most
    finally:
        stop.set()
        thread.join()


def _of(process: psutil.Process, is_worker: bool) -> Counter[str]:
    times = process.cpu_times()
    seconds = times.user + times.system
    if is_worker:
        return Counter({WORKERS: seconds})
    if process.name() == "mongod":
        return Counter({SERVER: seconds})
    used = _by_thread(process) if process.name() == "java" else Counter[str]()
    return used + Counter({DRIVER: seconds - used.total()})


def _by_thread(process: psutil.Process) -> Counter[str]:
    """Of the kinds of threads that are known."""
    used = Counter[str]()
    for thread in process.threads():
        name = thread_name(process.pid, thread.id)
        kind = next((kind for start, kind in THREADS.items() if name.startswith(start)), None)
        if kind is not None:
            used[kind] += thread.user_time + thread.system_time
    return used


def thread_name(process: int, thread: int) -> str:
    try:
        return Path(f"/proc/{process}/task/{thread}/comm").read_text()
    except (FileNotFoundError, ProcessLookupError):  # it has ended
        return ""


def _is_forked(process: psutil.Process) -> bool:
    try:
        return "cdc.fork_server" in process.cmdline()
    except psutil.NoSuchProcess:
        return False


def _jvms() -> Iterator[psutil.Process]:
    return filter(_is_java, psutil.Process().children(recursive=True))


def _is_java(process: psutil.Process) -> bool:
    try:
        return process.name() == "java"
    except psutil.NoSuchProcess:
        return False


def _rss(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0
