"""Real Chromium for the report tests: opens pages from disk, and tells what they did."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.ui import WebDriverWait

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
CHROMEDRIVER = shutil.which("chromedriver")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--hide-scrollbars",
)
DRAWN_WITHIN_S = 60  # a busy machine may take long; the page itself needs about a second


class Browser:
    """One Chromium with a fresh profile."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, page: Path, *, width: int = 1280, dark: bool = False, scripts: bool = True) -> None:
        """Load a page and wait until its charts are drawn (or failed)."""
        self.command("Emulation.setScriptExecutionDisabled", value=not scripts)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.command("Emulation.setEmulatedMedia", media="", features=[scheme])
        self.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600
        )
        self.log()
        self.requests()
        self.driver.get(page.as_uri())
        if scripts:
            self.until("document.documentElement.dataset.drawn")

    def js(self, expression: str, *arguments: Any) -> Any:
        """Value of a JavaScript expression; `a` is the list of arguments."""
        return self.driver.execute_script(f"const a = arguments; return ({expression});", *arguments)

    def until(self, expression: str, *arguments: Any) -> None:
        """Wait until a JavaScript expression is true."""
        WebDriverWait(self.driver, DRAWN_WITHIN_S).until(lambda _: self.js(expression, *arguments))

    def js_async(self, body: str, *arguments: Any) -> Any:
        """Value that an async function body returns; `a` is the list of arguments."""
        return self.driver.execute_async_script(
            "const done = arguments[arguments.length - 1], a = arguments;"
            f"(async () => {{ {body} }})().then(done, (e) => done('failed: ' + e));",
            *arguments,
        )

    def command(self, name: str, **parameters: Any) -> Any:
        """A command of the browser's debugging protocol."""
        return self.driver.execute_cdp_cmd(name, parameters)

    def log(self) -> list[str]:
        """Messages of the console since the last call: errors, violations of the policy, anything."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """Addresses the page asked for since the last call."""
        messages = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]

    def screenshot(self, target: Path) -> None:
        """The whole page as PNG."""
        size = self.command("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = self.command("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        target.write_bytes(base64.b64decode(shot["data"]))


@contextmanager
def chromium(profile: Path) -> Iterator[Browser]:
    """Start Chromium; it ends with the context."""
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM or ""
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(CHROMEDRIVER))
    driver.set_script_timeout(DRAWN_WITHIN_S)
    try:
        yield Browser(driver)
    finally:
        driver.quit()
