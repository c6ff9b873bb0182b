"""The page of `status --html` in a real browser, Chromium without a window."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from matplotlib import image
from pyspark.sql import SparkSession

from cdc.cli import status
from cdc.demo import ReplicaSet
from cdc.model import Namespace
from tests.end_to_end.past import past_of

pytestmark = pytest.mark.browser
WIDTHS = (480, 1280)
# A page that shows the other one in frames of these widths, and then what it saw there.
_LOOKING = """<!doctype html><meta charset="utf-8"><body><script>
const found = [], widths = %s;
for (const width of widths) {
  const frame = document.createElement("iframe");
  Object.assign(frame, {width, height: 2000, src: "page.html"});
  frame.onload = () => {
    const page = frame.contentDocument, root = page.documentElement;
    const box = page.querySelector("svg").getBoundingClientRect();
    found.push({
      width, title: page.title, text: page.body.innerText, plot: [box.width, box.height],
      scrolls: root.scrollWidth > root.clientWidth,
      fetched: frame.contentWindow.performance.getEntriesByType("resource").map(each => each.name),
    });
    if (found.length === widths.length) {
      document.body.innerHTML = "<pre></pre>";
      document.querySelector("pre").textContent = JSON.stringify(found);
    }
  };
  document.body.append(frame);
}
</script>"""


def chromium(*arguments: str) -> str:
    program = shutil.which("chromium") or shutil.which("google-chrome")
    assert program, "There is no Chromium: install it (Debian: apt-get install chromium)."
    done = subprocess.run(
        [
            *(program, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
            *("--host-resolver-rules=MAP * ~NOTFOUND", "--allow-file-access-from-files"),
            *("--virtual-time-budget=10000", *arguments),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def page(spark: SparkSession, mongod: ReplicaSet, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a pipeline that has copied, followed and ended."""
    folder = tmp_path_factory.mktemp("browser")
    path = folder / "page.html"
    with past_of(spark, mongod, Namespace("browser", "orders"), folder / "lakehouse") as past:
        given = [item for each in past.options(past.folder) for item in ("-o", each)]
        done = CliRunner().invoke(status.main, [*given, "--html", str(path)])
    assert done.exit_code == 0, done.output
    return path


def test_the_page_fits_into_its_window_fetches_nothing_and_shows_what_there_is(page: Path) -> None:
    looking = page.with_name("looking.html")
    looking.write_text(_LOOKING % json.dumps(WIDTHS))
    said = re.search(r"<pre>(.*?)</pre>", chromium("--dump-dom", looking.as_uri()), re.DOTALL)
    assert said, "the page was not shown"
    found: list[dict[str, Any]] = json.loads(html.unescape(said[1]))
    assert sorted(each["width"] for each in found) == sorted(WIDTHS)
    for each in found:
        assert each["title"].startswith("mongodb-cdc: ")
        assert "browser.orders" in each["text"]
        assert "streaming" in each["text"]
        width, height = each["plot"]
        assert 0.7 * each["width"] < width < each["width"]
        assert 0.4 * width < height < width
        assert not each["scrolls"]
        assert each["fetched"] == []


def test_something_is_drawn_in_each_of_the_four_plots(page: Path) -> None:
    picture = page.with_name("page.png")
    chromium(f"--screenshot={picture}", "--window-size=1280,1400", page.as_uri())
    seen = image.imread(picture)[:, :, :3]
    coloured = seen.max(axis=2) - seen.min(axis=2) > 0.2
    rows, columns = coloured.any(axis=1).nonzero()[0], coloured.any(axis=0).nonzero()[0]
    middle, centre = (rows[0] + rows[-1]) // 2, (columns[0] + columns[-1]) // 2
    for part in (coloured[:middle, :centre], coloured[:middle, centre:]):
        assert part.sum() > 50
    for part in (coloured[middle:, :centre], coloured[middle:, centre:]):
        assert part.sum() > 50
