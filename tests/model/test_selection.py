"""The option `collections`: exact names, lists, and regular expressions that both sides read alike.

That PCRE decides as Python does can only be asked of a server; here the accepted syntax is held to
what the two are documented to share, and everything else must be refused.
"""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.errors import BadOption
from cdc.model import Namespace, Selection

NAMES = st.builds(
    Namespace,
    st.text("abcXYZ019_-", min_size=1, max_size=8),
    st.text("abcXYZ019_-.", min_size=1, max_size=12),
)


def selects(text: str, name: str) -> bool:
    return Selection.parse(text).matches(Namespace.parse(name))


# --- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("shop.orders", ("shop", "orders")),
        ("shop.orders.2026", ("shop", "orders.2026")),
        ("web-shop.order-lines", ("web-shop", "order-lines")),
        ("s.x.", ("s", "x.")),
        ("shop.ünïcode", ("shop", "ünïcode")),
    ],
)
def test_a_name_is_cut_at_its_first_dot(text: str, parts: tuple[str, str]) -> None:
    selection = Selection.parse(text)
    assert selection.names == (Namespace(*parts),)
    assert selection.patterns == ()


@given(NAMES)
def test_a_name_is_the_text_of_itself(name: Namespace) -> None:
    assert Namespace.parse(str(name)) == name


@given(NAMES, NAMES)
def test_an_exact_name_selects_itself_and_no_other(name: Namespace, other: Namespace) -> None:
    assert Selection.parse(str(name)).matches(other) == (name == other)


def test_a_dot_in_an_exact_name_is_a_dot() -> None:
    assert not selects("shop.a.b", "shop.axb")


@pytest.mark.parametrize("text", ["orders", "shop.", ".orders", ".", "shop.a, orders", '["x"]'])
def test_what_is_no_full_name_is_refused(text: str) -> None:
    with pytest.raises(BadOption, match="not a collection's full name"):
        Selection.parse(text)


@pytest.mark.parametrize("text", ["", "  ", ",", " , ,", "[]", '["", " "]'])
def test_a_selection_of_nothing_is_refused(text: str) -> None:
    with pytest.raises(BadOption, match="names no collection"):
        Selection.parse(text)


# --- lists ---------------------------------------------------------------------------------------


@given(st.lists(NAMES, min_size=1, max_size=5))
def test_names_separated_by_commas_and_a_json_list_of_them_select_the_same(
    names: list[Namespace],
) -> None:
    texts = [str(name) for name in names]
    separated = Selection.parse(" , ".join(texts))
    listed = Selection.parse(json.dumps(texts))
    assert separated.names == listed.names == tuple(names)


ANY_NAMES = st.builds(
    Namespace,
    st.text("ab`'[(|?*+^ \n,é", min_size=1, max_size=8),
    st.text("ab`'[](){}|?*+^.\\ \n,é\u202e", min_size=1, max_size=12),
)


@given(st.lists(ANY_NAMES, min_size=1, max_size=4))
def test_the_text_of_names_is_read_as_just_these_names_whatever_they_hold(
    names: list[Namespace],
) -> None:
    """Guards: one collection `a+b`, read alone by `verify`, or copied again by its own name."""
    selection = Selection.parse(Selection.of(names).text)
    assert selection.names == tuple(names)
    assert selection.patterns == ()


@given(
    st.lists(ANY_NAMES, max_size=2),
    st.lists(st.sampled_from([r"s\.[ab]", "^a.b$", "a.(b|c),d", r"x.y\\$", "a.b"]), min_size=1),
)
def test_the_text_of_a_union_is_read_as_what_either_selects(
    names: list[Namespace], items: list[str]
) -> None:
    listed = Selection.parse(json.dumps(items))
    both = Selection.of(names).union(listed)
    again = Selection.parse(both.text)
    assert (again.names, again.patterns) == (both.names, both.patterns)


@pytest.mark.parametrize(
    "text", ["[5]", "[null]", '[["shop.a"]]', '[["shop", ""]]', '[{"db": "shop"}]', "[true]"]
)
def test_a_json_list_of_anything_but_names_and_expressions_is_refused(text: str) -> None:
    with pytest.raises(BadOption):
        Selection.parse(text)


def test_names_and_expressions_can_stand_in_one_list() -> None:
    selection = Selection.parse(r"shop.orders, log\.\d{4}")
    assert selection.names == (Namespace("shop", "orders"),)
    assert selection.patterns == (r"log\.\d{4}",)


