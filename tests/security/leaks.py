"""A password that is planted, and where it is looked for: in files, in processes, in any form."""

from __future__ import annotations

import base64
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self
from urllib.parse import quote, quote_plus

import psutil

_SCAN_SECONDS = 0.2


class Canary:
    """`password` is of all kinds of characters; a part of it, which none of its encodings changes,
    is what is looked for, and that part in base64 and in hex."""

    def __init__(self, name: str) -> None:
        self._part = f"cAnArY{name}".encode()
        self.password = f"p@:/?%&=+#'\" {self._part.decode()}ü"
        for form in (self.password, quote(self.password, safe=""), quote_plus(self.password)):
            assert self._part in form.encode()
        # Base64 of a text depends on where in it the part begins.
        shifted = (base64.b64encode(b"x" * shift + self._part) for shift in range(3))
        self._forms = [self._part, self._part.hex().encode(), *(each[4:-4] for each in shifted)]

    def is_in(self, content: bytes) -> bool:
        return any(form in content for form in self._forms)


def reported(canaries: Iterable[Canary], folder: Path) -> list[str]:
    """The files under a folder that hold one of them, in their content or in their name."""
    found = []
    for parent, _, names in os.walk(folder):  # which passes over what is gone meanwhile
        for path in (Path(parent), *(Path(parent, name) for name in names)):
            with suppress(OSError):
                content = str(path).encode() + (path.read_bytes() if path.is_file() else b"")
                if any(each.is_in(content) for each in canaries):
                    found.append(str(path))
    return found


def listening(process: psutil.Process) -> Iterator[tuple[str, int]]:
    """The address and the port of every socket that it or a process below it listens on."""
    for each in [process, *process.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            for found in each.net_connections("inet"):
                if found.status == psutil.CONN_LISTEN:
                    yield str(found.laddr.ip).removeprefix("::ffff:"), found.laddr.port


class Watched:
    """Looks, as long as the block lasts, at the command lines of a process's children and at what
    stands in a folder that is emptied at the end. `found` is where a canary was."""

    def __init__(self, canaries: list[Canary], root: int, folder: Path) -> None:
        self._canaries, self._root, self._folder = canaries, psutil.Process(root), folder
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.found: set[str] = set()
        self.seen: Mapping[int, str] = {}
        self.addresses: set[str] = set()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._is_over.wait(_SCAN_SECONDS):
            with suppress(psutil.NoSuchProcess):
                self._look()

    def _look(self) -> None:
        self.found.update(reported(self._canaries, self._folder))
        self.addresses.update(address for address, _ in listening(self._root))
        own = self._root.cmdline()  # and that of a child until it is another program
        for child in self._root.children(recursive=True):
            with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                reported_to = child.cmdline()
                line = "\0".join(reported_to).encode()
                self.seen = {**self.seen, child.pid: child.name()}
                if reported_to != own and any(each.is_in(line) for each in self._canaries):
                    self.found.add(f"command line of {child.name()}")
