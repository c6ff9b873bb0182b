"""`init` writes a configuration that the other programs accept, and changes no existing file."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cdc.cli.commands import main
from cdc.pipeline import config as configuration

_URI = "mongodb://h"


def init(*arguments: str, answers: str | None = None) -> Result:
    return CliRunner().invoke(main, ["init", *arguments], input=answers)


@pytest.mark.parametrize(
    "collections",
    [
        "shop.orders",
        "shop.a, shop.b",
        r"shop\..*",
        '["shop.a", ["shop", "odd (name)"]]',
        "a.\"'\\\\",
    ],
)
def test_a_file_of_flags_is_accepted_as_those_options_are(tmp_path: Path, collections: str) -> None:
    file = tmp_path / "pipeline.toml"
    given = ["--uri", _URI, "--collections", collections, "--tables", "/lake", "--mode", "latest"]
    done = init("--config", str(file), *given)
    assert done.exit_code == 0, done.output
    loaded = configuration.load(str(file))
    options = {"uri": _URI, "collections": collections, "mode": "latest", "sink.path": "/lake"}
    expected = configuration.load(None, [f"{name}={value}" for name, value in options.items()])
    assert loaded == expected


def test_what_no_flag_gives_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONGODB_URI", _URI)
    file = tmp_path / "pipeline.toml"
    done = init("--config", str(file), answers="\nshop.orders\n\n")
    assert done.exit_code == 0, done.output
    loaded = configuration.load(str(file))
    assert loaded.source["uri"] == "env:MONGODB_URI"
    assert loaded.base == str(Path("lakehouse").absolute())


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (["--uri", "mongodb://u:c4nary@h"], "contains a password"),
        (["--uri", "mongodb+srv://u:c4nary@cluster.invalid/?w=1"], "contains a password"),
        (["--uri", "mongodb://u:c4nary/x@h"], "slash"),
        (["--collections", "orders"], "'orders'"),
        (["--tables", "~/lake"], "'~/lake'"),
        (["--config", "there.toml"], "already"),
        (["--config", "nowhere/pipeline.toml"], "cannot be written"),
    ],
)
def test_a_mistake_is_one_sentence_and_no_file_is_written_or_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.toml").write_text("mine")
    done = init("--uri", _URI, "--collections", "a.b", "--tables", "/lake", *changed)
    assert done.exit_code == 2
    assert said in done.stderr
    assert "c4nary" not in done.output
    assert {each.name: each.read_text() for each in tmp_path.iterdir()} == {"there.toml": "mine"}