@pytest.mark.parametrize(
    "item",
    [
        r"shop\.a{1,2}",
        r"shop\.(?:a,b|c{2,})",
        r"shop\.[,;]a",
        r"shop\.[)]a",
        r"shop\.[(]a",
        r"shop\.[]),]a",
        r"shop\.[^],]a",
        r"shop\.\(a",
        r"shop\.\[a",
        r"shop\.a\{,b",
    ],
)
def test_a_comma_separates_items_unless_it_is_inside_brackets(item: str) -> None:
    if item == r"shop\.a\{,b":  # an escaped bracket opens nothing
        with pytest.raises(BadOption, match="'b' is not"):
            Selection.parse(item)
        return
    assert Selection.parse(f"{item},shop.z").patterns == (item,)
    assert Selection.parse(f"shop.z , {item}").patterns == (item,)


def test_a_text_that_begins_with_a_class_is_an_expression_and_not_bad_json() -> None:
    assert selects(r"[ab]\.c", "a.c")
    assert not selects(r"[ab]\.c", "c.c")


# --- expressions ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        (r"shop\.a|shop\.b", "shop.b", "shop.bc"),
        (r"^shop\.a.*$", "shop.abc", "xshop.a"),
        (r"shop.a+", "shop.aa", "shop.aab"),
        (r"sh.p\.\w+", "ship.x_1", "ship.x-1"),
        (r".*", "any.thing.at-all", None),
        (r"shop\.(?!tmp).*", "shop.orders", "shop.tmp1"),
        (r"shop\.(?=ord).*s", "shop.orders", "shop.parts"),
        (r"shop\.a{2}b{1,}c{0,1}", "shop.aabb", "shop.abb"),
        (r"shop\.[^_]\S*?", "shop.ab", "shop._ab"),
        (r"shop\.a\$", "shop.a$", "shop.a"),
        (r"^shop\.a\$$", "shop.a$", "shop.a"),
        (r"^shop\.a\$", "shop.a$", "shop.a"),
        (r"shop\.a\\$", "shop.a\\", "shop.a"),
        (r"shop\.\d", "shop.7", "shop.٧"),
        (r"shop\.\w", "shop.w", "shop.é"),
        (r"shop\..", "shop.é", "shop.ab"),
    ],
)
def test_an_expression_has_to_match_the_whole_name(
    pattern: str, inside: str, outside: str | None
) -> None:
    assert selects(pattern, inside)
    assert outside is None or not selects(pattern, outside)


def test_a_line_break_at_the_end_of_a_name_is_not_overlooked() -> None:
    assert not Selection.parse(r"shop\.a$").matches(Namespace("shop", "a\n"))


@pytest.mark.parametrize(
    "pattern",
    [
        r"(?i)shop\.a",
        r"(?i:shop)\.a",
        r"(?s-m)shop\.a",
        r"shop\.(?<=x)a",
        r"shop\.(?<!x)a",
        r"shop\.(?P<n>a)",
        r"shop\.(?<n>a)",
        r"shop\.(a)\1",
        r"shop\.(?P<n>a)(?P=n)",
        r"shop\.(?>a)",
        r"shop\.(?#comment)a",
        r"shop\.(a)(?(1)b|c)",
        r"shop\.[[:alpha:]]",
        r"shop\.[[a]",
        r"shop\.\Qa\E",
        r"shop\.\p{L}",
        r"shop\.\x41",
        r"shop\.\u0041",
        r"shop\.a\b",
        r"\Ashop\.a\Z",
        r"shop\.\N{BULLET}*",
        r"shop\.a{,3}",
        r"shop\.a{x}",
        r"shop\.a}",
        r"a^b.c",
        r"a$b.c",
        "shop\\.\n?",
        r"shop\.\h*",
        r"shop\.[\b]",
        r"shop\.[\x41]",
    ],
)
@pytest.mark.filterwarnings("ignore:Possible nested set:FutureWarning")
def test_syntax_that_the_server_reads_otherwise_or_not_at_all_is_refused(pattern: str) -> None:
    with pytest.raises(BadOption):
        Selection.parse(pattern)


@pytest.mark.parametrize(
    "pattern", ["shop.(a", "shop.a)", "shop.[a", "*", "shop.a**", r"shop.a?\\\\["]
)
def test_what_is_no_expression_at_all_is_refused(pattern: str) -> None:
    with pytest.raises(BadOption):
        Selection.parse(pattern)


# What Python and PCRE are documented to share, each with a matcher of its own written without `re`.
ATOMS = {
    "a": "a",
    "-": "-",
    r"\.": ".",
    ".": "a-.0_z",
    r"\d": "0",
    r"\D": "a-._z",
    r"\w": "a0_z",
    r"\W": "-.",
    "[a-z0]": "a0z",
    "[^a-z]": "-.0_",
    r"[\d.]": "0.",
    "[]-]": "-",
}
ALPHABET = "a-.0_z"
QUANTIFIERS = {"": (1, 1), "?": (0, 1), "*": (0, 9), "+?": (1, 9), "{2}": (2, 2), "{1,2}": (1, 2)}
TERMS = st.tuples(st.sampled_from(sorted(ATOMS)), st.sampled_from(sorted(QUANTIFIERS)))
BRANCHES = st.lists(TERMS, min_size=1, max_size=4)


