"""The files for containers, which nothing here can run, name what is there."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import version
from typing import Any

import pytest
import yaml

from cdc.cli.commands import command
from cdc.model import Namespace
from cdc.pipeline import config as configuration
from cdc.pipeline.spark.spark_session import SETTINGS, delta_packages
from tests.documents import ROOT

_DOCKERFILE = (ROOT / "conf/Dockerfile").read_text()
_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def _yaml(name: str) -> Any:
    return yaml.safe_load((ROOT / "conf" / name).read_text())


def _accepted(name: str, arguments: list[str]) -> dict[str, Any]:
    """The arguments as the program gets them; it is not run."""
    with command(name).make_context(name, arguments) as context:
        return context.params


def test_what_the_dockerfile_copies_is_there_and_is_all_that_the_wheel_is_made_of() -> None:
    copied = [line.split()[1:-1] for line in re.findall(r"^COPY .*", _DOCKERFILE, re.M)]
    names = {name for line in copied for name in line}
    assert {name for name in names if not (ROOT / name).exists()} == set()
    modules = {"pyspark_mongodb_cdc.py", "cdc", "conf"}
    assert {*modules, "pyproject.toml", _PROJECT["readme"], *_PROJECT["license-files"]} <= names


def test_the_dockerfile_has_a_python_that_the_project_supports_and_ends_in_a_command() -> None:
    [python] = re.findall(r"^FROM python:(3\.\d+)", _DOCKERFILE, re.M)
    assert f"Programming Language :: Python :: {python}" in _PROJECT["classifiers"]
    [default] = re.findall(r"^CMD (\[.*\])", _DOCKERFILE, re.M)
    name, *arguments = yaml.safe_load(default)
    _accepted(name, arguments)
    assert "RUN mongodb-cdc prepare" in _DOCKERFILE


def test_the_pipeline_of_the_compose_file_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    service = _yaml("compose.yaml")["services"]["replicate"]
    name, *arguments = service["command"]
    given = _accepted(name, arguments)["overrides"]
    monkeypatch.setenv("MONGODB_URI", service["environment"]["MONGODB_URI"])
    config = configuration.load(None, given)
    assert config.options.selection.matches(Namespace("shop", "orders"))
    assert f"{config.base}:" in service["volumes"][0].partition(":")[2] + ":"
    assert f"VOLUME {config.base}" in _DOCKERFILE
    assert int(service["stop_grace_period"].removesuffix("s")) >= 28


def test_the_manifest_has_the_versions_and_settings_of_the_project() -> None:
    spec = _yaml("spark-application.yaml")["spec"]
    assert spec["sparkVersion"] == version("pyspark")
    program = spec["mainApplicationFile"].partition("mongodb-cdc/")[2]
    assert (ROOT / program).exists()
    _accepted("replicate", spec["arguments"])
    settings = spec["sparkConf"]
    assert settings.pop("spark.jars.packages") == delta_packages()
    settings.pop("spark.jars.ivy")
    assert settings.items() <= SETTINGS.items()
    assert spec["driver"]["terminationGracePeriodSeconds"] >= 28
