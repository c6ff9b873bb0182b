"""What a program makes of the signals that ask it to stop; whole jobs: `tests/end_to_end`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cdc.shutdown import STOPPING, Stop

SIGNALS = [signal.SIGTERM, signal.SIGINT]
# A program that never ends after its first signal.
WAITING = """
import os, signal, sys
from cdc.shutdown import Stop
with Stop() as stop:
    stop.defer()
    os.kill(os.getpid(), int(sys.argv[1]))
    while True:
        if stop.wait(0.01):
            os.kill(os.getpid(), int(sys.argv[1]))
"""


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_ends_a_program_that_waits_for_none(
    number: int, capfd: pytest.CaptureFixture[str]
) -> None:
    with Stop(), pytest.raises(SystemExit) as raised:
        os.kill(os.getpid(), number)
    assert raised.value.code == 0
    assert "stopped before the first batch" in capfd.readouterr().err


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_is_reported_to_one_that_waits_and_handlers_are_put_back(
    number: int, capfd: pytest.CaptureFixture[str]
) -> None:
    """Guards: a signal of which a program that waits for something else shows nothing."""
    before = signal.getsignal(number)
    with Stop() as stop:
        assert not stop.wait(0)
        stop.defer()
        os.kill(os.getpid(), number)
        assert STOPPING in capfd.readouterr().err
        assert stop.wait(60)
        assert stop.is_signalled
    assert signal.getsignal(number) == before


@pytest.mark.parametrize("number", SIGNALS)
def test_the_second_signal_ends_a_program_at_once(number: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WAITING, str(int(number))],
        cwd=Path(__file__).parents[2],
        timeout=60,
        check=False,
    )
    assert done.returncode == 128 + number
