"""The report in real Chromium: charts are judged by what is drawn, not by elements that could hold a chart."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from browser import CHROMEDRIVER, CHROMIUM, Browser, chromium
from reports_fixtures import make_hostile, make_run, make_verdict

from starprof.model.rundata import RunData
from starprof.model.verdict import Verdict
from starprof.reports.html import render

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not (CHROMIUM and CHROMEDRIVER), reason="needs chromium and chromedriver"),
]

HEATMAP_ROWS = """
  const plot = document.querySelector('#chart-heatmap');
  const picture = plot.querySelector('.heatmaplayer image');
  const image = new Image();
  image.src = picture.getAttribute('href') || picture.getAttribute('xlink:href');
  await image.decode();
  const canvas = Object.assign(document.createElement('canvas'), { width: image.width, height: image.height });
  const context = canvas.getContext('2d');
  context.drawImage(image, 0, 0);
  const box = picture.getBoundingClientRect(), axis = plot._fullLayout.yaxis;
  const edges = plot._fullData[0].y;
  const top = axis._offset + plot.getBoundingClientRect().top;
  return Array.from({ length: edges.length - 1 }, (_, row) => {
    const middle = (axis.d2p(edges[row]) + axis.d2p(edges[row + 1])) / 2 + top - box.top;
    const y = Math.round(middle / box.height * image.height);
    const line = context.getImageData(0, y, image.width, 1).data;
    let light = 0;
    for (let i = 0; i < line.length; i += 4) light += 0.2126 * line[i] + 0.7152 * line[i + 1] + 0.0722 * line[i + 2];
    return light / (line.length / 4);
  });
"""
"""Mean luminance of every row of the heatmap, read from the pixels of its picture."""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture(scope="module")
def page(run: RunData, verdict: Verdict, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("page"), run, verdict)


@pytest.fixture
def write_page(tmp_path: Path) -> Callable[[RunData, Verdict], Path]:
    return lambda run, verdict: written(tmp_path, run, verdict)


def written(folder: Path, run: RunData, verdict: Verdict) -> Path:
    target = folder / "report.html"
    target.write_text(render(run, verdict), encoding="utf-8")
    return target


def test_charts_are_drawn_without_an_error_and_without_a_request(browser: Browser, page: Path):
    browser.open(page)
    assert browser.js("document.documentElement.dataset.drawn") == "yes"
    assert browser.log() == []
    assert [url for url in browser.requests() if not url.startswith(("data:", "blob:"))] == [page.as_uri()]


@pytest.mark.parametrize("dark", [False, True])
def test_the_row_of_the_culprit_stands_out_in_the_heatmap(browser: Browser, page: Path, dark: bool):
    browser.open(page, dark=dark)
    light = browser.js_async(HEATMAP_ROWS)
    others = [value for row, value in enumerate(light) if row != 1]
    if dark:
        assert light[1] > max(others) + 60
    else:
        assert light[1] < min(others) - 60


def test_among_many_ranks_the_culprit_is_tall_and_stands_out(
    browser: Browser, write_page: Callable[[RunData, Verdict], Path]
):
    run = make_run(ranks=128, steps=300, culprit=77, onset=60)
    browser.open(write_page(run, make_verdict(run, culprit=77, onset=60)))
    light = browser.js_async(HEATMAP_ROWS)
    assert min(range(128), key=light.__getitem__) == 77
    edges = browser.js("document.querySelector('#chart-heatmap')._fullData[0].y")
    heights = [after - before for before, after in pairwise(edges)]
    assert max(range(128), key=heights.__getitem__) == 77


def test_the_switch_shows_own_time(browser: Browser, page: Path):
    browser.open(page)
    late = browser.js("document.querySelector('.heatmaplayer image').getAttribute('href')")
    browser.js("document.querySelectorAll('input[name=view]')[1].click()")
    assert browser.js("document.querySelector('#heatmap-scale').textContent").endswith("ms of own work")
    assert browser.js("document.querySelector('.heatmaplayer image').getAttribute('href')") != late


def bars(browser: Browser) -> list[float]:
    """Drawn width in pixels of all segments of each rank's bar together."""
    return browser.js(
        """(() => {
        const widths = {};
        document.querySelectorAll('#chart-anatomy .trace.bars .point path').forEach((path) => {
            const box = path.getBBox();
            const at = Math.round(box.y);
            widths[at] = (widths[at] || 0) + box.width;
        });
        return Object.keys(widths).map(Number).sort((p, q) => p - q).map((at) => widths[at]);
        })()"""
    )


def test_bars_of_all_ranks_are_drawn_and_equally_long(browser: Browser, page: Path):
    browser.open(page)
    drawn = bars(browser)
    assert len(drawn) == 4
    assert max(drawn) - min(drawn) < 0.02 * max(drawn)
    assert min(drawn) > 300


