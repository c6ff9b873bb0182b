"""The configuration file, its examples and the README's tables say the same as the code."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from cdc import options as declared
from cdc.delta.columns import Columns
from cdc.delta.tables import KEYS, layout
from cdc.errors import BadOption
from cdc.model import Namespace
from cdc.pipeline import config as configuration
from cdc.pipeline.sections import SINK_KEYS, flatten
from tests.documents import README, ROOT

# Set by the jobs themselves, or for batch reads only: they have no place in a pipeline's file.
_BATCH = {"snapshot.at", "snapshot.from", "snapshot.below", "from", "to"}
_NOT_CONFIGURED = {"emit.watermark"} | _BATCH
_REQUIRED = ["uri=mongodb://h", "collections=a.b", "sink.path=/lake"]


def test_the_example_names_every_option_with_its_default() -> None:
    text = (ROOT / "conf/example.toml").read_text()
    shown = tomllib.loads(
        re.sub(
            r"^# (start|filter|fields|max\.\w[\w.]*|dead\.letters\.limit) =",
            r"\1 =",
            text,
            flags=re.M,
        )
    )
    source = dict(flatten(shown["source"]))
    expected = {option.name for option in declared.OPTIONS} - _NOT_CONFIGURED
    assert set(source) == expected
    for option in declared.OPTIONS:
        if option.name in source and option.default is not None:
            assert source[option.name] == option.default, option.name
    assert set(dict(flatten(shown["sink"]))) == set(SINK_KEYS)
    table = dict(flatten(shown["table"]))
    for name, key in KEYS.items():
        assert table[name] == key.default, name
    assert set(table) == set(KEYS)


@pytest.mark.parametrize("name", ["example.toml", "local.toml"])
def test_the_files_in_conf_are_accepted(name: str) -> None:
    assert configuration.load(str(ROOT / "conf" / name)).source["collections"]


def test_the_readme_prints_the_options_as_they_are_declared() -> None:
    assert declared.table() in README


def test_the_readme_prints_the_keys_of_tables_as_they_are_declared() -> None:
    assert layout.table() in README


def test_what_is_captured_is_known_however_the_option_is_spelt() -> None:
    given = ["uri=mongodb://h", r"Collections=a\.b.*", "sink.path=/x"]
    config = configuration.load(None, given)
    assert config.parse_captured("a.bc") == Namespace("a", "bc")
    with pytest.raises(BadOption, match="does not capture"):
        config.parse_captured("a.c")


def test_the_command_line_goes_before_the_file(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text(
        '[source]\nuri="mongodb://h"\ncollections=["a.b"]\nimages="off"\n[sink]\npath="/x/"\n'
    )
    config = configuration.load(
        str(file), ["images=auto", "table.mirror=", "sink.trigger=5 seconds"]
    )
    assert config.source["images"] == "auto"
    assert config.table("mirror", Namespace("a", "b")) is None
    assert config.trigger == "5 seconds"
    assert config.checkpoint == "/x/_checkpoint"


def test_a_path_that_begins_with_no_slash_is_where_the_program_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards: Delta takes the path of a new table for a name if it is not absolute."""
    monkeypatch.chdir(tmp_path)
    own = ["uri=mongodb://h", "collections=a.b", "sink.checkpoint=offsets"]
    config = configuration.load(None, [*own, "sink.path=lake"])
    mirror = config.table("mirror", Namespace("a", "b"))
    assert mirror is not None
    assert mirror.target.address == str(tmp_path / "lake/a/b/mirror")
    assert config.checkpoint == str(tmp_path / "offsets")
    elsewhere = configuration.load(None, [*own[:2], "sink.path=s3a://bucket/lake/"])
    assert elsewhere.checkpoint == "s3a://bucket/lake/_checkpoint"


@pytest.mark.parametrize(
    ("override", "names"),
    [
        ("imags=auto", "images"),
        ("sink.pth=/x", "path"),
        ("table.mirrors=x", "mirror"),
        ("split.size.mb=many", "split.size.mb"),
        ("images", "name=value"),
        ("table.mirror={db}/{collection}", "template"),
        ("table.delete=never", "delete"),
        ("images=off", "mirror"),
        ("table.columns=total", "columns"),
        ("table.schema.evolution=perhaps", "schema.evolution"),
        ("table.track_history_columns=total", "track_history_columns"),
    ],
)
def test_a_mistaken_option_is_refused_by_name_with_a_remedy(override: str, names: str) -> None:
    with pytest.raises(BadOption, match=names):
        configuration.load(None, [*_REQUIRED, override])


def test_keys_in_the_url_of_a_table_are_refused_and_not_shown() -> None:
    with pytest.raises(BadOption, match="contains keys") as raised:
        configuration.load(None, [*_REQUIRED, "sink.path=s3a://KEY:secret@lake/x"])
    assert "KEY" not in str(raised.value)
    assert "secret@" not in str(raised.value)


def test_no_second_program_writes_tables_on_s3() -> None:
    """Guards: Delta has no lock there, so the commit of one JVM may overwrite another's."""
    given = [*_REQUIRED, "sink.path=s3a://lake/x"]
    configuration.load(None, given)
    with pytest.raises(BadOption, match="one program only"):
        configuration.load(None, [*given, "sink.follow.by=follow"])


def test_columns_are_read_by_collection_and_need_variants(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text(
        '[source]\nuri="mongodb://h"\ncollections=["a.b"]\n[sink]\npath="/x/"\n'
        '[[override]]\nmatch="a.b"\nschema.evolution=true\n'
        "[override.columns]\n'a.b' = \"int from c.`d.e`\"\n"
    )
    options = configuration.load(str(file)).layout.of(Namespace("a", "b"))
    assert options.evolves
    assert options.columns == Columns.parse({"a.b": "int from c.`d.e`"})
    with pytest.raises(BadOption, match="json"):
        configuration.load(str(file), ["document.format=json"])
    file.write_text(f"{file.read_text()}[table]\ntrack_history_columns=['a.b', 'total']\n")
    with pytest.raises(BadOption, match=r"track_history_columns.*: a.b, total"):
        configuration.load(str(file), [])


@pytest.mark.parametrize("missing", range(len(_REQUIRED)))
def test_an_option_without_which_nothing_runs_is_asked_for(missing: int) -> None:
    given = [option for index, option in enumerate(_REQUIRED) if index != missing]
    name = _REQUIRED[missing].partition("=")[0].removeprefix("sink.")
    with pytest.raises(BadOption, match=name):
        configuration.load(None, given)


def test_a_file_that_is_absent_or_no_toml_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadOption, match=r"gone\.toml"):
        configuration.load(str(tmp_path / "gone.toml"))
    (tmp_path / "bad.toml").write_text("[source\n")
    with pytest.raises(BadOption, match=r"bad\.toml"):
        configuration.load(str(tmp_path / "bad.toml"))
    (tmp_path / "odd.toml").write_text("[sources]\n")
    with pytest.raises(BadOption, match="source"):
        configuration.load(str(tmp_path / "odd.toml"))
