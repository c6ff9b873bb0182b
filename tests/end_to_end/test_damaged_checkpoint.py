"""A checkpoint whose last files are damaged or gone: the job says so before it reads anything, and
`repair-checkpoint` makes it go on without a change lost or doubled."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cdc.checkpoint import (
    Folder,
    HadoopFiles,
    LocalFiles,
    checkpoint,
    plan_repair,
    require_whole,
)
from cdc.delta.log import LocalReader, SparkReader
from cdc.delta.tables import PIPELINE
from cdc.demo import ReplicaSet
from cdc.errors import CheckpointDamaged, CheckpointInUse, ForeignOffset, TableOwnedElsewhere
from cdc.model import Namespace
from cdc.pipeline import access_by_spark, access_locally, repair
from cdc.pipeline.table_commits import TableBatches, read_table_batches
from tests.end_to_end.oracle import Checkpoint, OfReplicaSet, violations
from tests.end_to_end.past import Past, past_of
from tests.jvm import WITHOUT_CHECKSUMS
from tests.slow import slow_but


@pytest.fixture(scope="module")
def past(
    spark: SparkSession, mongod: ReplicaSet, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Past]:
    folder = tmp_path_factory.mktemp("past") / "lakehouse"
    settings = ("document.format=bson", "server.timeout.ms=3000")
    with past_of(spark, mongod, Namespace("damaged", "orders"), folder, *settings) as past:
        yield past


def damaged(path: Path, data: bytes | None, has_checksum: bool = False) -> None:
    """The file as it is after a power loss; with its old checksum, or without one."""
    checksum = path.with_name(f".{path.name}.crc")
    if not has_checksum:
        checksum.unlink(missing_ok=True)
    path.unlink(missing_ok=True)
    if data is not None:
        path.write_bytes(data)


def cuts(text: bytes) -> Iterator[bytes]:
    """What may be left of a file: nothing, parts up to each line's end and within each, zeros."""
    ends = [number for number, byte in enumerate(text) if byte == 10]
    for end in (0, *ends, *(end + 1 for end in ends), *(end + 9 for end in ends), len(text) - 1):
        yield text[:end]
    yield bytes(len(text))
    yield b"\xff\xfe\x80" * (len(text) // 3)


def as_well_formed(text: bytes) -> bytes:
    """Another text of the same version: each digit is another one."""
    *version, rest = text.split(b"\n", 1)
    return b"\n".join([*version, rest.translate(bytes.maketrans(b"0123456789", b"1234567890"))])


def test_each_damage_of_the_last_files_is_reported_before_anything_is_read(
    past: Past, tmp_path: Path
) -> None:
    """Guards: Spark's own errors name no file, or begin anew with a new id."""
    whole, last = past.folder / "_checkpoint", past.last
    nowhere = [f"sink.checkpoint={tmp_path / 'c'}", "uri=mongodb://127.0.0.1:1"]
    config = past.config(past.folder, *nowhere)
    folder = tmp_path / "c"
    names = [f"offsets/{last}", f"offsets/{last - 1}", f"commits/{last}", "metadata"]
    for name in names:
        text = (whole / name).read_bytes()
        other = as_well_formed(text)
        assert other != text
        for data in [*cuts(text), other, None]:
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(whole, folder)
            damaged(folder / name, data, has_checksum=data == other)
            if name.startswith("commits") and data is None:
                continue  # a batch that was planned, and not written yet
            with pytest.raises(CheckpointDamaged, match=f"{folder}/{name} is") as raised:
                past.once(config)
            assert "mongodb-cdc repair-checkpoint" in str(raised.value.remedy), (name, data)
            if name == names[0] and data != other:
                with pytest.raises(CheckpointDamaged, match=f"{folder}/{name} is"):
                    checkpoint.read(config.checkpoint)  # as `status` does, which knows no checksums


CASES = list(
    itertools.product(
        ("whole", "damaged", "gone"),
        ("whole", "damaged"),
        ("whole", "damaged", "gone"),
        ("whole", "damaged"),
        range(-1, 3),
    )
)


@pytest.mark.slow
def test_the_way_back_ends_at_a_batch_as_it_was_and_at_none_that_is_older_than_the_tables(
    past: Past, tmp_path: Path
) -> None:
    """Whatever is damaged, and wherever the repair is interrupted."""
    whole, last = past.folder / "_checkpoint", past.last
    assert last == 2
    original = {n: lines(whole / f"offsets/{n}") for n in range(last + 1)}
    truth = TableBatches("it", None, {})
    refused = 0
    for *hows, newest in CASES:
        folder = Folder(LocalFiles(), str(tmp_path / "c"))
        of_tables = replace(truth, newest=None if newest < 0 else newest)
        if newest >= 0:
            of_tables = replace(of_tables, ends={newest: original[newest]})
        begun = partial_damage(whole, tmp_path / "c", last, hows)
        begun()
        try:
            steps = plan_repair(folder, of_tables)
        except CheckpointDamaged:
            refused += 1
            assert hows[1] == "damaged"
            continue
        for interrupted in range(len(steps) + 1):
            begun()
            for step in plan_repair(folder, of_tables)[:interrupted]:
                step.run()
            if interrupted:
                refuses_to_start_or_is_right_to(folder, original, newest)
            for step in plan_repair(folder, of_tables):
                step.run()
            case = (*hows, newest, interrupted)
            require_whole(folder)
            goes_on_from_the_truth(folder, original, newest, case)
            assert plan_repair(folder, of_tables) == [], case
    assert 0 < refused < len(CASES) / 3


def partial_damage(whole: Path, into: Path, last: int, hows: list[str]) -> Callable[[], None]:
    """How the last two offsets are, and the last two commits."""
    names = [f"{log}/{batch}" for log in ("offsets", "commits") for batch in (last, last - 1)]

    def begin() -> None:
        shutil.rmtree(into, ignore_errors=True)
        shutil.copytree(whole, into)
        for name, how in zip(names, hows, strict=True):
            if how != "whole":
                damaged(into / name, b"v1\n" if how == "damaged" else None)

    return begin


def refuses_to_start_or_is_right_to(folder: Folder, original: dict[int, Any], newest: int) -> None:
    try:
        require_whole(folder)
    except CheckpointDamaged:
        return
    goes_on_from_the_truth(folder, original, newest, "interrupted")


def goes_on_from_the_truth(
    folder: Folder, original: dict[int, Any], newest: int, case: object
) -> None:
    """What is planned is what was planned; or nothing was, and no table has it."""
    planned, written = folder.numbers("offsets"), folder.numbers("commits")
    batch = max(planned)
    assert batch >= newest, case
    assert max(written) <= batch, case
    assert lines_of(folder, batch) == original[batch], case
    if max(written) < batch:
        assert lines_of(folder, batch - 1) == original[batch - 1], case


def lines(path: Path) -> Any:
    return json.loads(path.read_text().split("\n")[2])


def lines_of(folder: Folder, batch: int) -> Any:
    found = folder.read_plan(batch)
    return found and found.offset.to_json()


ALL, NONE = (lambda table: False), (lambda table: True)
STATES = {
    "in no table, and not committed": (NONE, False),
    "in the changelog alone": (lambda table: "mirror" in table, False),
    "in all tables, and not committed": (ALL, False),
    "in all tables, and committed": (ALL, True),
}


@pytest.mark.parametrize(
    "state", slow_but([], STATES, soak=STATES.keys() - {"in the changelog alone"})
)
def test_a_repaired_checkpoint_goes_on_without_a_change_lost_or_doubled(
    past: Past, mongod: ReplicaSet, spark: SparkSession, tmp_path: Path, state: str
) -> None:
    without, is_committed = STATES[state]
    config = past.copied(tmp_path / "lakehouse", without)
    folder = tmp_path / "lakehouse/_checkpoint"
    damaged(folder / f"offsets/{past.last}", b"v1\n{")
    if not is_committed:
        damaged(folder / f"commits/{past.last}", None)
    before = sorted(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    planned = repair(access_locally(config), config, dry_run=True)
    assert sorted(path.read_bytes() for path in folder.rglob("*") if path.is_file()) == before
    done = repair(access_locally(config), config)
    assert [step.description for step in done] == [step.description for step in planned]
    assert repair(access_locally(config), config) == []
    with mongod.client() as client:
        client[past.orders.db].orders.update_one({"_id": 0}, {"$inc": {"n": 1}})
        past.once(config)
        reported = violations(spark, OfReplicaSet(client), config, Checkpoint(config), past.orders)
        newest = client[past.orders.db].orders.find_one({"_id": 0})
    assert reported == []
    log = config.table("changelog", past.orders)
    assert log is not None
    assert newest is not None
    rows = log.target.read(spark).where("key = '0' AND op = 'update'").count()
    assert rows == newest["n"]
    assert Checkpoint(config).committed() >= past.last


@pytest.mark.parametrize("commits", slow_but([], ["21", "1", "10", "210"], soak=["1", "10", "210"]))
def test_damaged_commits_are_removed_down_to_one_that_is_whole(
    past: Past, mongod: ReplicaSet, spark: SparkSession, tmp_path: Path, commits: str
) -> None:
    """Guards: the last one gone, there is one before it which a query reads; a batch whose commit
    was removed, and which a mirror lacks for ever."""
    config = past.copied(tmp_path / "lakehouse", lambda table: "mirror" in table, since=1)
    folder, seen = tmp_path / "lakehouse/_checkpoint", Checkpoint(config)
    seen.planned()
    for batch in {past.last, *map(int, commits)}:
        damaged(folder / f"commits/{batch}", b"v1\n{" if str(batch) in commits else None)
    if commits == "21":
        damaged(folder / "offsets/0", b"")  # which is not asked for, and not repaired
    done = [step.description for step in repair(access_locally(config), config)]
    assert done == [f"remove commits/{batch}" for batch in commits]
    assert checkpoint.read(config.checkpoint).planned == past.last
    past.once(config)
    found = checkpoint.read(config.checkpoint)
    assert found.last is not None
    assert found.last.batch >= past.last
    with mongod.client() as client:
        truth = OfReplicaSet(client)
        assert violations(spark, truth, config, seen, past.orders) == []


def test_where_no_checkpoint_is_nothing_is_repaired_or_made(
    past: Past, spark: SparkSession, tmp_path: Path
) -> None:
    """Guards: a mistyped name makes a pipeline twice, and Delta skips what one of them writes."""
    folder = tmp_path / "mistyped"
    config = past.config(past.folder, f"sink.checkpoint={folder}")
    for is_dry in (True, False):
        with pytest.raises(CheckpointDamaged, match="nothing to repair"):
            repair(access_locally(config), config, is_dry)
    assert not folder.exists()
    (folder / "offsets").mkdir(parents=True)
    with pytest.raises(CheckpointDamaged, match="nothing to repair"):
        repair(access_locally(config), config)
    assert [*folder.rglob("*")] == [folder / "offsets"]


def test_a_lost_name_that_tables_do_not_contain_is_written_as_the_remedy_says(
    past: Past, spark: SparkSession, tmp_path: Path
) -> None:
    config = past.copied(tmp_path / "lakehouse")
    metadata = tmp_path / "lakehouse/_checkpoint/metadata"
    its = metadata.read_text()
    table = config.table("mirror", past.orders)
    assert table is not None
    other = f"ALTER TABLE delta.`{table.target}` SET TBLPROPERTIES ('{PIPELINE}' = 'other')"
    spark.sql(other)
    damaged(metadata, b"{", has_checksum=True)
    with pytest.raises(CheckpointDamaged, match="several pipelines own the tables") as raised:
        repair(access_locally(config), config)
    assert ".metadata.crc" in str(raised.value.remedy)
    metadata.write_text(its)
    metadata.with_name(".metadata.crc").unlink()
    assert repair(access_locally(config), config) == []


def test_a_lost_name_is_taken_from_the_tables(
    past: Past, spark: SparkSession, tmp_path: Path
) -> None:
    config = past.copied(tmp_path / "lakehouse")
    metadata = tmp_path / "lakehouse/_checkpoint/metadata"
    its = json.loads(metadata.read_text())
    damaged(metadata, b"")
    repair(access_locally(config), config)
    assert json.loads(metadata.read_text()) == its


@pytest.mark.slow
def test_a_lost_name_is_taken_from_tables_of_several_collections(
    mongod: ReplicaSet, spark: SparkSession, tmp_path: Path
) -> None:
    """Guards: another name, with which the tables accept no run and no repair any more."""
    orders = Namespace("damaged_shared", "orders")
    shared = "table.changelog=all/log", "table.mirror=all/mirror"
    with past_of(spark, mongod, orders, tmp_path, *shared) as past:
        metadata = tmp_path / "_checkpoint/metadata"
        its = json.loads(metadata.read_text())
        damaged(metadata, b"")
        config = past.config(tmp_path)
        repair(access_locally(config), config)
        assert json.loads(metadata.read_text()) == its
        past.once(config)


@pytest.fixture
def with_checksums(spark: SparkSession) -> Iterator[None]:
    """Hadoop's own way to rename a file, with the checksum beside it."""
    settings, [(key, without)] = spark._jsc.hadoopConfiguration(), WITHOUT_CHECKSUMS.items()
    name = key.removeprefix("spark.hadoop.")
    settings.set(name, "org.apache.hadoop.fs.local.LocalFs")
    yield
    settings.set(name, without)


@pytest.mark.usefixtures("with_checksums")
def test_files_are_read_and_written_as_hadoop_does(spark: SparkSession, tmp_path: Path) -> None:
    """Guards: a checksum that Spark refuses, and a damaged file that Spark would not read."""
    local, hadoop = LocalFiles(), HadoopFiles(spark)
    path, checksum = tmp_path / "offsets/7", tmp_path / "offsets/.7.crc"
    for size in (0, 1, 511, 512, 513, 1500):
        content = bytes(number % 251 for number in range(size))
        for writer in (hadoop, local):
            writer.replace(str(path), content)
            assert local.read(str(path)) == hadoop.read(str(path)) == content
            assert sorted(local.names(str(path.parent))) == [".7.crc", "7"]
            assert hadoop.names(str(path.parent)) == ["7"]
    whole, sums = path.read_bytes(), checksum.read_bytes()
    for data in (whole[:-1], whole[:512], whole + b"x", whole[:700] + b"x" + whole[701:], b""):
        path.write_bytes(data)
        assert local.read(str(path)) is None
        # Hadoop reads as much as the checksum covers: it does not find each cut.
        assert hadoop.read(str(path)) in (None, whole[:512], whole, b"")
    path.write_bytes(whole)
    for damage in (*(sums[:length] for length in range(len(sums))), bytes(len(sums)), sums + b"1"):
        checksum.write_bytes(damage)
        if local.read(str(path)) == whole:
            assert hadoop.read(str(path)) == whole, damage
    checksum.write_bytes(sums)
    local.remove(str(path))
    assert [*path.parent.iterdir()] == []


@pytest.mark.usefixtures("with_checksums")
def test_a_repair_by_spark_takes_the_same_steps(
    past: Past, spark: SparkSession, tmp_path: Path
) -> None:
    """As for a checkpoint or tables elsewhere than on this machine."""
    config = past.copied(tmp_path / "lakehouse")
    damaged(tmp_path / f"lakehouse/_checkpoint/offsets/{past.last}", b"v1\n{")
    planned = [each.description for each in repair(access_locally(config), config, dry_run=True)]
    done = [each.description for each in repair(access_by_spark(spark), config)]
    assert done == planned
    assert done
    require_whole(Folder(LocalFiles(), config.checkpoint))


def test_what_nobody_knows_is_refused_and_never_begun_anew(
    past: Past, spark: SparkSession, tmp_path: Path
) -> None:
    config = past.copied(tmp_path / "lakehouse", without=NONE)
    folder = tmp_path / "lakehouse/_checkpoint"
    shutil.rmtree(folder / "offsets")
    with pytest.raises(CheckpointDamaged, match=f"offsets/{past.last} is missing"):
        past.once(config)
    repair(access_locally(config), config)
    require_whole(Folder(LocalFiles(), config.checkpoint))
    for log in ("offsets", "commits"):
        shutil.rmtree(folder / log)
    with pytest.raises(CheckpointDamaged, match="contains no batch, but the table at"):
        past.once(config)
    with pytest.raises(CheckpointDamaged, match="is recorded neither in"):
        repair(access_locally(config), config)
    shutil.rmtree(folder)
    with pytest.raises(TableOwnedElsewhere, match="this checkpoint") as raised:
        past.once(config)
    assert "put the checkpoint back" in str(raised.value.remedy)
    assert not folder.exists()


def test_a_first_batch_that_is_in_no_table_is_planned_anew(
    past: Past, spark: SparkSession, tmp_path: Path
) -> None:
    config = past.config(tmp_path / "lakehouse")
    folder = tmp_path / "lakehouse/_checkpoint"
    shutil.copytree(past.folder / "_checkpoint", folder)
    shutil.rmtree(folder / "commits")
    for batch in (1, 2):
        damaged(folder / f"offsets/{batch}", None)
    damaged(folder / "offsets/0", b"")
    assert [step.description for step in repair(access_locally(config), config)] == [
        "remove offsets/0"
    ]
    require_whole(Folder(LocalFiles(), config.checkpoint))
    # What a run leaves that is killed while it plans its first batch.
    (folder / "offsets/.0.0b5e6f2c-8a4f-4d5c-9d55-3a1f0c7e7c11.tmp").write_bytes(b"v1")
    past.once(config)
    assert Checkpoint(config).committed() >= 0


def test_an_offset_of_a_later_release_is_no_damage_and_refused(
    past: Past, spark: SparkSession, tmp_path: Path
) -> None:
    config = past.copied(tmp_path / "lakehouse")
    path = tmp_path / f"lakehouse/_checkpoint/offsets/{past.last}"
    version, about, offset = path.read_text().split("\n")
    later = json.dumps({**json.loads(offset), "version": 99, "more": 1})
    damaged(path, "\n".join((version, about, later)).encode())
    for start in (past.once, lambda config: repair(access_locally(config), config)):
        with pytest.raises(ForeignOffset, match="version 99"):
            start(config)


def test_one_job_at_a_time_goes_on_with_a_checkpoint(
    past: Past, spark: SparkSession, tmp_path: Path
) -> None:
    """Guards: files that the one is writing are damaged to the other."""
    config = past.copied(tmp_path / "lakehouse")
    damaged(tmp_path / f"lakehouse/_checkpoint/offsets/{past.last}", b"")
    with checkpoint.lock_checkpoint(config.checkpoint):
        for start in (past.once, lambda config: repair(access_locally(config), config)):
            with pytest.raises(CheckpointInUse, match="Another job runs"):
                start(config)


def test_tables_report_the_end_of_their_last_batch(past: Past, spark: SparkSession) -> None:
    found = read_table_batches(LocalReader(), past.config(past.folder), None)
    assert found == read_table_batches(SparkReader(spark), past.config(past.folder), None)
    its = json.loads((past.folder / "_checkpoint/metadata").read_text())
    last = past.folder / f"_checkpoint/offsets/{past.last}"
    assert found == TableBatches(its["id"], past.last, {past.last: lines(last)})