def ends(branch: list[tuple[str, str]], text: str, begin: int = 0) -> set[int]:
    """Where a match of the branch that starts at `begin` can end."""
    found = {begin}
    for atom, quantifier in branch:
        least, most = QUANTIFIERS[quantifier]
        found = {
            start + count
            for start in found
            for count in range(least, most + 1)
            if start + count <= len(text)
            and all(character in ATOMS[atom] for character in text[start : start + count])
        }
    return found


@given(
    st.lists(BRANCHES, min_size=1, max_size=3),
    st.tuples(st.text("az_-0", min_size=1, max_size=4), st.text(ALPHABET, min_size=1, max_size=4)),
    st.sampled_from(["{}", "^{}$", "(?:{})", "({})"]),
)
def test_an_accepted_expression_decides_by_the_meaning_of_its_parts(
    branches: list[list[tuple[str, str]]], name: tuple[str, str], frame: str
) -> None:
    pattern = "|".join("".join(atom + count for atom, count in branch) for branch in branches)
    pattern = frame.format(pattern)
    text = ".".join(name)
    try:
        selection = Selection.parse(json.dumps([pattern]))
    except BadOption:
        assert not re.search(r"[\\\[\](){}?*+|^$]", pattern)  # then it was read as a name
        return
    if selection.patterns:
        expected = any(len(text) in ends(branch, text) for branch in branches)
        assert selection.matches(Namespace(*name)) == expected


@given(st.text(st.characters(codec="utf-8"), max_size=20))
def test_any_text_is_a_selection_or_a_bad_option(text: str) -> None:
    try:
        selection = Selection.parse(text)
    except BadOption:
        return
    assert selection.names or selection.patterns
    selection.matches(Namespace("db", "coll"))


# --- what the server is asked --------------------------------------------------------------------


def test_exact_names_are_asked_for_by_equality_so_that_the_oplog_itself_is_filtered() -> None:
    assert Selection.parse("b.x, a.y, a.z").condition("to") == {
        "$or": [
            {"to.db": "a", "to.coll": {"$in": ["y", "z"]}},
            {"to.db": "b", "to.coll": {"$in": ["x"]}},
        ]
    }


def test_an_expression_is_asked_for_as_a_match_of_the_whole_name() -> None:
    condition = Selection.parse(r"^a\.(x|y)$").condition("ns")
    assert condition["$expr"]["$regexMatch"]["regex"].endswith(r"(?:a\.(x|y))\z")


@pytest.mark.parametrize(
    ("text", "database"),
    [
        ("a.x,a.y", "a"),
        ("a.x,b.x", None),
        (r"a\.x*", "a"),
        (r"^sh-op_1\.(?:x|y\..*)$", "sh-op_1"),
        (r"a\.x*,a.y", "a"),
        (r"a\.x*,b.y", None),
        # Where the expression also matches names of other databases.
        ("a.x*", None),
        (r"a*\.x", None),
        (r"a\.?x", None),
        (r"a\.*", None),
        (r"a\.{0}b\.x", None),
        (r"a\.x|b\.x", None),
        (r"(?:a\.x)|b\.x", None),
        (r"[ab]\.x", None),
        (r"\w\.x", None),
    ],
)
def test_one_database_is_watched_only_if_it_holds_all_that_is_selected(
    text: str, database: str | None
) -> None:
    assert Selection.parse(text).database == database


def test_a_dropped_database_concerns_those_who_may_have_had_a_collection_in_it() -> None:
    assert Selection.parse("b.x,a.y,a.z").database_condition() == {"ns.db": {"$in": ["a", "b"]}}
    assert Selection.parse(r"a\.x*,b.y").database_condition() == {"ns.db": {"$in": ["a", "b"]}}
    assert Selection.parse("a.x*").database_condition() == {}


@pytest.mark.parametrize(
    "name",
    [
        "shop.system.buckets.x",
        "shop.tmp.agg_out.c9a1",
        "shop.tmpa1B2c.convertToCapped.orders",
        "shop.tmpa1B2c.renameCollection",
    ],
)
def test_a_collection_that_the_server_made_for_itself_is_selected_by_its_name_only(
    name: str,
) -> None:
    assert not Selection.parse(r"shop\..*").matches(Namespace.parse(name))
    assert Selection.parse(name).matches(Namespace.parse(name))
    assert Selection.parse(r"shop\..*").matches(Namespace("shop", "tmp"))
