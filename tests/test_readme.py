"""What the documents name is there: headings, files, programs, targets, options and errors."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache

import click
import pytest

from cdc import errors
from cdc.cli.commands import EXIT_CODES, main
from cdc.delta.tables import KEYS, MATCH
from cdc.errors import CdcError, UnmappableValue
from cdc.model import Change, Namespace, Selection
from cdc.options import OPTIONS
from cdc.pipeline.sections import SINK_KEYS, flatten
from cdc.tasks import STORAGE_KEYS
from tests.documents import FENCED, README, ROOT, prose, sections

DOCUMENTS = {name: (ROOT / name).read_text() for name in ("README.md", "CONTRIBUTING.md")}
# What no test runs: CI itself does; a program that is somebody else's, of which the notebooks are
# run by another one; pipelines that need a server of their own, with Delta.
NOT_RUN = {
    ("Demo and tests", "sh"),
    ("Notebooks", "sh"),
    ("Spark Declarative Pipelines", "python"),
}
PEERS = ("From Flink CDC", "From Debezium", "From mongo-spark")
_SPAN = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", re.S)
_CHOICES = {
    **{option.name: option.choices for option in OPTIONS},
    **{name: key.choices for name, key in KEYS.items()},
    **dict.fromkeys([*SINK_KEYS, *STORAGE_KEYS, MATCH, *Change._fields], ()),
}


def spans(text: str) -> list[str]:
    """What is set as code in a line, or goes on in the next."""
    return [" ".join(span.split()) for _, span in _SPAN.findall(text)]


def section(title: str) -> str:
    """Of the README, without what is fenced."""
    return prose(sections(README)[title])


def rows(text: str) -> list[list[str]]:
    """The cells of the rows of its first table, but for the head."""
    lines = re.findall(r"^\| (.*) \|$", text, re.M)
    return [line.split(" | ") for line in lines[2:]]


# --- links, programs, targets --------------------------------------------------------------------


@cache
def anchors(text: str) -> set[str]:
    """As GitHub makes them: of two headings that are alike the second one gets a number."""
    seen = Counter[str]()
    found = set()
    for heading in re.findall(r"^#+ (.*)$", prose(text), re.M):
        slug = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return found


@pytest.mark.parametrize("name", DOCUMENTS)
def test_each_link_leads_to_a_file_or_heading_that_is_there(name: str) -> None:
    links = re.findall(r"\]\(([^)\s]+)[^)]*\)", prose(DOCUMENTS[name]))
    for path, _, anchor in (link.partition("#") for link in links if "://" not in link):
        assert (ROOT / path).exists(), path
        if anchor:
            assert anchor in anchors((ROOT / (path or name)).read_text()), anchor


def test_each_section_that_is_to_be_seen_is_there() -> None:
    headings = re.findall(r"^#+ (.*)$", prose(README), re.M)
    named = re.findall(r"(?:see|See|under)\s+\*([^*]+)\*", README)
    assert named
    assert {" ".join(name.split()) for name in named} <= set(headings)


def code() -> list[str]:
    """What the documents have as code: between fences, after four spaces, and in a line."""
    found = []
    for text in DOCUMENTS.values():
        found += [block.replace("\\\n", " ") for _, block in FENCED.findall(text)]
        found += re.findall(r"^ {4}\S.*$", prose(text), re.M)
        found += spans(prose(text))
    return found


def commands() -> list[tuple[str, str]]:
    """Each `mongodb-cdc NAME` in code, and what follows it in its line."""
    found = (re.findall(r"mongodb-cdc +([a-z][a-z-]*)(.*)", each) for each in code())
    return [command for each in found for command in each]


@pytest.mark.parametrize("name", sorted({name for name, _ in commands()}))
def test_each_program_that_is_named_is_there_with_the_options_that_are_named(name: str) -> None:
    program = main.get_command(click.Context(main), name)
    assert program is not None
    known = {option for each in program.params for option in each.opts}
    given = {
        each
        for of, rest in commands()
        if of == name
        for each in re.findall(r"(?<!\S)--?\w[\w-]*", rest)
    }
    assert given <= known


def test_each_target_of_make_that_is_named_is_there() -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):(?!=)", (ROOT / "Makefile").read_text(), re.M))
    called = re.compile(r"^\s*(?:\w+=\S+ )*make\s+([a-z][a-z-]*)", re.M)
    named = {name for each in code() for name in called.findall(each)}
    assert "test" in named
    assert named <= targets


def test_a_test_runs_each_code_of_the_readme_that_can_be_run() -> None:
    """By its section, as `tests.documents.code` gives it to a test."""
    runnable = {
        (title, language)
        for title, text in sections(README).items()
        for language, _ in FENCED.findall(text)
        if language in {"js", "python", "sh", "sql"}
    }
    asked = re.compile(r'\bcode\("([^"]+)", "(\w+)"\)')
    tests = [path.read_text() for path in ROOT.glob("tests/**/*.py")]
    run = {found for text in tests for found in asked.findall(text)}
    assert runnable - run == NOT_RUN


def test_each_notebook_is_documented() -> None:
    linked = re.findall(r"^\| \[.*?\]\((\S+)\)", section("Notebooks"), re.M)
    assert sorted(linked) == sorted(f"notebooks/{path.name}" for path in ROOT.glob("notebooks/*"))


# --- options -------------------------------------------------------------------------------------


def is_ours(span: str) -> bool:
    """An option or column of ours, with a value that it may have; a program."""
    if program := re.fullmatch(r"mongodb-cdc ([a-z-]+)", span):
        return program[1] in main.list_commands(click.Context(main))
    name, _, value = span.partition(" = ")
    return name in _CHOICES and (not value or not _CHOICES[name] or value in _CHOICES[name])


def test_only_options_that_are_there_count_as_ours() -> None:
    assert is_ours("split.size.mb")
    assert is_ours("mode = initial")
    assert is_ours("exact = false")
    assert is_ours("mongodb-cdc token")
    assert not is_ours("split.size")
    assert not is_ours("mode = always")
    assert not is_ours("mongodb-cdc tokens")


@pytest.mark.parametrize("title", PEERS)
def test_each_option_of_ours_that_stands_beside_one_of_a_peer_is_there(title: str) -> None:
    table = rows(section(title))
    assert len(table) > 10
    for theirs, ours in table:
        assert [span for span in spans(ours) if not is_ours(span)] == [], theirs
        assert spans(ours) or ours.startswith(("not there", "not needed, because")), theirs


@pytest.mark.parametrize("title", ["Migration from Flink CDC, Debezium or mongo-spark", *PEERS])
def test_what_is_said_below_names_options_of_ours_or_of_the_table_only(title: str) -> None:
    text = section(title)
    theirs = {span for cells in rows(text) for span in spans(cells[0])}
    below = re.sub(r"^\|.*$", "", text, flags=re.M)
    unknown = {span for span in spans(below) if not is_ours(span) and span[0] != "$"}
    assert unknown <= theirs


def test_each_option_in_an_example_of_a_file_is_there() -> None:
    blocks = [tomllib.loads(block) for kind, block in FENCED.findall(README) if kind == "toml"]
    assert blocks
    for block in blocks:
        sections = [block.pop(name, {}) for name in ("source", "sink", "table", "storage")]
        for keys in (block, *block.pop("override", []), *sections):
            assert set(dict(flatten(keys))) <= set(_CHOICES)


def test_the_example_of_what_is_left_out_leaves_it_out() -> None:
    (given,) = re.findall(r'^collections = (\["shop\\\\\.\(\?!.*?\])', README, re.M)
    captured = Selection.parse(given)
    assert captured.matches(Namespace("shop", "orders"))
    assert not captured.matches(Namespace("shop", "tmp_1"))
    assert not captured.matches(Namespace("shop", "audit_1"))


# --- errors --------------------------------------------------------------------------------------


def texts() -> Iterator[str]:
    """Every text in the code but docstrings; what is filled in is `…`."""
    for path in ROOT.glob("cdc/**/*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        alone = {each.value for each in nodes if isinstance(each, ast.Expr)}
        for node in nodes:
            if isinstance(node, ast.JoinedStr):
                parts = [getattr(each, "value", "") for each in node.values]
                yield "".join(each if isinstance(each, str) else "…" for each in parts)
            elif isinstance(node, ast.Constant) and node not in alone:
                yield re.sub(r"%[\d.]*[sdf]", "…", str(node.value)).replace("%%", "%")


def test_what_is_seen_when_something_fails_is_what_the_code_says() -> None:
    known = "\n".join(texts())
    for seen, *_ in rows(section("Troubleshooting")):
        for text in spans(re.sub(r"(\*\*|end: )[^|]*$", "", seen)):
            whole = ".*".join(map(re.escape, text.split("…")))
            assert re.search(whole, known), text


def test_each_error_is_documented_with_its_exit_code() -> None:
    table = "\n".join(seen for seen, *_ in rows(section("Troubleshooting")))
    reported = set(re.findall(r"\*\*(\d)\*\* `(\w+)`$", table, re.M))
    kinds = [each for each in vars(errors).values() if isinstance(each, type)]
    # The last one is about a value, and never the end of a run.
    ends = [each for each in kinds if issubclass(each, CdcError) and each is not UnmappableValue]
    assert reported == {(str(each.exit_code), each.__name__) for each in ends}
    assert f"no end: `{UnmappableValue.__name__}`" in table


def test_each_exit_code_of_the_list_is_documented() -> None:
    reported = "\n".join(seen for seen, *_ in rows(section("Troubleshooting")))
    assert {str(code) for code in EXIT_CODES if code} <= set(re.findall(r"\b\d+\b", reported))
