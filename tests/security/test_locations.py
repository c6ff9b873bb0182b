"""Where a pipeline writes: each path and URL is one place to all that read it, or is refused.

What is fuzzed here is what a user configures. Names that come from the server are data: see
`test_routing.py` for their folders, and `test_injection.py` for SQL.
"""

from __future__ import annotations

import json
import posixpath
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, example, given, seed, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from cdc.checkpoint.checkpoint import local_folder
from cdc.errors import BadOption
from cdc.model import Namespace
from cdc.pipeline import Config
from cdc.pipeline import config as configuration
from cdc.tasks import Storage, is_remote, local_path
from tests.security.leaks import Canary

# The session of Spark is none that hypothesis could make anew for each example.
FUZZED = settings(
    max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
SEED = 27
PARTS = st.text("aB.%~!?#&=:@+ \\`'\"$;*[]é\u0435\u202e\n\0", max_size=6) | st.sampled_from(
    ["..", ".", "", "%2e%2e", "x" * 300, "a b", "${env:HOME}", "$HOME", "~", "\ud800", "s3a:"]
)
SCHEMES = st.sampled_from(
    [
        *("", "/", "s3a://", "s3://", "s3n://", "S3A://", "s3a:/", "file:", "file:/", "file://"),
        *("file:///", "FILE:///", "hdfs://", "gs://", "abfss://", "http://", "jdbc:x:"),
    ]
)
LOCATIONS = st.builds(
    lambda scheme, parts: scheme + "/".join(parts), SCHEMES, st.lists(PARTS, max_size=4)
)
NAMES = st.builds(Namespace, PARTS.filter(bool), PARTS.filter(bool)).filter(
    lambda name: "\ud800" not in "".join(name)  # which no document of the server contains
)


def load(location: str, option: str = "path") -> Config:
    given = ["uri=mongodb://h", "collections=a.b", "sink.path=/lake"]
    return configuration.load(None, [*given, f"sink.{option}={location}"])


def hadoop(spark: SparkSession, address: str) -> tuple[str, str, str]:
    """Scheme, authority and path of an address as Hadoop reads it."""
    jvm: Any = spark._jvm
    uri = jvm.org.apache.hadoop.fs.Path(address).toUri()
    return uri.getScheme() or "", uri.getAuthority() or "", uri.getPath()


@seed(SEED)
@FUZZED
@given(LOCATIONS, NAMES, NAMES)
@example("s3a://lake/a//b", Namespace("a", "b"), Namespace("a", "c"))
@example("s3a://lake/a/../../other", Namespace("a", "b"), Namespace("a", "c"))
@example("s3a://la?ke/x", Namespace("a", "b"), Namespace("a", "c"))
@example("//lake/x", Namespace("a", "b"), Namespace("a", "c"))
@example("file://host/x", Namespace("a", "b"), Namespace("a", "c"))
@example("/lake/%2e%2e/x", Namespace("..", "../../etc"), Namespace("..", ".."))
@example("/lake/a\0b", Namespace("a", "b"), Namespace("a", "c"))
@example("/lake/\ud800", Namespace("a", "b"), Namespace("a", "c"))
def test_a_table_lies_where_tasks_and_hadoop_both_look_and_below_its_location(
    spark: SparkSession, location: str, one: Namespace, other: Namespace
) -> None:
    """Guards: a location of which Hadoop reads the percent signs, a query or `..`, and pyarrow
    does not; a name that leads out of it; two names that lead to one table."""
    try:
        config = load(location)
    except BadOption:
        return
    tables = [config.table("mirror", name) for name in (one, other)]
    addresses = [table.target.address for table in tables if table]
    assert (addresses[0] == addresses[1]) == (one == other)
    for address in addresses:
        assert address.startswith(f"{config.base}/")
        assert posixpath.relpath(address, config.base).count("/") == 2
        scheme, authority, path = hadoop(spark, address)
        if scheme in ("s3", "s3a", "s3n"):
            storage = Storage({"endpoint": "http://127.0.0.1:1", "anonymous": "true"})
            assert storage.locate(address)[1] == authority + path
        elif not is_remote(address) and scheme in ("", "file"):
            assert authority == ""
            assert posixpath.normpath(local_path(address)) == posixpath.normpath(path)


@seed(SEED)
@FUZZED
@given(PARTS.filter(bool))
@example("a%20b")
@example("a?b")
@example("a#b")
def test_a_checkpoint_of_a_url_is_that_of_its_letters(part: str) -> None:
    """Guards: a lock, a status and a repair of another folder than the one that Spark writes."""
    folder = f"file:///checkpoints/{part}"
    try:
        config = load(folder, "checkpoint")
    except BadOption:
        return
    assert str(local_folder(config.checkpoint)) == str(Path(f"/checkpoints/{part}"))


@seed(SEED)
@FUZZED
@given(st.lists(PARTS.filter(bool), min_size=2, max_size=2))
def test_a_collection_is_captured_under_its_own_name_or_refused(parts: list[str]) -> None:
    db, coll = parts
    given = ["uri=mongodb://h", "sink.path=/lake"]
    try:
        config = configuration.load(None, [*given, f"collections={json.dumps([[db, coll]])}"])
    except BadOption:
        return
    assert f"{db}.{coll}".encode()
    assert "\0" not in db + coll
    assert config.options.selection.matches(Namespace(db, coll))
    assert not config.options.selection.matches(Namespace(db, f"{coll}x"))
    assert not config.options.selection.matches(Namespace(f"{db}x", coll))


# --- credentials in a place ----------------------------------------------------------------------

_ACCOUNT = "lake@store.dfs.core.windows.net/shop"
SIGNED: dict[str, str] = {
    "keys": "s3a://AKIA:{key}@lake/shop",
    "one slash": "s3a:/AKIA:{key}@lake/shop",
    "capitals": "S3A://AKIA:{key}@lake/shop",
    "a password": "hdfs://user:{key}@host:8020/shop",
    "a shared access signature": f"abfss://{_ACCOUNT}?sv=2024-08-04&sig={{key}}",
    "a signature of a blob": f"wasbs://{_ACCOUNT}?sig={{key}}",
    "a presigned URL": "https://lake.s3.amazonaws.com/shop?X-Amz-Signature={key}&X-Amz-Date=1",
    "a token": "s3a://lake/shop?X-Amz-Security-Token={key}",
}
# The name of the option is missing, or is another one.
PLACES = ["sink.path={url}", "sink.checkpoint={url}", "storage.endpoint={url}"]
MISTAKES = [
    "{url}",
    "sink.{url}",
    "sink.{url}=x",
    "table.{url}=x",
    "storage.{url}=x",
    "sink.pth={url}",
    "sink.path:{url}",
    "uri={url}",
    "table.{url}",
]


@pytest.mark.parametrize("option", [*PLACES, *MISTAKES])
@pytest.mark.parametrize("form", SIGNED)
def test_a_url_with_a_credential_is_refused_and_shown_nowhere(
    form: str, option: str, tmp_path: Path
) -> None:
    """Guards: a place that logs, errors, tables and pages show."""
    canary = Canary("url")
    key = re.sub(r"[^A-Za-z0-9]", "", canary.password)
    given = ["uri=mongodb://h", "collections=a.b", "sink.path=/lake"]
    url = SIGNED[form].format(key=key)
    assert canary.is_in(url.encode())
    with pytest.raises(BadOption) as caught:
        configuration.load(None, [*given, option.format(url=url)])
    assert not canary.is_in(str(caught.value).encode())
    name, _, value = option.format(url=url).partition("=")
    if option in PLACES:
        section, _, name = name.partition(".")
        file = tmp_path / "pipeline.toml"
        file.write_text(f'[{section}]\n{name} = "{value}"\n')
        others = given[: 2 if name == "path" else 3]
        with pytest.raises(BadOption, match=name) as caught:
            configuration.load(str(file), others)
        assert not canary.is_in(str(caught.value).encode())


@pytest.mark.parametrize("name", ["access.key", "secret.key", "session.token"])
def test_a_key_of_a_store_in_plain_is_refused_and_shown_nowhere(name: str) -> None:
    canary = Canary("plain")
    given = ["uri=mongodb://h", "collections=a.b", "sink.path=s3a://lake/shop"]
    for value in (canary.password, quote(canary.password)):
        with pytest.raises(BadOption, match="contains its value") as caught:
            configuration.load(None, [*given, f"storage.{name}={value}"])
        assert not canary.is_in(str(caught.value).encode())
