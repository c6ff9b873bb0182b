"""What the documents name is there: headings, files, programs, targets, options and errors."""

from __future__ import annotations

import ast
import re
import textwrap
import tomllib
import uuid
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache

import bson
import click
import pytest
from bson import Binary, Decimal128, ObjectId, Timestamp
from pyspark.sql.types import VariantType

from cdc import errors
from cdc.cli.commands import EXIT_CODES, main
from cdc.delta.columns import Image
from cdc.delta.followers import MIRROR
from cdc.delta.log import Target
from cdc.delta.tables import KEYS, MATCH
from cdc.delta.tables.layout import Options, Table
from cdc.errors import CdcError, UnmappableValue
from cdc.model import Change, Namespace, Selection, merge_key, readable_id
from cdc.options import OPTIONS
from cdc.pipeline.sections import SINK_KEYS, flatten
from cdc.tasks import STORAGE_KEYS
from tests import mkdocs_hooks, reference
from tests.documents import DOCUMENTS, FENCED, PAGES, ROOT, code, prose, section, sections, titles

# What no test runs, and the section says so: CI itself does; a program that is somebody else's, of
# which the notebooks are run by another one; pipelines that need a server of their own, with Delta.
NOT_RUN = {
    ("Demo and tests", "sh"),
    ("Notebooks", "sh"),
    ("Spark Declarative Pipelines", "python"),
}
PEERS = ("From Flink CDC", "From Debezium", "From mongo-spark", "From Airbyte")
TROUBLES = "docs/operate/troubleshooting.md"
README_LINES = 200
# The `_id`s of the table of examples, in its order.
_KEYS = (
    *(7, 7.0, Decimal128("7.50"), 0.5, 0.1, "a-1", ObjectId("65a1b2c3d4e5f60718293a4b")),
    Binary.from_uuid(uuid.UUID("12345678-1234-5678-1234-567812345678")),
    *(b"\x01\x02", datetime(2026, 1, 31, 12, tzinfo=UTC), Timestamp(1769860800, 1)),
    *(True, None, {"region": "EU", "n": 1}, {"$oid": "x"}),
)
_SPAN = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", re.S)
_CHOICES = {
    **{option.name: option.choices for option in OPTIONS},
    **{name: key.choices for name, key in KEYS.items()},
    **dict.fromkeys([*SINK_KEYS, *STORAGE_KEYS, MATCH, *Change._fields], ()),
}


def spans(text: str) -> list[str]:
    """What is set as code in a line, or goes on in the next."""
    return [" ".join(span.split()) for _, span in _SPAN.findall(text)]


def rows(text: str) -> list[list[str]]:
    """The cells of the rows of its first table, but for the head."""
    lines = re.findall(r"^\| (.*) \|$", prose(text), re.M)
    return [line.split(" | ") for line in lines[2:]]


def troubles() -> dict[str, str]:
    """The sections of the page on what goes wrong: by error, in the log, and codes alone."""
    found = sections(PAGES[TROUBLES])
    return {title: text for title, text in found.items() if title != "Troubleshooting"}


# --- pages ---------------------------------------------------------------------------------------


def test_the_readme_is_short() -> None:
    assert len(PAGES["README.md"].splitlines()) <= README_LINES


def test_each_title_is_that_of_one_page_or_section() -> None:
    twice = {title: pages for title, pages in titles().items() if len(pages) > 1}
    assert set(twice) <= {"mongodb-cdc for Spark"}


