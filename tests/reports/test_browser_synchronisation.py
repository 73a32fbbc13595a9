"""The picture of synchronisation in real Chromium, judged by what is drawn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import CHROMEDRIVER, CHROMIUM, Browser, chromium
from reports_fixtures import EVIL
from sync_lab import STAR, Phase, controlled_run

from starprof.analysis import diagnose
from starprof.control.journal import NATIVE
from starprof.reports.html import render

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not (CHROMIUM and CHROMEDRIVER), reason="needs chromium and chromedriver"),
]

STRIP = """
  const plot = document.querySelector('#chart-synchronisation');
  const picture = plot.querySelector('.heatmaplayer image');
  const image = new Image();
  image.src = picture.getAttribute('href') || picture.getAttribute('xlink:href');
  await image.decode();
  const canvas = Object.assign(document.createElement('canvas'), { width: image.width, height: image.height });
  const context = canvas.getContext('2d');
  context.drawImage(image, 0, 0);
  const box = picture.getBoundingClientRect(), axis = plot._fullLayout.yaxis2, across = plot._fullLayout.xaxis;
  const edges = plot._fullData[2].y, page = plot.getBoundingClientRect();
  const x = Math.round((across.d2p(a[0]) + across._offset + page.left - box.left) / box.width * image.width);
  return Array.from({ length: edges.length - 1 }, (_, row) => {
    const middle = axis.d2p((edges[row] + edges[row + 1]) / 2) + axis._offset + page.top;
    const y = Math.round((middle - box.top) / box.height * image.height);
    return Array.from(context.getImageData(x, y, 1, 1).data);
  });
"""
"""Colour of every rank in the strip at a second of the run, read from the pixels of its picture."""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    return written(folder, STAR)


def written(folder: Path, phases: tuple[Phase, ...], **job: int | float) -> Path:
    run = controlled_run(folder, phases, **job)
    target = folder / "report.html"
    target.write_text(render(run, diagnose(run)), encoding="utf-8")
    return target


def labels(browser: Browser) -> list[str]:
    return browser.js(
        "Array.from(document.querySelectorAll('#chart-synchronisation .annotation-text')).map((t) => t.textContent)"
    )


@pytest.mark.parametrize("dark", [False, True])
def test_lines_strip_and_switches_are_drawn_without_an_error(browser: Browser, page: Path, dark: bool):
    browser.open(page, dark=dark)
    assert browser.js("document.documentElement.dataset.drawn") == "yes"
    assert browser.log() == []
    points = browser.js(
        "Array.from(document.querySelectorAll('#chart-synchronisation .scatterlayer path.js-line'))"
        ".map((p) => (p.getAttribute('d').match(/[LHV]/g) || []).length)"
    )
    assert len(points) == 2
    assert min(points) > 50
    assert labels(browser) == [
        "1 m-sync (m = 7), advisor",
        "2 m-sync-fold (m = 6), user",
        "3 asgd, user",
        "4 native SSGD, coordinator",
    ]


@pytest.mark.parametrize("dark", [False, True])
def test_a_rank_that_is_left_out_is_empty_in_the_strip(browser: Browser, page: Path, dark: bool):
    browser.open(page, dark=dark)
    before = browser.js_async(STRIP, 10.0)
    left_out = browser.js_async(STRIP, 30.0)
    assert len({tuple(color) for color in before}) == 1
    assert left_out[5] != left_out[0]
    assert left_out[0] == before[0]
    assert {tuple(color) for row, color in enumerate(left_out) if row != 5} == {tuple(before[0])}


def test_labels_of_switches_do_not_cover_each_other(browser: Browser, page: Path):
    browser.open(page, width=1280)
    boxes = browser.js(
        "Array.from(document.querySelectorAll('#chart-synchronisation .annotation-text')).map((t) => {"
        "const b = t.getBoundingClientRect(); return [b.left, b.right, b.top, b.bottom]; })"
    )
    for at, (left, right, top, bottom) in enumerate(boxes):
        for other in boxes[at + 1 :]:
            assert right <= other[0] or other[1] <= left or bottom <= other[2] or other[3] <= top


def test_where_it_is_narrow_only_numbers_stand_at_the_switches(browser: Browser, page: Path):
    browser.open(page, width=360)
    assert browser.js("document.documentElement.scrollWidth") <= 360
    assert labels(browser) == ["1", "2", "3", "4"]


def test_a_change_of_theme_redraws_the_strip(browser: Browser, page: Path):
    browser.open(page, dark=False)
    light = browser.js_async(STRIP, 10.0)
    href = "document.querySelector('#chart-synchronisation .heatmaplayer image').getAttribute('href')"
    drawn = browser.js(href)
    features = [{"name": "prefers-color-scheme", "value": "dark"}]
    browser.command("Emulation.setEmulatedMedia", media="", features=features)
    browser.until(f"{href} !== a[0]", drawn)
    assert browser.js_async(STRIP, 10.0) != light


def test_hundreds_of_ranks_are_drawn_and_a_culprit_stands_out(browser: Browser, tmp_path: Path):
    phases = (Phase(NATIVE, 40), Phase("m-sync", 80, {"m": 255}))
    browser.open(written(tmp_path, phases, ranks=256, slow=77, since=0, factor=6.0))
    assert browser.log() == []
    strip = browser.js_async(STRIP, 17.0)
    assert len(strip) == 256
    assert strip[77] != strip[76]


def test_hostile_modes_do_not_run(browser: Browser, tmp_path: Path):
    run = controlled_run(tmp_path, STAR[:2])
    run.sync_switches["to_mode"] = EVIL
    run.sync_switches["asked_by"] = "<b>user</b>"
    target = tmp_path / "report.html"
    target.write_text(render(run, diagnose(run)), encoding="utf-8")
    browser.open(target)
    assert browser.js("document.documentElement.dataset.drawn") == "yes"
    assert browser.js("window.pwned === undefined")
    assert browser.js("document.querySelectorAll('img, iframe, object, a[href]').length") == 0
    assert "<b>user</b>" in labels(browser)[0]
    assert browser.log() == []
