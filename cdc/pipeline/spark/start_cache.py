"""Jars, classes and Python code of a local JVM, cached so that no start prepares them again.

Without the cache Ivy looks up Delta's jars at each start, Java parses and verifies some 20,000
classes, and each Python process compiles PySpark. The results stay the same:

* The list of jars is recorded after a start with Ivy. Later starts put these jars on the class
  path. A missing jar makes Ivy look again.
* `mongodb-cdc prepare` stores the classes in an archive (Java's class data sharing), which Java
  maps. Java compares the archive with its own version and with the class path, and loads the
  classes from the jars if they differ.
* Spark makes its Python processes import PySpark from the sources in `pyspark.zip`, if its home has
  that file. The JVM gets a home without it, so they import the installed, compiled PySpark.
"""

from __future__ import annotations

import hashlib
import json
import os
import site
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import unquote

import pyspark
from pyspark.sql import SparkSession

from cdc.file_lock import lock
from cdc.private_cache import create_folder

PACKAGES, CLASS_PATH = "spark.jars.packages", "spark.driver.extraClassPath"
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_PYTHON = "spark.pyspark.python"
# What a JVM needs of Spark's home.
_HOME = ("bin", "conf", "jars", "sbin")
_JARS = "jars.json"
_ARCHIVE_AT_EXIT = "-XX:ArchiveClassesAtExit"
# Without these Java prints a warning for an archive that it does not map.
_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"
# Each has 200 MB, and environments come and go. Those that were used last stay.
_MOST_ARCHIVES = 3


