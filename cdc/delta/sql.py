"""Names and strings quoted for SQL."""

from __future__ import annotations


def literal(text: str) -> str:
    """A string in SQL, whatever characters it contains.

    Without the quoting, Spark would replace "${env:HOME}" by the value of the variable.
    """
    for char, escaped in (("\\", "\\\\"), ("'", "\\'"), ("$", "\\u0024")):
        text = text.replace(char, escaped)
    return f"'{text}'"


def quoted(part: str) -> str:
    """One part of a name in SQL, whatever characters it contains."""
    return "`" + part.replace("`", "``") + "`"
