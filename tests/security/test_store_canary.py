"""Keys of an object store and their temporary token are in nothing that a pipeline writes, prints,
shows or passes on."""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from pymongo import MongoClient

from cdc.demo import ReplicaSet
from cdc.demo.mongod import find_free_ports
from cdc.errors import BadOption
from cdc.tasks import DataFiles, Part, Storage, explain
from tests.object_store import ObjectStore, object_store
from tests.security.leaks import Canary, Watched, reported
from tests.security.test_canary import Place, ran
from tests.slow import slow_but

OPTIONS = ("access.key", "secret.key", "session.token")
VARIABLES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")


class Temporary(NamedTuple):
    """A store, and three canaries that are the temporary keys which it lets in."""

    store: ObjectStore
    canaries: list[Canary]
    keys: list[str]

    def given(
        self, way: str, folder: Path, keys: list[str] | None = None
    ) -> tuple[list[str], dict[str, str]]:
        """Options and the environment that lead to the keys in a way."""
        keys = keys or self.keys
        options = [f"storage.endpoint={self.store.endpoint}"]
        if way == "machine":
            return options, dict(zip(VARIABLES, keys, strict=True))
        environment = {}
        for name, key in zip(OPTIONS, keys, strict=True):
            variable = f"STORE_{name.replace('.', '_').upper()}"
            (folder / name).write_text(key)
            place = f"env:{variable}" if way == "env" else f"file:{folder / name}"
            options.append(f"storage.{name}={place}")
            environment |= {variable: key} if way == "env" else {}
        return options, environment


@pytest.fixture(scope="module")
def temporary() -> Iterator[Temporary]:
    canaries = [Canary(name) for name in ("access", "secret", "token")]
    keys = ["ASIAcAnArYaccess", "cAnArYsecret/+=", "cAnArYtoken//+=="]
    assert all(each.is_in(key.encode()) for each, key in zip(canaries, keys, strict=True))
    with object_store() as store:
        store.assume_role(*keys)
        yield Temporary(store, canaries, keys)


@pytest.mark.parametrize("wrong", [0, 1, 2])
def test_a_task_with_a_wrong_temporary_key_says_so_without_it(
    temporary: Temporary, wrong: int, tmp_path: Path
) -> None:
    """Guards: an answer of a store, which may repeat what it was asked with."""
    keys = [key + "x" * (number == wrong) for number, key in enumerate(temporary.keys)]
    options, _ = temporary.given("file", tmp_path, keys)
    given = dict(option.removeprefix("storage.").split("=", 1) for option in options)
    files = DataFiles(1, Storage(given))
    files.add(Part("s3a://lake/x", pa.RecordBatch.from_pydict({"n": [1]})))
    with pytest.raises(OSError) as caught:
        files.finish()
    for text in (str(caught.value), explain(caught.value), repr(Storage(given))):
        assert not any(each.is_in(text.encode()) for each in temporary.canaries), text
    files.discard()


def test_a_file_of_a_key_that_is_gone_is_named_and_not_quoted(
    temporary: Temporary, tmp_path: Path
) -> None:
    options, _ = temporary.given("file", tmp_path)
    given = dict(option.removeprefix("storage.").split("=", 1) for option in options)
    (tmp_path / "session.token").write_bytes(temporary.keys[2].encode() + b"\xff")
    with pytest.raises(BadOption, match=r"storage.session.token") as caught:
        Storage(given).locate("s3a://lake/x")
    assert not any(each.is_in(str(caught.value).encode()) for each in temporary.canaries)
    assert caught.value.__cause__ is None


@pytest.mark.timeout(900)
@pytest.mark.parametrize("way", slow_but([], ["env", "file", "machine"], soak=["env", "machine"]))
def test_a_pipeline_into_a_store_writes_its_keys_and_its_token_nowhere(
    mongod: ReplicaSet,
    mongo: MongoClient[dict[str, Any]],
    temporary: Temporary,
    way: str,
    tmp_path: Path,
) -> None:
    """Guards: settings of Hadoop, which Spark's event log contains; splits and sources, which tasks
    get; objects, the checkpoint, metrics, the status as JSON and as a page; errors of wrong keys.

    What is given as `machine` is what Amazon's libraries look for themselves.
    """
    place, secrets = Place(tmp_path / "place"), tmp_path / "secrets"
    for folder in (place.folder, secrets):
        folder.mkdir()
    database = f"stored_{way}"
    mongo[database].create_collection("orders", changeStreamPreAndPostImages={"enabled": True})
    mongo[database].orders.insert_many({"_id": number, "n": number} for number in range(50))
    options, environment = temporary.given(way, secrets)
    options += [f"uri={mongod.uri}", f"collections={database}.orders"]
    options += [f"sink.path=s3a://lake/{way}", f"sink.checkpoint={place.folder / 'checkpoint'}"]
    given = [argument for option in options for argument in ("-o", option)]
    [port] = find_free_ports(1)
    replicate = ["cdc.cli.replicate", "--available-now", *given]
    with place.said("replicate") as said:
        job = subprocess.Popen(
            [sys.executable, "-m", *replicate, "--metrics-port", str(port)],
            stdout=said,
            stderr=subprocess.STDOUT,
            env={**place.environment, **environment},
            cwd=place.folder,
        )
        with Watched(temporary.canaries, job.pid, place.folder) as watched:
            metrics = "".join(scraped(job, f"http://127.0.0.1:{port}/metrics"))
    assert job.returncode == 0, (place.folder / "said" / "replicate").read_text()[-3000:]
    (place.folder / "said" / "metrics").write_text(metrics)
    assert "mongodb_cdc" in metrics
    assert "java" in watched.seen.values()
    assert watched.found == set()
    page = str(place.folder / "status.html")
    assert ran(
        place, "status", ["cdc.cli.status", "--json", "--html", page, *given], environment
    ) in (0, 6)
    # Wrong ones, which contain what is looked for.
    options, environment = temporary.given(way, secrets, [key + "x" for key in temporary.keys])
    wrong = [*replicate, *(argument for option in options for argument in ("-o", option))]
    assert ran(place, "wrong", wrong, environment) == 2
    assert "cannot" in (place.folder / "said" / "wrong").read_text()
    assert "SparkListenerEnvironmentUpdate" in place.events
    assert "QueryProgressEvent" in place.events
    assert reported(temporary.canaries, place.folder) == []
    objects = dict(stored(temporary.store, f"{way}/"))
    assert any(name.endswith(".parquet") for name in objects)
    for name, content in objects.items():
        found = [each for each in temporary.canaries if each.is_in(name.encode() + content)]
        assert found == [], name
    mongo.drop_database(database)


def scraped(job: subprocess.Popen[bytes], address: str) -> Iterator[str]:
    """What a program answers at an address as long as it runs."""
    while job.poll() is None:
        with suppress(OSError), urllib.request.urlopen(address, timeout=5) as answer:
            yield answer.read().decode()
        time.sleep(0.5)


def stored(store: ObjectStore, prefix: str) -> Iterator[tuple[str, bytes]]:
    """The objects of the bucket below a prefix, by their keys."""
    client = store.client()
    for page in client.get_paginator("list_objects_v2").paginate(Bucket="lake", Prefix=prefix):
        for each in page.get("Contents", []):
            yield each["Key"], client.get_object(Bucket="lake", Key=each["Key"])["Body"].read()
