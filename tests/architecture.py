"""The generated parts of the architecture page: `python -m tests.architecture` renews them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.test_layers import ROOT, imports, known

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
    """Which layer imports which, in functions and for types too; without those arrows that follow
    from the others, and without `cdc.errors`, which all import."""
    found = {
        (layer(module), layer(name))
        for module, path in _sources().items()
        for name in imports(path)
        if known(name) and layer(name) != layer(module)
    }
    found = {(upper, lower) for upper, lower in found if lower not in ("cdc", "cdc.errors")}
    return {
        (a, b) for a, b in found if not any(_leads(found, c, b) for c in _below(found, a) - {b})
    }


def layer(module: str) -> str:
    """`cdc.mongo` of `cdc.mongo.planner`; all programs are `jobs`."""
    parts = module.split(".")
    return parts[0] if parts[0] == "jobs" else ".".join(parts[:2])


def _below(arrows: set[tuple[str, str]], upper: str) -> set[str]:
    return {lower for each, lower in arrows if each == upper}


def _leads(arrows: set[tuple[str, str]], upper: str, lower: str) -> bool:
    return any(each == lower or _leads(arrows, each, lower) for each in _below(arrows, upper))


def _sources() -> dict[str, Path]:
    paths = [*sorted(ROOT.glob("cdc/**/*.py")), *sorted(ROOT.glob("jobs/**/*.py"))]
    names = (".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths)
    found = zip((name.removesuffix(".__init__") for name in names), paths, strict=True)
    return {name: path for name, path in found if name not in ("cdc", "jobs")}


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
    for module, path in sorted(_sources().items()):
        says = (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n\n")[0]
        if says:
            yield f"| `{module}` | {says.replace(chr(10), ' ').replace('|', chr(92) + '|')} |"


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text()))
