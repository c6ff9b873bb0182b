"""The architecture page is true: picture, path and modules are those of the code."""

from __future__ import annotations

import re

from tests.architecture import PAGE, ROOT, arrows, generated, renewed
from tests.test_layers import LAYERS


def test_picture_path_and_modules_of_the_page_are_made_of_the_code() -> None:
    page = PAGE.read_text()
    assert renewed(page) == page, "python -m tests.architecture renews it"


def test_the_picture_shows_every_package() -> None:
    shown = {name for arrow in arrows() for name in arrow}
    assert shown == LAYERS.keys() - {"cdc", "cdc.errors"}
    assert ("cdc.mongo.plan", "cdc.mongo.read") in arrows()


def test_what_the_page_names_is_there() -> None:
    page = PAGE.read_text()
    for text in generated().values():
        page = page.replace(text, "")
    for name in re.findall(r"`((?:cdc)\.[a-z_.]+)`", page):
        path = ROOT.joinpath(*name.split("."))
        assert path.is_dir() or path.with_suffix(".py").is_file(), name
    for path in re.findall(r"`(tests/[a-z_/.]+)`", page):
        assert (ROOT / path).exists(), path
