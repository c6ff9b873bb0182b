"""The configuration file, its examples and the tables of the documents say the same as the code."""

from __future__ import annotations

import json
import pickle
import re
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from cdc import options as declared
from cdc.delta.columns import Columns
from cdc.delta.tables import KEYS, layout
from cdc.errors import BadOption
from cdc.model import Namespace
from cdc.pipeline import config as configuration
from cdc.pipeline.sections import SINK_KEYS, flatten
from tests.documents import DOCUMENTS, ROOT
from tests.schema import NOT_CONFIGURED

_REQUIRED = ["uri=mongodb://h", "collections=a.b", "sink.path=/lake"]


def test_the_example_names_every_option_with_its_default() -> None:
    text = (ROOT / "conf/example.toml").read_text()
    absent = [option.name for option in declared.OPTIONS if option.default is None]
    names = "|".join(map(re.escape, [*absent, "dead.letters.limit"]))
    shown = tomllib.loads(re.sub(rf"^# ({names}) =", r"\1 =", text, flags=re.M))
    source = dict(flatten(shown["source"]))
    expected = {option.name for option in declared.OPTIONS} - NOT_CONFIGURED
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
def test_the_files_in_conf_are_accepted_also_by_their_schema(name: str) -> None:
    text = (ROOT / "conf" / name).read_text()
    assert configuration.load(str(ROOT / "conf" / name)).source["collections"]
    [path] = re.findall(r"^#:schema \./(.+)$", text, re.M)
    schema = json.loads((ROOT / "conf" / path).read_text())
    jsonschema.validate(tomllib.loads(text), schema)
    for wrong in ('[source]\nread.by = "x"', "[sink]\nfile.size.mb = 0", "[table]\nx = 1"):
        kinds = [error.validator for error in _validator(schema).iter_errors(tomllib.loads(wrong))]
        assert set(kinds) & {"enum", "minimum", "additionalProperties"}


def _validator(schema: dict[str, Any]) -> Any:
    return jsonschema.validators.validator_for(schema)(schema)


def test_the_documents_print_the_options_as_they_are_declared() -> None:
    assert declared.table() in DOCUMENTS


def test_the_documents_print_the_keys_of_tables_as_they_are_declared() -> None:
    assert layout.table() in DOCUMENTS


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
        ("table.track.history.columns=total", "track.history.columns"),
    ],
)
def test_a_mistaken_option_is_refused_by_name_with_a_remedy(override: str, names: str) -> None:
    with pytest.raises(BadOption, match=names):
        configuration.load(None, [*_REQUIRED, override])


def test_settings_of_spark_stand_in_a_section_of_their_own(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.toml"
    file.write_text('[spark]\ndriver.memory = "4g"\nsql.shuffle.partitions = 32\n')
    loaded = configuration.load(str(file), [*_REQUIRED, "spark.driver.memory=6g"])
    assert loaded.spark == {"spark.driver.memory": "6g", "spark.sql.shuffle.partitions": "32"}
    with pytest.raises(BadOption, match=r"no 'spark\.' in front") as raised:
        configuration.load(None, [*_REQUIRED, "spark.spark.driver.memory=4g"])
    assert "driver.memory = " in str(raised.value)


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
    file.write_text(f"{file.read_text()}[table]\ntrack.history.columns=['a.b', 'total']\n")
    with pytest.raises(BadOption, match=r"track.history.columns.*: a.b, total"):
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


def test_durations_have_units_everywhere() -> None:
    given = ["sink.stop.seconds=1m", "sink.mirror.interval=30s", "sink.trigger=5m"]
    given.append("retry.seconds=2m")
    config = configuration.load(None, [*_REQUIRED, *given])
    assert (config.stop_seconds, config.mirror_interval) == (60, 30)
    assert (config.trigger, config.options.retry_seconds) == ("5 minutes", 120)
    for wrong in ("sink.stop.seconds=1500ms", "sink.mirror.interval=often", "sink.trigger=5x"):
        with pytest.raises(BadOption):
            configuration.load(None, [*_REQUIRED, wrong])


def test_the_names_of_the_release_before_are_accepted_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "c.toml"
    file.write_text(
        '[source]\nuri="mongodb://h"\ncollections="a.b"\n[sink]\npath="/lake"\n'
        '[table]\ndead_letters="_lost"\ncolumns={total="int"}\n'
        '[[override]]\nmatch="a.b"\ntrack_history_columns=["total"]\n'
    )
    layout = configuration.load(str(file)).layout
    assert [target.address for target in layout.letters()] == ["/lake/_lost"]
    assert layout.of(Namespace("a", "b")).track == ("total",)
    assert "option 'dead_letters' is 'dead.letters' now" in caplog.text
    assert "option 'track_history_columns' is 'track.history.columns' now" in caplog.text
    with pytest.raises(BadOption, match=r"'dead_letters' and 'dead\.letters' are the same"):
        configuration.load(str(file), ["table.dead.letters=x"])


def test_names_of_other_sources_of_spark_are_names_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text(
        '[source]\nconnection.uri="mongodb://h"\ncollections="a.b"\nmaxEventsPerTrigger=5\n'
        'startingPosition="latest"\n[sink]\npath="/lake"\n'
    )
    config = configuration.load(str(file))
    assert config.source == {
        "uri": "mongodb://h",
        "collections": "a.b",
        "max.events.per.batch": "5",
        "mode": "latest",
    }


def test_all_options_that_are_wrong_are_reported_at_once_with_their_lines(tmp_path: Path) -> None:
    """Guards: the line of an option that the command line replaces, and of an option that two
    overrides have."""
    file = tmp_path / "pipeline.toml"
    file.write_text(
        "[source]\n"
        'collections = "shop.orders"\n'
        'document.format = "xml"\n'
        "retry.seconds = -1\n"
        'max.events.per.batch = "many"\n'
        "colections = 1\n"
        "[sink]\n"
        'path = "~/lake"\n'
        "trigger = 'soon'\n"
        "stop.seconds = 20\n"
        "[table]\n"
        'delete = "hard"\n'
        '"on.drop" = "x"\n'
    )
    with pytest.raises(BadOption) as raised:
        configuration.load(str(file), ["sink.stop.seconds=never"])
    lines = str(raised.value).splitlines()
    found = [re.match(r"(?:.*pipeline\.toml, line (\d+), (\[\w+\]): )?(.*?)[.:]", e) for e in lines]
    assert [each.groups() for each in found if each] == [
        ("6", "[source]", "There is no option 'colections'"),
        (None, None, "Option 'uri' is not set"),
        ("3", "[source]", "Option 'document"),
        ("5", "[source]", "Option 'max"),
        ("4", "[source]", "Option 'retry"),
        ("8", "[sink]", "path cannot be '~/lake'"),
        ("9", "[sink]", "trigger cannot be 'soon'"),
        (None, None, "stop"),
        ("13", "[table]", "Option 'on"),
    ]
    assert all("Remedy: " in line for line in lines)
    assert pickle.loads(pickle.dumps(raised.value)).errors[0].option == "source.colections"
    correct = file.read_text().replace("colections = 1", 'uri = "mongodb://h"')
    for wrong, right in (("xml", "json"), ("-1", "1"), ('"many"', "9"), ("~", ""), ("soon", "5s")):
        correct = correct.replace(wrong, right)
    file.write_text(correct.replace('"x"', '"keep"') + '[[override]]\nmatch = "a.b"\ndelete = 1\n')
    with pytest.raises(BadOption, match=r"pipeline\.toml, line 16, \[override\]: Option 'delete'"):
        configuration.load(str(file))
