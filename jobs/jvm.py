"""The Java that Spark will run on, checked before Spark fails on it in fifty lines."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from cdc.errors import CdcError

OLDEST = 17

REMEDY = (
    "install Java 17, on Debian and Ubuntu the package openjdk-17-jre-headless, and let JAVA_HOME "
    "name its folder if it is not the `java` on the PATH."
)


def require_java() -> None:
    """Raises `CdcError`, one sentence and its remedy, unless Spark would find Java 17 or newer.

    Looks where Spark looks: `$JAVA_HOME/bin/java` if JAVA_HOME is set, else `java` on the PATH.
    """
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else "java"
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        place = f"JAVA_HOME={home}" if home else "the PATH"
        raise CdcError(f"Spark needs Java {OLDEST} and {place} has none that runs.", REMEDY) from error
    version = major_version(answer.stderr)
    if version < OLDEST:
        raise CdcError(f"Spark needs Java {OLDEST} or newer and `{java}` is Java {version}.", REMEDY)


def major_version(answer: str) -> int:
    """17 for `openjdk version "17.0.15" …`, 8 for `java version "1.8.0_402"`; 0 if unreadable."""
    found = re.search(r'version "(?:1\.)?(\d+)', answer)
    return int(found[1]) if found else 0
