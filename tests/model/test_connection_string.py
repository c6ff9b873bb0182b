"""No error contains the connection string that it refuses, and Spark redacts any that is taken."""

from __future__ import annotations

import pickle
import re
import traceback
from pathlib import Path

import pytest

from cdc import options as declared
from cdc.errors import BadOption
from cdc.model import CONNECTION_STRING
from cdc.mongo.connection import connection_uri
from cdc.pipeline import config as configuration
from cdc.pipeline.spark.spark_session import SETTINGS

# In lower case, as names of options are made.
SECRET = "geheim"
PLAIN = f"mongodb://u:{SECRET}@h/?replicaSet=r"
WRONG = {
    "a variable filled in by the shell": f"env:{PLAIN}",
    "one without its scheme": f"env:u:{SECRET}@h",
    "no variable": f"env:{SECRET}-x",
    "a file filled in by the shell": f"file:{PLAIN}",
    "a file with two schemes": f"file://{PLAIN}",
    "another scheme": f"http://u:{SECRET}@h/",
    "no scheme": f"u:{SECRET}@h",
    "an apostrophe": f"mongodb://u:x'{SECRET}@h/",
    "a quotation mark": f'mongodb://u:x"{SECRET}@h/',
    "a space": f"mongodb+srv://u:x {SECRET}@h/",
    "a letter that is not ASCII": f"mongodb://u:xü{SECRET}@h/",
    "a line end": f"mongodb://u:x@h/?w=1\n{SECRET}",
}


def reported(error: BaseException) -> str:
    """All that can be seen of an error and of what led to it."""
    chain, left = list[BaseException](), [error]
    while left:
        each = left.pop()
        chain.append(each)
        left += [cause for cause in (each.__cause__, each.__context__) if cause is not None]
    seen = (f"{each}{each!r}{each.args!r}{pickle.dumps(each)!r}" for each in chain)
    return "".join([*traceback.format_exception_only(error), *seen]).lower()


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_no_connection_string_is_refused_wherever_it_comes_from_and_not_quoted(
    wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards: quotes, spaces and other letters, which the driver takes, end what Spark redacts."""
    uri = WRONG[wrong]
    (tmp_path / "uri").write_text(uri)
    monkeypatch.setenv("GIVEN", uri)
    given = [
        lambda: declared.parse({"uri": uri, "collections": "a.b"}),
        lambda: connection_uri.resolve(uri),
        lambda: connection_uri.resolve("env:GIVEN"),
        lambda: connection_uri.resolve(f"file:{tmp_path / 'uri'}"),
    ]
    for ask in given:
        with pytest.raises(BadOption) as raised:
            ask()
        assert "'uri'" in str(raised.value)
        assert SECRET not in reported(raised.value)


@pytest.mark.parametrize(
    "override",
    [PLAIN, f"mongodb://u:{SECRET}@h", f"uri=env:{PLAIN}", f"URI=file:{PLAIN}", f"url={PLAIN}"],
)
def test_a_connection_string_on_the_command_line_that_is_mistaken_is_not_quoted(
    override: str,
) -> None:
    """Guards: `-o mongodb://…` without `uri=`, which is an option's name up to its first `=`."""
    with pytest.raises(BadOption) as raised:
        configuration.load(None, ["collections=a.b", "sink.path=/lake", override])
    assert SECRET not in reported(raised.value)
    name, equals, value = override.partition("=")
    with pytest.raises(BadOption) as raised:
        declared.parse({"collections": "a.b", name: value if equals else ""})
    assert SECRET not in reported(raised.value)


@pytest.mark.parametrize("uri", [PLAIN, "file:/x y'/z", "file:///x", "file:x", "env:_A1"])
def test_what_may_lead_to_a_connection_string_is_taken(uri: str) -> None:
    assert declared.parse({"uri": uri, "collections": "a.b"}).uri == uri


def test_a_connection_string_that_is_taken_is_redacted_to_its_end() -> None:
    every = "".join(map(chr, range(33, 127))).replace('"', "").replace("'", "")
    uri = f"mongodb+srv://u:{every}@h/?replicaSet=r"
    assert connection_uri.resolve(uri) == uri
    redacted = SETTINGS["spark.redaction.string.regex"]
    assert redacted == CONNECTION_STRING
    assert re.sub(redacted, "*", f"uri='{uri}' \"{uri}\" {uri}") == "uri='*' \"*\" *"
