"""Data files in an object store, without Spark."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from cdc.errors import BadOption, TableOwnedElsewhere
from cdc.tasks import DataFiles, Part, Storage, explain, probe_file, remove
from tests.mongo.capture import until
from tests.object_store import ObjectStore, object_store

ROWS = pa.RecordBatch.from_pydict({"n": [1, 2, 3]})
BASE = "s3a://lake/shop"


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    with object_store() as each:
        yield each


@pytest.fixture
def storage(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> Storage:
    monkeypatch.setenv("S3_ACCESS", store.access_key)
    monkeypatch.setenv("S3_SECRET", store.secret_key)
    return Storage(
        {"endpoint": store.endpoint, "access.key": "env:S3_ACCESS", "secret.key": "env:S3_SECRET"}
    )


def names(storage: Storage, folder: str) -> list[str]:
    system, path = storage.locate(folder)
    selector = fs.FileSelector(path, recursive=True, allow_not_found=True)
    found = system.get_file_info(selector)
    return sorted(each.path for each in found if each.is_file)


@pytest.mark.parametrize("scheme", ["s3", "s3a", "s3n"])
def test_a_data_file_lies_at_its_url_and_is_whole(storage: Storage, scheme: str) -> None:
    files = DataFiles(2**27, storage)
    files.add(Part(f"{scheme}://lake/{scheme}/t", ROWS))
    [file] = files.finish()
    assert file.made is None
    system, path = storage.locate(file.path)
    assert path == f"lake/{scheme}/t/{file.name}"
    assert system.get_file_info(path).size == file.size
    assert pq.read_table(path, filesystem=system).to_pydict() == {"n": [1, 2, 3]}


def test_a_task_that_fails_leaves_nothing_in_the_store(storage: Storage) -> None:
    files = DataFiles(1, storage)
    files.add(Part(f"{BASE}/done", ROWS))
    [done] = files.finish()  # closed; removed all the same
    half = DataFiles(2**40, storage)
    half.add(Part(f"{BASE}/open", ROWS))
    half._write((f"{BASE}/open", False))
    files.discard()
    half.discard()
    assert done.size
    assert names(storage, BASE) == []


def test_a_killed_task_leaves_parts_of_an_upload_and_no_object(
    store: ObjectStore, storage: Storage
) -> None:
    """Guards: half of a file that a reader, or the next attempt, takes for a whole one."""
    writer = subprocess.Popen([sys.executable, "-c", _WRITER, store.endpoint, f"{BASE}/killed"])
    client = store.client()

    def uploads() -> list[str]:
        return [
            each["Key"] for each in client.list_multipart_uploads(Bucket="lake").get("Uploads", [])
        ]

    try:
        until(uploads, 60)
    finally:
        writer.kill()
        writer.wait()
    assert names(storage, f"{BASE}/killed") == []
    [left] = uploads()
    files = DataFiles(2**27, storage)
    files.add(Part(f"{BASE}/killed", ROWS))
    [file] = files.finish()
    assert names(storage, f"{BASE}/killed") == [f"lake/shop/killed/{file.name}"]
    assert not left.endswith(file.name)


# A task that never completes its file.
_WRITER = """
import sys
import numpy as np
import pyarrow as pa
from cdc.tasks import DataFiles, Part, Storage
keys = {"access.key": "env:S3_ACCESS", "secret.key": "env:S3_SECRET"}
files = DataFiles(2**40, Storage({"endpoint": sys.argv[1], **keys}))
while True:
    rows = pa.RecordBatch.from_pydict({"n": np.random.default_rng().integers(2**62, size=2**18)})
    files.add(Part(sys.argv[2], rows))
"""


def test_leftovers_of_a_batch_are_removed_and_nothing_else(storage: Storage) -> None:
    files = DataFiles(1, storage)
    files.add(Part(f"{BASE}/left", ROWS))
    files.add(Part(f"{BASE}/stays", ROWS))
    left, stays = sorted(files.finish(), key=lambda file: file.folder)
    remove([left, left], storage)
    assert names(storage, f"{BASE}/left") == []
    assert names(storage, f"{BASE}/stays") == [f"lake/shop/stays/{stays.name}"]
    remove([stays], storage)


def test_a_folder_with_files_of_others_takes_none(storage: Storage) -> None:
    system, path = storage.locate(f"{BASE}/foreign")
    with system.open_output_stream(f"{path}/part-0.parquet") as stream:
        stream.write(b"x")
    files = DataFiles(1, storage)
    files.add(Part(f"{BASE}/foreign", ROWS))
    with pytest.raises(TableOwnedElsewhere, match="holds files"):
        files.finish()
    system.delete_file(f"{path}/part-0.parquet")


@pytest.mark.parametrize("name", ["S3_ACCESS", "S3_SECRET"])
def test_a_wrong_key_is_refused_with_the_options_and_without_the_key(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "wrong-and-secret")
    with pytest.raises(OSError) as caught, probe_file(storage, BASE, "_probe"):
        pass
    assert "'access.key' and 'secret.key' in [storage]" in explain(caught.value)
    assert "wrong" not in explain(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"access.key": "AKIA123", "secret.key": "env:X"},
        {"access.key": "env:X", "secret.key": "sesame"},
        {"access.key": "env:X"},
        {"anonymous": "maybe"},
        {"anonymous": "true", "access.key": "env:X", "secret.key": "env:Y"},
        {"endpoint": "https://user:sesame@host"},
        {"endpoint": "host:9000"},
    ],
)
def test_options_that_contain_a_secret_or_exclude_each_other_are_refused(
    options: dict[str, str],
) -> None:
    with pytest.raises(BadOption, match=r"\[storage\]") as caught:
        Storage(options)
    assert "sesame" not in str(caught.value)
    assert "AKIA123" not in str(caught.value)


def test_a_percent_sign_in_a_url_is_a_letter_as_for_hadoop() -> None:
    """Guards: tasks that write a file where no reader of the table looks."""
    system, path = Storage().locate("gs://lake/shop/my%20orders/%2E%2E/")
    assert (system.type_name, path) == ("gcs", "lake/shop/my%20orders/%2E%2E")


def test_hadoop_gets_the_same_options_for_the_bucket_alone(
    storage: Storage, store: ObjectStore
) -> None:
    found = storage.hadoop(f"{BASE}/x")
    assert {name.removeprefix("fs.s3a.bucket.lake.") for name in found} >= {
        *("endpoint", "access.key", "secret.key", "path.style.access")
    }
    assert found["fs.s3a.bucket.lake.secret.key"] == store.secret_key
    assert store.secret_key not in repr(storage)
    assert storage.hadoop("/local") == storage.hadoop("gs://lake") == {}
