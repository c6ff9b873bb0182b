"""How long, and of what, the first error of a newcomer may be."""

from __future__ import annotations

from collections.abc import Iterable

from tests.mongo.access import SECRET

_LINES, _LETTERS = 3, 600


def require_short(said: str, says: Iterable[str]) -> None:
    """One error of a few lines, no stack trace, nothing of Java or the driver, no secret."""
    assert said.count("error: ") == 1, said
    assert len(said.splitlines()) <= _LINES, said
    assert len(said) < _LETTERS, said
    assert "Remedy: " in said
    assert [part for part in says if part not in said] == [], said
    for noise in ("Traceback", "Py4J", "pymongo", "org.apache", SECRET):
        assert noise not in said
