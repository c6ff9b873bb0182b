"""Credentials of a store among the settings of Spark: what the command line of the JVM and Spark's
event log show of them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from cdc.pipeline.spark.spark_session import SETTINGS, _without_credentials
from tests.security.leaks import Canary, Watched, reported
from tests.security.test_canary import Place

_STORE = "store.dfs.core.windows.net"
CREDENTIALS = (
    "spark.hadoop.fs.s3a.access.key",
    "spark.hadoop.fs.s3a.secret.key",
    "spark.hadoop.fs.s3a.session.token",
    "spark.hadoop.fs.s3a.bucket.lake.access.key",
    "spark.hadoop.fs.s3a.bucket.lake.secret.key",
    "spark.hadoop.fs.s3a.encryption.key",
    "spark.hadoop.fs.s3a.server-side-encryption.key",
    f"spark.hadoop.fs.azure.account.key.{_STORE}",
    f"spark.hadoop.fs.azure.account.oauth2.client.secret.{_STORE}",
    f"spark.hadoop.fs.azure.sas.fixed.token.{_STORE}",
    "spark.hadoop.fs.azure.sas.lake.store.blob.core.windows.net",
    "spark.hadoop.fs.gs.auth.service.account.private.key",
    "spark.hadoop.fs.oss.accessKeySecret",
    "spark.executorEnv.AWS_ACCESS_KEY_ID",
    "spark.executorEnv.AWS_SECRET_ACCESS_KEY",
    "spark.executorEnv.AWS_SESSION_TOKEN",
    "spark.executorEnv.AZURE_STORAGE_KEY",
    "spark.executorEnv.AZURE_STORAGE_CONNECTION_STRING",
    "spark.executorEnv.AZURE_STORAGE_SAS_TOKEN",
)
PLAIN = {
    "spark.hadoop.fs.s3a.endpoint": "https://minio.example:9000",
    "spark.hadoop.fs.s3a.aws.credentials.provider": "org.example.Provider",
    "spark.hadoop.fs.s3a.path.style.access": "true",
    "spark.sql.shuffle.partitions": "3",
}
# What a setting of another name may contain.
VALUES = (
    "https://lake.s3.amazonaws.com/x?X-Amz-Signature=1",
    "https://store.blob.core.windows.net/lake/x?sv=2024-08-04&sig=1",
    "DefaultEndpointsProtocol=https;AccountName=store;AccountKey=1",
)


@pytest.mark.parametrize("name", CREDENTIALS)
def test_the_name_of_a_credential_is_one_that_spark_redacts(name: str) -> None:
    assert re.search(SETTINGS["spark.redaction.regex"], name)
    assert _without_credentials({name: "x", **PLAIN}) == [*PLAIN.items()]


@pytest.mark.parametrize("value", VALUES)
def test_a_value_that_is_a_credential_by_its_form_is_one_that_spark_redacts(value: str) -> None:
    assert re.search(SETTINGS["spark.redaction.regex"], value)


@pytest.mark.parametrize("name", PLAIN)
def test_other_settings_are_shown(name: str) -> None:
    assert not re.search(SETTINGS["spark.redaction.regex"], f"{name}={PLAIN[name]}")


PROGRAM = """
import sys
from cdc.pipeline import config as configuration, session
config = configuration.load(sys.argv[1])
spark = session("settings", "local[1]", config=config)
found = spark.sparkContext._jsc.hadoopConfiguration()
for name, value in config.spark.items():
    assert spark.sparkContext.getConf().get(name) == value, name
    short = name.removeprefix("spark.hadoop.")
    assert short == name or found.get(short) == value, name
spark.range(3).write.format("delta").save(sys.argv[2])
spark.sparkContext.addFile(sys.argv[3])  # Spark then reports its environment once more
print(spark.read.format("delta").load(sys.argv[2]).count())
"""


@pytest.mark.slow
def test_keys_in_the_settings_of_spark_are_on_no_command_line_and_in_no_event_log(
    tmp_path: Path,
) -> None:
    """Guards: `ps`, which shows everybody what the launcher gives the JVM; settings of Hadoop, jobs
    and statements in the event log."""
    place, secrets, canary = Place(tmp_path / "place"), tmp_path / "secrets", Canary("setting")
    for folder in (place.folder, secrets):
        folder.mkdir()
    file = secrets / "pipeline.toml"
    settings = dict.fromkeys(CREDENTIALS, "cAnArYsetting") | PLAIN
    lines = [f'"{name.removeprefix("spark.")}" = "{value}"' for name, value in settings.items()]
    file.write_text(
        "[source]\nuri = 'mongodb://h'\ncollections = ['a.b']\n[sink]\npath = '/lake'\n[spark]\n"
        + "\n".join(lines)
    )
    assert canary.is_in(file.read_bytes())
    other = place.folder / "file"
    other.touch()
    arguments = [str(file), str(place.folder / "lake"), str(other)]
    with place.said("settings") as said:
        job = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *arguments],
            stdout=said,
            stderr=subprocess.STDOUT,
            env=place.environment,
            cwd=place.folder,
        )
        with Watched([canary], job.pid, place.folder) as watched:
            code = job.wait(240)
    assert code == 0, (place.folder / "said" / "settings").read_text()[-3000:]
    assert "java" in watched.seen.values()
    assert watched.found == set()
    for name in CREDENTIALS:
        assert f'"{name}":"*********(redacted)"' in place.events, name
    for name, value in PLAIN.items():
        assert f'"{name}":"{value}"' in place.events
    assert "SparkListenerSQLExecutionStart" in place.events
    assert reported([canary], place.folder) == []
