"""What a newcomer reads first of a mistake in what is written, or on the machine: a few lines
that name it and the remedy, and no JVM is started for it."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner

from cdc.cli.commands import main
from tests.cli.first_errors import require_short
from tests.jvm import run_without_java
from tests.mongo.access import SECRET

PIPELINE = """[source]
uri = "mongodb://127.0.0.1:1"
collections = ["shop.orders"]

[sink]
path = "{folder}/lakehouse"
"""


class Mistake(NamedTuple):
    """What is called, with what in the file in place of what, how it ends, and what is said."""

    call: list[str]
    code: int
    says: list[str]
    put: tuple[str, str] = ("", "")


def of_file(old: str, new: str, code: int, *says: str) -> Mistake:
    return Mistake(["replicate"], code, list(says), (old, new))


def of_option(option: str, code: int, *says: str) -> Mistake:
    return Mistake(["replicate", "-o", option], code, list(says))


WRITTEN = {
    "no file is named": Mistake(["replicate"], 2, ["--config", "conf/example.toml"]),
    "the file is not there": Mistake(
        ["replicate", "--config", "pipelin.toml"], 2, ["pipelin.toml", "conf/example.toml"]
    ),
    "the file is a folder": Mistake(
        ["replicate", "--config", "/tmp"], 2, ["/tmp", "Is a directory", "Name a file"]
    ),
    "a text without quotes": of_file(
        '"mongodb://127.0.0.1:1"', "env:URI", 2, "pipeline.toml is no TOML", "line 2", "quotes"
    ),
    "a misspelt section": of_file("[sink]", "[sinc]", 2, "pipeline.toml", "[sinc]", "'sink'"),
    "an option before all sections": of_file(
        "[source]\n", 'images = "auto"\n[source]\n', 2, "'images'", "below [source]"
    ),
    "an override in single brackets": of_file(
        "[sink]", '[override]\nmatch = "shop.orders"\n[sink]', 2, "[[override]]"
    ),
    "a misspelt option": of_option("imags=auto", 2, "'imags'", "Did you mean 'images'?"),
    "an option of another section": of_file(
        "[sink]", "[sink]\nmirror = ''", 2, "'mirror' in [sink]", "[table]"
    ),
    "an option of a section on the command line without it": of_option(
        "path=/lake", 2, "'path'", "sink.path="
    ),
    "an option without a value": of_option("images", 2, "'images'", "name=value"),
    "a value that there is not": of_option("images=yes", 2, "'images'", "'yes'", "when_available"),
    "a size with its unit": of_option("split.size.mb=64MB", 2, "split.size.mb", "digits"),
    "a folder that only a shell would find": of_file(
        "{folder}", "~", 2, "path", "'~/lakehouse'", "a shell", "Write it out"
    ),
    "a trigger without a unit": of_option("sink.trigger=5", 2, "trigger", "'5'", "5s"),
    "a history that is switched on": of_file(
        "[sink]", "[table]\nhistory = true\n[sink]", 2, "'history'", "{db}/{coll}/history"
    ),
    "a template with another field": of_option(
        "table.mirror={db}/{collection}", 2, "{db}/{collection}", "{db}/{coll}/mirror"
    ),
    "two kinds of tables at one path": of_option(
        "table.mirror={db}/{coll}/changelog", 2, "could meet", "{db}/{coll}/mirror"
    ),
    "a column of no type": Mistake(
        ["replicate"],
        2,
        ["'number'", "no type", "decimal(p,s)"],
        ("[sink]", '[table]\ncolumns = {{ total = "number" }}\n[sink]'),
    ),
    "a filter that is no match": of_option(
        "filter=region = 'EU'", 2, "'filter'", '{"field": value, …}'
    ),
    "a start without its mode": Mistake(
        ["replicate", "--start", "2026-01-31"], 2, ["'start'", "'mode'", "timestamp or token"]
    ),
    "a mode without its start": Mistake(
        ["replicate", "--mode", "timestamp"], 2, ["'mode'", "Set 'start'"]
    ),
    "a start that is no time": Mistake(
        ["replicate", "--mode", "timestamp", "--start", "yesterday"],
        2,
        ["'yesterday'", "2026-01-31T12:00:00Z"],
    ),
    "a start that is no token": Mistake(
        ["replicate", "--mode", "token", "--start", "826B"], 2, ["resume token", "_data"]
    ),
    "a collection without its database": of_option("collections=orders", 2, "'orders'", "db.coll"),
    "a database and its collection as two names": of_file(
        '["shop.orders"]', '["shop", "orders"]', 2, "'shop'", "db.coll"
    ),
    "a pair whose first part is no database": of_file(
        '["shop.orders"]', '[["shop.eu", "orders"]]', 2, "'shop.eu'", '["db", "coll"]'
    ),
    "a star for all databases": of_option("collections=*.orders", 2, "'*.orders'", "Write .*"),
    "a connection string of something else": of_option(
        "uri=127.0.0.1:27017", 2, "'uri'", "mongodb://user:password@host"
    ),
    "a password with a slash": of_option(
        f"uri=mongodb://user:1/{SECRET}@127.0.0.1:1", 2, "'uri'", "slash", "%2F"
    ),
    "a variable that is not set": of_option("uri=env:NO_SUCH", 2, "NO_SUCH", "export NO_SUCH="),
    "a secret that is no file": of_option("uri=file:/no/such", 2, "/no/such", "each machine"),
    "a collection that is not captured": Mistake(
        ["backfill", "--collection", "shop.order"], 2, ["'shop.order'", "'collections'"]
    ),
}
# Found when the source is looked for, which `replicate` does after the start of Spark.
WITHOUT_SPARK = {"a variable that is not set", "a secret that is no file"}


@pytest.mark.parametrize("what", WRITTEN)
def test_a_mistake_in_what_is_written_is_reported_at_once_with_its_remedy(
    what: str, tmp_path: Path
) -> None:
    mistake = WRITTEN[what]
    file = tmp_path / "pipeline.toml"
    file.write_text(PIPELINE.replace(*mistake.put).format(folder=tmp_path))
    program, *arguments = mistake.call
    program = "plan" if what in WITHOUT_SPARK else program
    given = [] if what == "no file is named" or "--config" in arguments else ["--config", str(file)]
    done = CliRunner().invoke(main, [program, *given, *arguments])
    assert done.exit_code == mistake.code, done.output
    assert done.stdout == ""
    require_short(done.stderr, mistake.says)


def test_a_program_that_is_misspelt_is_answered_with_the_nearest() -> None:
    done = CliRunner().invoke(main, ["replicat"])
    assert done.exit_code == 2
    assert "Did you mean 'replicate'?" in done.stderr


def test_a_port_for_metrics_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        given = ["-o", "uri=mongodb://127.0.0.1:1", "-o", "collections=a.b", "-o", "sink.path=x"]
        done = CliRunner().invoke(main, ["replicate", *given, "--metrics-port", port])
    assert done.exit_code == 2, done.output
    require_short(done.stderr, [f"Port {port} of 127.0.0.1", "in use", "--metrics-port"])


@pytest.mark.parametrize("version", [None, 'openjdk version "11.0.22" 2024-01-16'])
def test_a_java_that_is_missing_or_old_is_reported_with_what_to_install(
    tmp_path: Path, version: str | None
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    if version:
        java.write_text(f"#!/bin/sh\necho '{version}' >&2\n")
        java.chmod(0o755)
    given = ["uri=mongodb://127.0.0.1:1", "collections=a.b", f"sink.path={tmp_path}"]
    done = run_without_java("cdc.cli.maintain", given, str(tmp_path))
    assert done.returncode == 1
    assert done.stdout == ""
    require_short(done.stderr, ["is Java 11" if version else "none that runs", "install Java 17"])