def test_a_rank_can_be_added_to_the_bars(browser: Browser, write_page: Callable[[RunData, Verdict], Path]):
    run = make_run(ranks=40, steps=60, onset=10)
    browser.open(write_page(run, make_verdict(run, onset=10)))
    before = len(bars(browser))
    shown = browser.js("document.querySelector('#chart-anatomy')._fullData[0].y")
    absent = next(rank for rank in range(40) if f"rank {rank}" not in shown)
    browser.js(
        "(() => { const box = document.getElementById('anatomy-add'); box.value = a[0];"
        "box.dispatchEvent(new Event('change')); })()",
        str(absent),
    )
    assert len(bars(browser)) == before + 1


def test_time_lines_have_points_and_the_folded_ones_are_drawn_when_opened(browser: Browser, page: Path):
    browser.open(page)
    points = (
        "Array.from(document.querySelectorAll('#counters .scatterlayer path.js-line'))"
        ".map((p) => (p.getAttribute('d').match(/[LHV]/g) || []).length)"
    )
    lines = browser.js(points)
    assert lines
    assert max(lines) > 20
    layers = "document.querySelectorAll('#counters .scatterlayer').length"
    before = browser.js(layers)
    browser.js("document.querySelector('#counters details').open = true")
    browser.until(f"{layers} > a[0]", before)


def test_hostile_texts_do_not_run(
    browser: Browser, run: RunData, verdict: Verdict, write_page: Callable[[RunData, Verdict], Path]
):
    browser.open(write_page(*make_hostile(run, verdict)))
    assert browser.js("document.documentElement.dataset.drawn") == "yes"
    assert browser.js("window.pwned === undefined")
    assert browser.js("document.querySelectorAll('img, iframe, object, a[href]').length") == 0
    assert browser.log() == []


def test_the_policy_stops_a_script_that_got_in(browser: Browser, page: Path, tmp_path: Path):
    """The second line of defence, should an escape ever be missing."""
    broken = tmp_path / "broken.html"
    source = page.read_text(encoding="utf-8")
    broken.write_text(source.replace("<main>", "<main><script>window.pwned = 1</script>"), encoding="utf-8")
    browser.open(broken)
    assert browser.js("window.pwned === undefined")
    assert any("Content Security Policy" in message for message in browser.log())


def test_dark_and_light_follow_the_reader(browser: Browser, page: Path):
    paper = "getComputedStyle(document.body).backgroundColor"
    browser.open(page, dark=True)
    dark = browser.js(paper)
    browser.open(page, dark=False)
    assert dark == "rgb(20, 21, 25)"
    assert browser.js(paper) == "rgb(251, 250, 247)"


def test_a_change_of_theme_redraws_the_charts(browser: Browser, page: Path):
    browser.open(page)
    light = browser.js("document.querySelector('.heatmaplayer image').getAttribute('href')")
    features = [{"name": "prefers-color-scheme", "value": "dark"}]
    browser.command("Emulation.setEmulatedMedia", media="", features=features)
    browser.until("document.querySelector('.heatmaplayer image').getAttribute('href') !== a[0]", light)


@pytest.mark.parametrize("width", [360, 768, 1600])
def test_no_width_needs_sideways_scrolling(browser: Browser, page: Path, width: int):
    browser.open(page, width=width)
    assert browser.js("document.documentElement.scrollWidth") <= width


def test_print_is_light_also_for_a_dark_reader(browser: Browser, page: Path):
    browser.open(page, dark=True)
    browser.js(
        "addEventListener('beforeprint', () => { window.printed ="
        " getComputedStyle(document.documentElement).getPropertyValue('--paper'); })"
    )
    pdf = base64.b64decode(browser.command("Page.printToPDF", printBackground=True)["data"])
    assert pdf.startswith(b"%PDF")
    assert browser.js("window.printed").strip() == "#fbfaf7"
    assert browser.js("document.documentElement.dataset.theme === undefined")


def test_without_scripts_the_text_is_readable_and_no_dead_control_is_shown(browser: Browser, page: Path):
    browser.open(page, scripts=False)
    document = browser.command("DOM.getDocument", depth=-1)["root"]["nodeId"]

    def height(selector: str) -> int:
        node = browser.command("DOM.querySelector", nodeId=document, selector=selector)["nodeId"]
        try:
            return browser.command("DOM.getBoxModel", nodeId=node)["model"]["height"]
        except Exception:
            return 0

    assert height("#verdict h1") > 20
    assert height("#findings .card") > 100
    assert height("#run table") > 50
    assert height("#heatmap .switch") == 0
    browser.command("Emulation.setScriptExecutionDisabled", value=False)
