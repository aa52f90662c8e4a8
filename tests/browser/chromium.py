"""A real Chromium, and pages that must not complain.

Not a conftest.py: other tests import names from theirs.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, Page, sync_playwright


@contextmanager
def chromium() -> Iterator[Browser]:
    found = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if not found:
        pytest.skip("no Chromium is here: apt-get install chromium, or set CHROMIUM to its path")
    with sync_playwright() as p:
        running = p.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield running
        running.close()


Opened = Callable[..., Page]


@contextmanager
def opener(browser: Browser) -> Iterator[Opened]:
    """Opens an address; at the end no page may have complained or asked for anything elsewhere."""
    complaints: list[str] = []
    contexts = []

    def open_page(
        url: str,
        width: int = 1280,
        height: int = 900,
        scheme: str = "light",
        script: str = "",
        expected: str = "nothing",
    ) -> Page:
        """`script` runs before the page's own; a complaint that has `expected` in it is none."""
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(30_000)
        page.add_init_script(script)
        here = url.split("/")[:3]  # scheme and host; nothing for a file

        def told(message) -> None:
            if message.type in ("error", "warning") and expected not in message.text:
                complaints.append(f"console: {message.text}")

        def asked(request) -> None:
            local = request.url.startswith(("data:", "blob:"))
            if not local and request.url.split("/")[:3] != here:
                complaints.append(f"request: {request.url}")
            if here[0] == "file:" and not local and request.url.split("#")[0] != url.split("#")[0]:
                complaints.append(f"request: {request.url}")

        page.on("console", told)
        page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        page.on("request", asked)
        page.goto(url)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not complaints


def no_sideways_scroll(page: Page) -> None:
    """Once figures have taken their size."""
    for _ in range(20):
        page.wait_for_timeout(250)
        width = page.evaluate("document.documentElement.scrollWidth")
        if width <= page.viewport_size["width"]:
            return
    raise AssertionError(f"{width} pixels wide")


def drawn(page: Page) -> int:
    """Figures that have a line, a bar or a cell in them."""
    return page.evaluate(
        """[...document.querySelectorAll('.js-plotly-plot')].filter(
             (plot) => plot.querySelector('.trace, .hm, .bars .point, .scatterlayer path')).length"""
    )
