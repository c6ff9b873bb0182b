"""The generated parts of the architecture page: `python -m tests.architecture` renews them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache

from tests.test_layers import MODULES, ROOT, imports, known, package_of

PAGE = ROOT / "cdc" / "README.md"


def generated() -> dict[str, str]:
    """Each part of the page that is made of the code, by its name."""
    return {"picture": _picture(), "path": _path(), "modules": _modules()}


def renewed(page: str) -> str:
    """The page with these parts as they are to be. ValueError: one has no place in it."""
    for name, text in generated().items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        before, found, rest = page.partition(begin)
        _, closed, after = rest.partition(end)
        if not (found and closed):
            raise ValueError(f"{PAGE.name} has no place for {name}")
        page = f"{before}{begin}{text}{end}{after}"
    return page


@cache
def arrows() -> set[tuple[str, str]]:
    """Which package imports which, in functions and for types too; without those arrows that follow
    from the others, and without `cdc.errors`, which all import."""
    found = {
        (package_of(module), package_of(name))
        for module, path in MODULES.items()
        for name in imports(path)
        if known(name) and package_of(name) != package_of(module)
    }
    found = {
        (upper, lower)
        for upper, lower in found
        if lower not in ("", "cdc", "cdc.errors") and upper != "cdc"
    }
    below = {upper: {lower for each, lower in found if each == upper} for upper, _ in found}

    @cache
    def reached(upper: str) -> frozenset[str]:
        lower = below.get(upper, set())
        return frozenset(lower).union(*map(reached, lower))

    return {(a, b) for a, b in found if not any(b in reached(c) for c in below[a] - {b})}


def _picture() -> str:
    lines = [f"    {a.replace('.', '_')}[{a}] --> {b.replace('.', '_')}[{b}]" for a, b in arrows()]
    return "```mermaid\nflowchart TD\n" + "\n".join(sorted(lines)) + "\n```\n"


def _path() -> str:
    """What the package says of itself."""
    says = ast.get_docstring(ast.parse((ROOT / "cdc" / "__init__.py").read_text())) or ""
    return f"{says}\n"


def _modules() -> str:
    return "\n".join(["| module | |", "| --- | --- |", *_rows()]) + "\n"


def _rows() -> Iterator[str]:
    for module, path in sorted(MODULES.items()):
        says = (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n\n")[0]
        if says and module != "cdc":
            yield f"| `{module}` | {says.replace(chr(10), ' ').replace('|', chr(92) + '|')} |"


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text()))
