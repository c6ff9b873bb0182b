"""The page of `status --html` in a real browser, Chromium without a window.

The pictures stay in `build/browser`, one for each width and colour scheme, for whoever wants to
look at them.
"""

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
from tests.documents import ROOT
from tests.end_to_end.past import past_of

pytestmark = pytest.mark.browser
PICTURES = ROOT / "build" / "browser"
WIDTHS = (400, 700, 1000, 1400)
SCHEMES = {"dark": 0, "light": 1}  # by Blink's numbers
# A page that shows the other one in frames of these widths, and then what it saw there.
_LOOKING = """<!doctype html><meta charset="utf-8"><body><script>
const found = [], widths = %s;
for (const width of widths) {
  const frame = document.createElement("iframe");
  Object.assign(frame, {width, height: 2000, src: "page.html"});
  frame.onload = () => {
    const page = frame.contentDocument, root = page.documentElement;
    const box = each => each.getBoundingClientRect();
    const shown = selector => box(page.querySelector(selector)).height > 0;
    found.push({
      width, title: page.title, text: page.body.innerText,
      plots: [...page.querySelectorAll("figure svg")].map(each => box(each).left),
      clipped: [...page.querySelectorAll("td, dd, li, h1, figcaption, p")].filter(
        each => each.scrollWidth > each.clientWidth + 1 || box(each).right > width
      ).map(each => each.textContent),
      head: shown("thead tr"), scrolls: root.scrollWidth > root.clientWidth,
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
    """Of a pipeline that has copied, followed and ended, with a long name and a problem."""
    folder = tmp_path_factory.mktemp("browser")
    path, orders = folder / "page.html", Namespace("browser", f"orders_of_{'x' * 60}")
    name = "sink.name=the shop of the browser"
    with past_of(spark, mongod, orders, folder / "lakehouse", name) as past:
        given = [item for each in past.options(past.folder) for item in ("-o", each)]
        # Whatever the oplog has left is too little.
        given += ["-o", "oplog.window.warn=101"]
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
        assert each["title"] == "the shop of the browser – mongodb-cdc"
        assert "browser.orders_of_x" in each["text"]
        assert "streaming" in each["text"]
        problem, state = each["text"].index("Let the job"), each["text"].index("Needs action now")
        assert state < problem < each["text"].index("Changes per second")
        assert not each["scrolls"], each["width"]
        assert each["clipped"] == [], each["width"]
        assert each["fetched"] == []
        assert each["head"] == (each["width"] > 900)
        columns = set(map(round, each["plots"]))
        assert len(each["plots"]) == 4
        assert len(columns) == {400: 1, 700: 2, 1000: 3, 1400: 4}[each["width"]]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", [400, 1400])
def test_the_page_has_the_colours_that_are_asked_for_and_something_in_each_chart(
    page: Path, scheme: str, width: int
) -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    picture = PICTURES / f"status-{width}-{scheme}.png"
    setting = f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}"
    chromium(f"--screenshot={picture}", f"--window-size={width},1400", setting, page.as_uri())
    seen = image.imread(picture)[:, :, :3]
    corner = seen[-2, 2].mean()
    assert (corner > 0.9) if scheme == "light" else (corner < 0.2)
    # The red of the state, and the blue of bars and lines.
    red = (seen[:, :, 0] - seen[:, :, 2] > 0.3).sum()
    blue = (seen[:, :, 2] - seen[:, :, 0] > 0.2).sum()
    assert red > 1000
    assert blue > 200
