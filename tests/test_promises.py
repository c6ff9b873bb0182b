"""What the README promises is shown by tests that are there, and run by default or by name."""

from __future__ import annotations

import ast
import re

import pytest

from tests.documents import README, ROOT, sections

_LINK = re.compile(r'\[test\]\((\S+) "(\w+)"\)')
_SECTION = sections(README)["Guarantees"]
# A point of a list, with the lines that go on, or a row of a table but for its head.
_POINTS = re.findall(r"^\* .*(?:\n  .*)*|(?<=\| --- \|\n)\|(?:.|\n\|)*", _SECTION, re.M)
_PROMISES = [line for point in _POINTS for line in re.split(r"\n(?=\|)", point)]


@pytest.mark.parametrize("promise", _PROMISES, ids=lambda each: each[2:40])
def test_each_promise_is_linked_to_what_shows_it(promise: str) -> None:
    assert _LINK.search(promise), promise


@pytest.mark.parametrize(("file", "name"), _LINK.findall(_SECTION))
def test_each_linked_test_is_there(file: str, name: str) -> None:
    tree = ast.parse((ROOT / file).read_text())
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