def use_cache(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a local session so that its JVM starts from the cache.

    What is not cached stays as it is. `settings` name the packages that Ivy would look up.
    """
    jars = _cached_jars(settings[PACKAGES])
    if not jars or _has_jars_of_its_own():
        return dict(settings)
    path = [settings[CLASS_PATH]] if CLASS_PATH in settings else []
    found = {name: value for name, value in settings.items() if name != PACKAGES}
    found[CLASS_PATH] = os.pathsep.join([*path, *jars])
    archive = _archive(jars)
    options = settings.get(JAVA_OPTIONS, "")
    if archive.exists() and _ARCHIVE_AT_EXIT not in options:
        found[JAVA_OPTIONS] = f'{options} "-XX:SharedArchiveFile={archive}" {_QUIET}'.lstrip()
        # Without this, three newer environments would take the archive from one in daily use.
        # Each start would then cost about five CPU seconds more until the next `prepare`.
        with suppress(OSError):  # removed by another process just now
            os.utime(archive)
    return found


def record_jars(packages: str, spark: SparkSession) -> None:
    """Record the jars that Ivy found for the packages of a session.

    The settings name no other jars. A failure is no error.
    """
    if _has_jars_of_its_own():
        return
    urls = str(spark.sparkContext.getConf().get("spark.jars", "")).split(",")
    jars = [unquote(url.removeprefix("file://")) for url in urls if url.startswith("file:///")]
    if len(jars) < len(urls) or any(os.pathsep in jar for jar in jars):
        return
    with suppress(OSError):
        folder = _folder()
        with lock(folder):
            part = folder / f"{_JARS}.part"
            part.write_text(json.dumps({**_recorded(folder), packages: jars}))
            part.replace(folder / _JARS)


@contextmanager
def archiving(packages: str) -> Iterator[str | None]:
    """Let a JVM that starts and ends in the block store its classes in a new archive.

    Yields the option for it; None if the jars of the packages are not cached yet. Raises OSError
    if the cache cannot be written.
    """
    jars = _cached_jars(packages)
    if not jars:
        yield None
        return
    archive = _archive(jars)
    part = archive.with_suffix(".part")
    part.unlink(missing_ok=True)
    try:
        yield f'"{_ARCHIVE_AT_EXIT}={part}" {_QUIET}'
        part.replace(archive)
        with suppress(FileNotFoundError):  # another process removes them too
            _remove_old_archives(archive.parent)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def compiled_pyspark(settings: Mapping[str, str]) -> Iterator[None]:
    """Let Python processes of a local JVM that starts in the block import the installed PySpark.

    Saves half a CPU second or more in each of them; every streaming query starts one. Does nothing
    if SPARK_HOME is set, or if the processes might not find PySpark: if they have another
    interpreter than this program, or if this program extended its own path.
    """
    home = _light_home(settings)
    if home is None:
        yield
        return
    os.environ["SPARK_HOME"] = str(home)
    try:
        yield
    finally:
        del os.environ["SPARK_HOME"]


def _light_home(settings: Mapping[str, str]) -> Path | None:
    """Return a copy, made of links, of the installed PySpark without its folder `python`."""
    if "SPARK_HOME" in os.environ or not runs_this_interpreter(settings):
        return None
    real = Path(_spark_home())
    if str(real.parent) not in _import_paths():
        return None
    try:
        folder = _folder()
        home = folder / f"home-{_digest([str(real)])}"
        if not home.exists():
            with tempfile.TemporaryDirectory(prefix="home-", dir=folder) as part:
                made = Path(part, "home")
                made.mkdir()
                for name in _HOME:  # also a folder that may be made later
                    (made / name).symlink_to(real / name)
                with suppress(OSError):  # another process has made it
                    made.rename(home)
        return home if home.exists() else None
    except OSError:
        return None


def runs_this_interpreter(settings: Mapping[str, str]) -> bool:
    """Whether the Python processes of a local JVM with these settings have this interpreter."""
    interpreters = {os.environ.get("PYSPARK_PYTHON"), settings.get(_PYTHON), sys.executable, None}
    return len(interpreters) == 2 and not has_default(_PYTHON)


def _import_paths() -> set[str]:
    """Folders, without links, from which any process of this interpreter imports packages."""
    given = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    paths = (sysconfig.get_path("purelib"), site.getusersitepackages(), *given)
    return set(map(os.path.realpath, paths))


def _remove_old_archives(folder: Path) -> None:
    archives = sorted(folder.glob("classes-*.jsa"), key=lambda each: each.stat().st_mtime)
    for each in archives[:-_MOST_ARCHIVES]:
        each.unlink(missing_ok=True)


def _has_jars_of_its_own() -> bool:
    return has_default("spark.jars", CLASS_PATH)


def has_default(*names: str) -> bool:
    """Whether `spark-defaults.conf`, which Spark reads itself, has a setting that begins so."""
    folder = os.environ.get("SPARK_CONF_DIR") or str(Path(_spark_home(), "conf"))
    try:
        lines = Path(folder, "spark-defaults.conf").read_text().splitlines()
    except OSError:
        return False
    return any(line.strip().startswith(names) for line in lines)


def _cached_jars(packages: str) -> list[str]:
    try:
        jars = _recorded(_folder()).get(packages, [])
    except OSError:
        return []
    return jars if all(Path(jar).is_file() for jar in jars) else []


def _recorded(folder: Path) -> dict[str, list[str]]:
    """What `record_jars` wrote; nothing if that is missing or damaged."""
    try:
        return dict(json.loads((folder / _JARS).read_text()))
    except (OSError, ValueError):
        return {}


def _archive(jars: list[str]) -> Path:
    """Return the archive of a class path. It includes Spark: each environment has its own."""
    return _folder() / f"classes-{_digest([_spark_home(), *jars])}.jsa"


def _digest(paths: list[str]) -> str:
    return hashlib.sha256("\n".join(paths).encode()).hexdigest()[:16]


def _spark_home() -> str:
    # Without links: an environment that is also reached by a link needs no second archive.
    return os.environ.get("SPARK_HOME") or str(Path(pyspark.__file__).resolve().parent)


def _folder() -> Path:
    return create_folder(f"spark-{pyspark.__version__}")