def test_each_page_is_in_the_navigation_of_the_site_once() -> None:
    listed = re.findall(r"- (?:\w+: )?([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M)
    written = [name.removeprefix("docs/") for name in PAGES if name.startswith("docs/")]
    assert sorted(listed) == sorted([*written, *mkdocs_hooks.PAGES])


def test_no_page_needs_a_picture_or_a_program_from_elsewhere() -> None:
    """Material would load Mermaid from another host."""
    pages = {name: text for name, text in PAGES.items() if name.startswith("docs/")}
    assert [name for name, text in pages.items() if "```mermaid" in text] == []
    for text in PAGES.values():
        assert re.findall(r"!\[[^\]]*\]\(\w+:", text) == []
    for picture in ROOT.glob("docs/pictures/*.svg"):
        assert re.findall(r'(?:href|src)="https?:', picture.read_text()) == []
    settings = (ROOT / "mkdocs.yml").read_text()
    assert "font: false" in settings
    assert "://" not in settings


def test_what_is_made_of_the_code_is_as_the_code_gives_it() -> None:
    assert sorted(reference.placed()) == sorted(reference.parts())
    for path, text in reference.pages().items():
        assert path.read_text() == text, "python -m tests.reference renews it"


def test_a_link_out_of_the_pages_becomes_a_path_on_the_site() -> None:
    page = "concepts/x.md"
    assert mkdocs_hooks.relinked("[a](../../tests/soak.py)", page) == "a (`tests/soak.py`)"
    shown = '<abbr title="tests/soak.py: test_a">test</abbr>'
    assert mkdocs_hooks.relinked('[test](../../tests/soak.py "test_a")', page) == shown
    assert mkdocs_hooks.relinked("[a](../y.md#b) [c](#d)", page) == "[a](../y.md#b) [c](#d)"
    assert mkdocs_hooks.relinked("[a](../../CHANGELOG.md)", page) == "[a](../project/changelog.md)"
    assert mkdocs_hooks.relinked("[a](docs/y.md)", "project/changelog.md") == "[a](../y.md)"


def test_the_columns_of_a_mirror_are_documented() -> None:
    options = Options.parse({"delete": "soft", "mirror": "all"}, "lake")
    made = MIRROR.schema(
        VariantType(), Table(Target("lake/all"), None, options), Image.of_new(None)
    )
    assert [spans(name)[0] for name, *_ in rows(section("Mirror"))] == made.names


def test_each_example_of_a_key_is_one() -> None:
    shown = rows(section("How key looks"))
    for (kind, value, key, text), _id in zip(shown, _KEYS, strict=True):
        found = merge_key(bson.encode({"_id": _id}))
        assert spans(key) == [found], (kind, value)
        assert (spans(text) if text != "as `key`" else spans(key)) == [readable_id(found)], value


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


@pytest.mark.parametrize("name", PAGES)
def test_each_link_leads_to_a_file_or_heading_that_is_there(name: str) -> None:
    links = re.findall(r"\]\(([^)\s]+)[^)]*\)", prose(PAGES[name]))
    for path, _, anchor in (link.partition("#") for link in links if "://" not in link):
        target = (ROOT / name).parent / path if path else ROOT / name
        generated = mkdocs_hooks.PAGES.get((ROOT / name).parent.joinpath(path).name)
        assert target.exists() or generated, path
        if anchor:
            assert anchor in anchors(target.read_text()), anchor


def test_each_section_that_is_to_be_seen_is_there() -> None:
    """In the documents it is a link; errors and files name the page and the section."""
    named = re.findall(r"(?:see|See|under)\s+\*([^*]+)\*", DOCUMENTS)
    assert {" ".join(name.split()) for name in named} <= set(titles())
    sources = [*ROOT.glob("cdc/**/*.py"), *ROOT.glob("conf/*"), ROOT / "CHANGELOG.md"]
    paths = [re.findall(r"\bdocs/[\w/-]+\.md", path.read_text()) for path in sources]
    assert any(paths)
    assert {path for found in paths for path in found} <= set(PAGES)


def literals() -> list[str]:
    """What the documents have as code: between fences, after four spaces, and in a line."""
    found = []
    for text in PAGES.values():
        found += [block.replace("\\\n", " ") for _, block in FENCED.findall(text)]
        found += re.findall(r"^ {4}\S.*$", prose(text), re.M)
        found += spans(prose(text))
    return found


def commands() -> list[tuple[str, str]]:
    """Each `mongodb-cdc NAME` in code, and what follows it in its line."""
    found = (re.findall(r"mongodb-cdc +([a-z][a-z-]*)(.*)", each) for each in literals())
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
    named = {name for each in literals() for name in called.findall(each)}
    assert "test" in named
    assert named <= targets


def test_a_test_runs_each_code_of_the_documents_that_can_be_run() -> None:
    """By its section, as `tests.documents.code` gives it to a test. The README repeats pages."""
    runnable = {
        (title, language)
        for name, page in PAGES.items()
        for title, text in sections(page).items()
        for language, _ in FENCED.findall(text)
        if name != "README.md" and language in {"js", "python", "sh", "sql"}
    }
    asked = re.compile(r'\bcode\("([^"]+)", "(\w+)"\)')
    tests = [path.read_text() for path in ROOT.glob("tests/**/*.py")]
    run = {found for text in tests for found in asked.findall(text)}
    assert runnable - run == NOT_RUN


def test_each_python_code_of_the_documents_can_be_parsed() -> None:
    """The tests that run it are slow ones, most of them."""
    for text in PAGES.values():
        for kind, block in FENCED.findall(text):
            if kind == "python":
                ast.parse(textwrap.dedent(block))


def test_what_no_test_runs_is_named_so() -> None:
    for title, _ in NOT_RUN:
        assert re.search(r"[Nn]o test runs", section(title)), title


def test_images_are_recorded_by_the_same_command_wherever_it_stands() -> None:
    assert code("Record images", "js") == code("Quick start", "js")


def test_the_code_of_the_readme_is_that_of_the_pages() -> None:
    pages = {
        (language, textwrap.dedent(block))
        for name, text in PAGES.items()
        if name != "README.md"
        for language, block in FENCED.findall(text)
    }
    shown = FENCED.findall(PAGES["README.md"])
    assert len(shown) > 5
    assert [each for each in shown if each not in pages] == []


def test_each_notebook_is_documented() -> None:
    linked = re.findall(r"^\| \[.*?\]\((\S+)\)", section("Notebooks"), re.M)
    assert sorted(linked) == sorted(
        f"../../notebooks/{path.name}" for path in ROOT.glob("notebooks/*")
    )


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
        assert spans(ours) or ours.startswith(("not available", "not needed, because")), theirs


@pytest.mark.parametrize("title", ["Migration from other tools", *PEERS])
def test_what_is_said_below_names_options_of_ours_or_of_the_table_only(title: str) -> None:
    text = section(title)
    theirs = {span for cells in rows(text) for span in spans(cells[0])}
    below = re.sub(r"^\|.*$", "", prose(text), flags=re.M)
    unknown = {span for span in spans(below) if not is_ours(span) and span[0] != "$"}
    assert unknown <= theirs


def test_each_option_in_an_example_of_a_file_is_there() -> None:
    blocks = [
        tomllib.loads(textwrap.dedent(block))
        for kind, block in FENCED.findall(DOCUMENTS)
        if kind == "toml"
    ]
    assert blocks
    for block in blocks:
        block.pop("spark", None)  # has options of Spark
        sections = [block.pop(name, {}) for name in ("source", "sink", "table", "storage")]
        for keys in (block, *block.pop("override", []), *sections):
            assert set(dict(flatten(keys))) <= set(_CHOICES)


def test_the_example_of_what_is_left_out_leaves_it_out() -> None:
    (given,) = re.findall(r'^collections = (\["shop\\\\\.\(\?!.*?\])', DOCUMENTS, re.M)
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
    for title, page in troubles().items():
        assert rows(page), title
        for seen, *_ in rows(page):
            for text in spans(seen):
                whole = ".*".join(map(re.escape, text.split("…")))
                assert re.search(whole, known), text


def test_each_error_is_documented_with_its_exit_code() -> None:
    coded = {title: re.match(r"Exit code (\d)\.\n", text) for title, text in troubles().items()}
    reported = {(code[1], title) for title, code in coded.items() if code}
    kinds = [each for each in vars(errors).values() if isinstance(each, type)]
    # The last one is about a value, and never the end of a run.
    ends = [each for each in kinds if issubclass(each, CdcError) and each is not UnmappableValue]
    assert reported == {(str(each.exit_code), each.__name__) for each in ends}
    assert "never the end of a run" in troubles()[UnmappableValue.__name__]


def test_each_exit_code_of_the_list_is_documented() -> None:
    reported = "\n".join(
        [line for text in troubles().values() for line in re.findall(r"^Exit code \d", text, re.M)]
        + [seen for text in troubles().values() for seen, *_ in rows(text)]
    )
    assert {str(code) for code in EXIT_CODES if code} <= set(re.findall(r"\b\d+\b", reported))
