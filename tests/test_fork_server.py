"""Python processes that are forked from one that has imported their modules already."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from cdc.fork_server import ForkServer

_IMPORTED = "wave"  # which no interpreter imports by itself
_SECONDS = 20

_TELLING = """
import json, os, sys
print(json.dumps({
    "name": __name__, "arguments": sys.argv[1:], "folder": os.getcwd(), "parent": os.getppid(),
    "variable": os.environ.get("OWN"), "early": os.environ.get("EARLY"),
    "imported": "wave" in sys.modules, "input": sys.stdin.read(),
}))
sys.exit(int(os.environ.get("CODE", "0")))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "telling.py").write_text(_TELLING)
    (tmp_path / "waiting.py").write_text("import time; print('waits', flush=True); time.sleep(99)")
    (tmp_path / "threaded.py").write_text(
        "import threading, time; threading.Thread(target=time.sleep, args=[9], daemon=True).start()"
    )
    return tmp_path


@pytest.fixture
def server() -> Iterator[ForkServer]:
    started = ForkServer([_IMPORTED], {"EARLY": "yes"})
    yield started
    started.end()


def run(
    server: ForkServer, folder: Path, *arguments: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [server.python, *arguments],
        input="given",
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )


def told(done: subprocess.CompletedProcess[str]) -> dict[str, object]:
    assert done.stderr == ""
    found: dict[str, object] = json.loads(done.stdout)
    return found


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + _SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def has_said(program: subprocess.Popen[bytes]) -> bytes:
    """The first line of its fork, once the program waits for the end of that."""
    assert program.stdout is not None
    line: bytes = program.stdout.readline()
    until(lambda: not Path(f"/proc/{program.pid}/fd/1").exists())
    return line


def test_a_module_runs_in_a_fork_as_if_the_interpreter_had_started_it(
    server: ForkServer, folder: Path
) -> None:
    done = run(server, folder, "-m", "telling", "one", "-x", OWN="a\udcff=\n'", CODE="7")
    assert done.returncode == 7
    found = told(done)
    assert found.pop("parent") == server._process.pid
    assert found == {
        "name": "__main__",
        "arguments": ["one", "-x"],
        "folder": str(folder),
        "variable": "a\udcff=\n'",
        "early": None,  # its environment is that of whoever starts it
        "imported": True,
        "input": "given",
    }


def test_a_module_is_found_in_the_pythonpath_of_its_environment(
    server: ForkServer, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "only_there.py").write_text("print('found')")
    assert run(server, folder, "-m", "only_there").returncode == 1
    done = run(server, folder, "-m", "only_there", PYTHONPATH=str(elsewhere))
    assert (done.stdout, done.returncode) == ("found\n", 0)


def test_what_is_no_module_is_run_by_the_interpreter(server: ForkServer, folder: Path) -> None:
    done = run(server, folder, "-c", "import sys; print(sys.argv, 'wave' in sys.modules)", "x")
    assert (done.stdout, done.returncode) == ("['-c', 'x'] False\n", 0)


def test_a_server_that_was_killed_is_replaced_by_the_interpreter(
    server: ForkServer, folder: Path
) -> None:
    run(server, folder, "-m", "telling")  # it serves
    server._process.kill()
    server._process.wait()
    found = told(run(server, folder, "-m", "telling", "one"))
    assert found["arguments"] == ["one"]
    assert found["imported"] is False


def test_a_server_does_not_fork_if_what_it_imports_has_started_threads(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(folder))
    started = ForkServer([_IMPORTED, "threaded"], {})
    program = Path(started.python).read_text()  # the server removes it when it ends
    started._process.wait(_SECONDS)
    again = folder / "python"
    again.write_text(program)
    again.chmod(0o700)
    started.python = str(again)
    assert told(run(started, folder, "-m", "telling"))["imported"] is False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_fork_ends_by_the_signal_to_its_program_and_the_program_with_the_fork(
    server: ForkServer, folder: Path, number: int
) -> None:
    with subprocess.Popen(
        [server.python, "-m", "waiting"], cwd=folder, stdout=subprocess.PIPE
    ) as program:
        assert has_said(program) == b"waits\n"
        [fork] = psutil.Process(server._process.pid).children()
        if number == signal.SIGTERM:
            program.terminate()
        else:
            fork.kill()
        assert program.wait(_SECONDS) == 128 + signal.SIGKILL
        assert program.stdout is not None
        assert program.stdout.read() == b""
        until(lambda: not fork.is_running())


def test_a_fork_that_java_destroys_ends_by_the_end_of_its_input_before_the_signal(
    server: ForkServer, folder: Path
) -> None:
    """Spark's daemon ends its workers then; the signal would end it in the middle of that."""
    (folder / "cleaning.py").write_text(
        "import sys, time; print('reads', flush=True); sys.stdin.read()\n"
        "time.sleep(0.2); print('cleaned', flush=True)"
    )
    with subprocess.Popen(
        [server.python, "-m", "cleaning"],
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        assert has_said(program) == b"reads\n"
        program.terminate()
        program.stdin.close()
        assert program.stdout.read() == b"cleaned\n"
        assert program.wait(_SECONDS) == 0


def test_a_server_ends_with_its_process_and_leaves_no_file(folder: Path) -> None:
    program = (
        "import sys, time; from cdc.fork_server import ForkServer\n"
        "server = ForkServer(['wave'], {}); print(server._process.pid, server.python, flush=True)\n"
        "time.sleep(99)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        number, python = owner.stdout.readline().decode().split()
        assert psutil.pid_exists(int(number))
        owner.kill()
    until(lambda: not psutil.pid_exists(int(number)))
    assert not Path(python).parent.exists()


def test_only_its_owner_can_reach_a_server(server: ForkServer) -> None:
    assert Path(server.python).parent.stat().st_mode & 0o777 == 0o700


def test_there_is_no_server_where_its_folder_cannot_have_a_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    with pytest.raises(OSError, match="AF_UNIX path too long"):
        ForkServer([], {})
    assert list(deep.iterdir()) == []
