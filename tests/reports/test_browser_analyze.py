"""Pages that `starprof analyze --html` writes, in real Chromium: also those of runs without ranks or steps."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import CHROMEDRIVER, CHROMIUM, Browser, chromium

from starprof import cli

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not (CHROMIUM and CHROMEDRIVER), reason="needs chromium and chromedriver"),
]


def log_of_steps() -> str:
    def line(key: str, value: object) -> str:
        return ":::MLLOG " + json.dumps({"namespace": "", "time_ms": 0, "key": key, "value": value, "metadata": {}})

    return "\n".join(
        [line("global_batch_size", 16), *(line("tracked_stats", {"train_step_time": 2.5}) for _ in range(40))]
    )


def gpus() -> str:
    name = "<img src=x onerror=alert(1)>"
    rows = [
        f"2026/01/31 10:00:{s:02d}.000, {g}, {name}, 99 %, {150 if g == 2 else 300} W"
        for s in range(20)
        for g in range(4)
    ]
    return "\n".join(["timestamp, index, name, utilization.gpu [%], power.draw [W]", *rows]) + "\n"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.mark.parametrize(
    "files", [{"gpus.csv": gpus()}, {"log.txt": log_of_steps()}, {"log.txt": log_of_steps(), "gpus.csv": gpus()}]
)
def test_page_opens_without_an_error_and_shows_the_verdict(
    browser: Browser, tmp_path: Path, files: dict[str, str]
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert cli.main(["analyze", *(str(tmp_path / name) for name in files), "--html", str(tmp_path / "page.html")]) == 0
    browser.open(tmp_path / "page.html")
    assert browser.log() == []
    shown = browser.js("document.body.innerText")
    if "log.txt" in files:
        assert "no straggler" in shown.lower()
    else:
        assert "GPU 2 differs from its 3 busy peers" in shown
        assert "step times" in shown
