"""Where tables live: names never meet, never escape, and stay readable."""

from __future__ import annotations

import posixpath

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cdc.delta.routing import Route, quote, require_disjoint
from cdc.errors import BadOption
from cdc.model.selection import Namespace

NASTY = st.text("aA.%/\\ ~_-{}*é\u0301\0", max_size=8) | st.text(max_size=300)
NAMESPACES = st.builds(Namespace, NASTY, NASTY)


@given(NAMESPACES, NAMESPACES)
@example(Namespace("a", "b.c"), Namespace("a.b", "c"))
@example(Namespace("a", "b/c"), Namespace("a/b", "c"))
@example(Namespace("a", "é"), Namespace("a", "e\u0301"))
@example(Namespace("a", "%2F"), Namespace("a", "/"))
@example(Namespace("a", "x" * 255), Namespace("a", "x" * 254 + "y"))
@example(Namespace("a", "~"), Namespace("a", ""))
def test_two_namespaces_never_share_a_folder(one: Namespace, other: Namespace) -> None:
    route = Route("/lake", "{db}/{coll}/mirror")
    assert (route.target(one) == route.target(other)) == (one == other)


@given(NAMESPACES)
@example(Namespace("..", ".."))
@example(Namespace("../../etc", "/"))
@example(Namespace("", ""))
def test_no_name_leaves_the_base_path_or_its_depth(namespace: Namespace) -> None:
    path = Route("/lake/crm/", "{db}/t_{coll}/mirror").target(namespace).address
    assert posixpath.normpath(path) == path
    assert path.startswith("/lake/crm/")
    assert path.count("/") == 5


@given(NASTY)
def test_a_component_is_short_plain_and_not_hidden(name: str) -> None:
    quoted = quote(name)
    assert 0 < len(quoted) <= 200
    assert quoted.isascii()
    assert quoted[0] not in "._"
    assert not set(quoted) & set(" /\\*?{}[]:\0")


@pytest.mark.parametrize("name", ["orders", "orders_2024", "web-shop", "system.users", "userNames"])
def test_an_ordinary_name_stays_as_it_is(name: str) -> None:
    assert quote(name) == name


@pytest.mark.parametrize(
    "template",
    [
        "{db}.{coll}.a.b",
        "{db}.sales.{coll}",
        "{db}{coll}/mirror",
        "main..{coll}",
        "/{db}/{coll}",
        "{db}/../{coll}",
        "{db}//{coll}",
        "{db}/{coll}/{kind}",
        "{db}/{coll}/{",
        "",
    ],
)
def test_a_template_that_could_mix_namespaces_is_refused(template: str) -> None:
    with pytest.raises(BadOption):
        Route("/lake", template)


def test_an_empty_base_path_is_refused() -> None:
    with pytest.raises(BadOption):
        Route("/", "{db}/{coll}")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("/lake", "{db}/{coll}"), ("/lake", "{db}/{coll}/mirror")),
        (("/lake", "{db}/{coll}/t"), ("/lake", "{db}/{coll}/t")),
        (("/lake", "{db}/{coll}"), ("/lake/a", "{db}/{coll}")),
        (("/lake", "{db}/m_{coll}"), ("/lake", "{db}/{coll}")),
    ],
)
def test_two_kinds_of_tables_that_could_meet_are_refused(
    one: tuple[str, str], other: tuple[str, str]
) -> None:
    with pytest.raises(BadOption):
        require_disjoint([("changelog", Route(*one)), ("mirror", Route(*other))])


def test_two_kinds_of_tables_in_folders_of_their_own_are_accepted() -> None:
    require_disjoint(
        [
            ("changelog", Route("/lake", "{db}/{coll}/changelog")),
            ("mirror", Route("/lake", "{db}/{coll}/mirror")),
            ("history", Route("/other", "{db}/{coll}")),
            ("mirror", Route("/lake", "all/{coll}/mirror")),
            ("mirror", Route("", "main.{db}.{coll}")),
        ]
    )


def test_a_glob_takes_the_base_path_literally() -> None:
    assert Route("/la[k]e*", "{db}/c_{coll}/m").glob() == "/la\\[k\\]e\\*/*/c_*/m"
