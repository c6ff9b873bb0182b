"""The audit lets nothing pass that nobody has looked at."""

from __future__ import annotations

from importlib.metadata import Distribution, distribution
from importlib.metadata._meta import SimplePath
from typing import Any

import pytest

from tests import audit
from tests.audit import Advisories, Licensed, judged, of_package

CLEAN = {"name": "clean", "version": "1.0", "vulns": []}
HOLED = {"name": "holed", "version": "2.0", "vulns": [{"id": "PYSEC-1", "fix_versions": []}]}
SKIPPED = {"name": "skipped", "skip_reason": "not found on PyPI"}


@pytest.mark.parametrize(
    ("dependencies", "says"),
    [
        ([CLEAN], "none is known of 1 packages"),
        ([CLEAN, HOLED], "KNOWN: holed 2.0: PYSEC-1"),
        ([CLEAN, SKIPPED], "NOT ASKED: nothing is known of 1 of 2 packages: not found on PyPI"),
        ([HOLED, SKIPPED], "KNOWN: holed 2.0: PYSEC-1"),
    ],
)
def test_a_package_that_nothing_is_known_of_is_not_one_without_vulnerabilities(
    dependencies: list[dict[str, Any]], says: str
) -> None:
    """Guards: pip-audit ends with 'no known vulnerabilities', and 0, where it skipped them all."""
    assert says in str(judged({"dependencies": dependencies}))


def test_a_vulnerability_is_passed_over_only_where_it_is_accepted_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(audit, "ACCEPTED", {"PYSEC-1": "not reached"})
    assert judged({"dependencies": [HOLED]}) == Advisories(1)


@pytest.mark.parametrize(
    ("licences", "is_allowed"),
    [
        (("MIT",), True),
        (("MIT", "MPL-2.0"), True),
        (("MIT", "GPL-3.0-only"), False),
        (("Proprietary",), False),
        ((), False),
    ],
)
def test_a_package_is_allowed_only_if_all_the_licences_that_it_names_are(
    licences: tuple[str, ...], is_allowed: bool
) -> None:
    assert Licensed("x", "1", licences).is_allowed == is_allowed


@pytest.mark.parametrize(
    ("name", "licences"),
    [
        ("llvmlite", ("BSD-2-Clause", "Apache-2.0", "LLVM-exception")),  # an expression
        ("pandas", ("BSD-3-Clause",)),  # a classifier, and the whole text of the licence
        ("pyspark", ("Apache-2.0",)),  # neither
    ],
)
def test_licences_are_read_from_what_packages_say_of_themselves(
    name: str, licences: tuple[str, ...]
) -> None:
    assert of_package(distribution(name), name).licences == licences


class Said(Distribution):
    """A package of which no more is known than this."""

    def __init__(self, *classifiers: str, text: str = "", expression: str = "") -> None:
        reported = [f"Classifier: License :: {each}" for each in classifiers]
        reported += [f"License-Expression: {expression}"] if expression else []
        self._text = "\n".join(["Name: x", "Version: 1", f"License: {text}", *reported])

    def read_text(self, filename: str) -> str | None:
        return self._text if filename == "METADATA" else None

    def locate_file(self, path: Any) -> SimplePath:
        raise FileNotFoundError(path)


@pytest.mark.parametrize(
    ("said", "licences", "is_allowed"),
    [
        (Said("OSI Approved", "OSI Approved :: MIT License"), ("MIT",), True),
        (
            Said("OSI Approved :: MIT License", "OSI Approved :: GNU GPLv3"),
            ("MIT", "GNU GPLv3"),
            False,
        ),
        (Said("Other/Proprietary License", text="MIT"), ("Other/Proprietary License",), False),
        (Said(text="Apache 2.0"), ("Apache-2.0",), True),
        (Said(expression="ISC AND (MIT OR GPL-2.0)"), ("ISC", "MIT", "GPL-2.0"), False),
        (Said(), (), False),
    ],
)
def test_a_licence_that_is_not_known_by_its_name_is_none_that_is_passed_over(
    said: Said, licences: tuple[str, ...], is_allowed: bool
) -> None:
    found = of_package(said, "x")
    assert (found.licences, found.is_allowed) == (licences, is_allowed)
