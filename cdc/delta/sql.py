"""Names and strings quoted for SQL."""

from __future__ import annotations


def literal(text: str) -> str:
    """A string in SQL, whatever it holds: Spark would put the environment's HOME in the place of
    "${env:HOME}"."""
    for char, escaped in (("\\", "\\\\"), ("'", "\\'"), ("$", "\\u0024")):
        text = text.replace(char, escaped)
    return f"'{text}'"


def quoted(part: str) -> str:
    """One part of a name, as SQL takes it whatever it holds."""
    return "`" + part.replace("`", "``") + "`"
