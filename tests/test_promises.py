"""What the documents promise is shown by tests that are there, and run by default or by name."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.documents import ROOT, section

_LINK = re.compile(r'\[test\]\((\S+) "(\w+)"\)')
_PAGE = ROOT / "docs" / "concepts"
_SECTION, _RULES = section("Guarantees"), section("Rules of landing")
_SHORT = re.findall(r"^\* .*", section("What is guaranteed"), re.M)
# A point of a list, with the lines that go on, or a row of a table but for its head.
_POINTS = re.findall(
    r"^\* .*(?:\n  .*)*|(?<=\| --- \|\n)\|(?:.|\n\|)*", f"{_SECTION}\n{_RULES}", re.M
)
_PROMISES = [line for point in _POINTS for line in re.split(r"\n(?=\|)", point)]


@pytest.mark.parametrize("promise", _PROMISES, ids=lambda each: each[2:40])
def test_each_promise_is_linked_to_what_shows_it(promise: str) -> None:
    assert _LINK.search(promise), promise


@pytest.mark.parametrize(("file", "name"), _LINK.findall(_SECTION + _RULES))
def test_each_linked_test_is_there(file: str, name: str) -> None:
    assert name in functions(_PAGE / file)


@pytest.mark.parametrize("promise", _SHORT, ids=lambda each: each[2:40])
def test_the_readme_promises_nothing_else(promise: str) -> None:
    [(file, name)] = _LINK.findall(promise)
    assert name in functions(ROOT / file)
    assert name in _SECTION


def functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
