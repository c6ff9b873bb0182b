"""Where tables live: names never meet, never escape, and stay readable."""

from __future__ import annotations

import posixpath
import re
import shutil
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from cdc.delta.log import LocalReader, SparkReader
from cdc.delta.tables.routing import Route, folder, former_folder, require_disjoint
from cdc.errors import BadOption
from cdc.model import Namespace

NASTY = st.text("aA2E.%!/\\ ~_-{}*é\u0301\0", max_size=8) | st.text(max_size=300)
NAMESPACES = st.builds(Namespace, NASTY, NASTY)


@given(NAMESPACES, NAMESPACES)
@example(Namespace("a", "b.c"), Namespace("a.b", "c"))
@example(Namespace("a", "b/c"), Namespace("a/b", "c"))
@example(Namespace("a", "é"), Namespace("a", "e\u0301"))
@example(Namespace("a", "%2F"), Namespace("a", "/"))
@example(Namespace("a", "x" * 255), Namespace("a", "x" * 254 + "y"))
@example(Namespace("a", "~"), Namespace("a", ""))
@example(Namespace("a", "!"), Namespace("a", ""))
@example(Namespace("a", "!2F"), Namespace("a", "/"))
@example(Namespace("a", "!" * 2 + "0" * 32), Namespace("a", "x" * 300))
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


@given(NAMESPACES, NAMESPACES)
@example(Namespace("a", "/"), Namespace("a", "!2f"))
def test_where_case_is_ignored_only_names_that_differ_in_case_meet(
    one: Namespace, other: Namespace
) -> None:
    route = Route("/lake", "{db}/{coll}/mirror")
    paths = {route.target(each).address.lower() for each in (one, other)}
    assert len(paths) == 2 or _lower(one) == _lower(other)


def _lower(namespace: Namespace) -> list[str]:
    """Letters of ASCII: others are encoded, each case by itself."""
    return [re.sub("[A-Z]+", lambda found: found[0].lower(), part) for part in namespace]


@given(NASTY)
@example("..")
@example("x" * 201)
def test_a_component_is_short_plain_and_not_hidden(name: str) -> None:
    for found in (folder(name), former_folder(name)):
        assert 0 < len(found) <= 200
        assert found.isascii()
        assert found[0] not in "._"
        assert found[-1] != "."
        assert not set(found) & set(" /\\*?{}[]:\0")
    # What Hadoop, object stores and URLs each leave as it is: delta-rs decodes what has a percent
    # sign.
    assert re.fullmatch(r"[A-Za-z0-9._!-]+", folder(name))


@given(NASTY, NASTY)
def test_what_an_earlier_version_named_is_never_taken_for_another_collections(
    one: str, other: str
) -> None:
    assert one == other or former_folder(one) not in (folder(other), former_folder(other))
    assert (former_folder(one) == folder(one)) == (folder(one) == one)


@pytest.mark.parametrize("name", ["orders", "orders_2024", "web-shop", "system.users", "userNames"])
def test_an_ordinary_name_stays_as_it_is(name: str) -> None:
    assert (folder(name), former_folder(name)) == (name, name)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("a/b", "a!2Fb"),
        ("100%", "100!25"),
        ("odd (name)", "odd!20!28name!29"),
        ("é", "!C3!A9"),
        ("_x", "!5Fx"),
        ("..", "!2E!2E"),
        ("x" * 255, "x" * 166 + "!!d22609da3ae3956ca4877056a8e580ee"),
    ],
)
def test_a_folder_of_these_names_is_the_same_in_every_version(name: str, found: str) -> None:
    """Guards: a table that would be looked for at another place."""
    assert folder(name) == found


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


def test_the_base_path_is_text_also_where_it_looks_like_a_pattern(
    spark: SparkSession, tmp_path: Path
) -> None:
    base = f"{tmp_path}/la[k]e*{{x}}"
    route = Route(base, "{db}/c_{coll}/m")
    spark.range(1).write.format("delta").save(f"{tmp_path}/other")
    for place in (base, f"{tmp_path}/lake*{{x}}", f"{tmp_path}/la[k]e1x"):
        for name in ("c_orders", "orders"):
            shutil.copytree(tmp_path / "other", f"{place}/shop/{name}/m")
    for reader in (SparkReader(spark), LocalReader()):
        found = [route.own(each).address for each in reader.find(route.literals())]
        assert found == [f"{base}/shop/c_orders/m"], reader
