"""A real headless Chromium for pages of ours: loads them offline, and fails on any console error.

Debian's `chromium`, or the one that BOTTLENECK_CHROMIUM names. Without one the tests skip and say so;
with BOTTLENECK_BROWSER=required (CI sets it) they fail instead.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def chromium() -> str | None:
    """Return the path of a Chromium, or None."""
    named = os.environ.get("BOTTLENECK_CHROMIUM")
    return named or next(filter(None, map(shutil.which, _NAMES)), None)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One browser for the session."""
    path = chromium()
    if path is None:
        reason = "no Chromium on this machine: apt-get install chromium"
        if os.environ.get("BOTTLENECK_BROWSER") == "required":
            pytest.fail(reason)
        pytest.skip(reason)
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    with api.sync_playwright() as playwright:
        # As root, as CI runs it, Chromium starts only without its sandbox; the pages are our own.
        made = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield made
        made.close()


@dataclass
class Watched:
    """A page with what went wrong on it."""

    page: Page
    errors: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)
    """Requests to anywhere but the file itself or the given loopback address."""


Open = Callable[..., Watched]


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Open]:
    """Open a file, or an address on loopback, with nothing else to be reached.

    At the end of the test: no console error, no uncaught exception, no request outside.
    """
    opened: list[Watched] = []

    def opener(
        target: Path | str,
        *,
        width: int = 1280,
        height: int = 900,
        dark: bool = False,
        script: bool = True,
        touch: bool = False,
    ) -> Watched:
        address = target.as_uri() if isinstance(target, Path) else target
        origin = address if isinstance(target, Path) else "/".join(address.split("/")[:3])
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce",  # nothing is still moving when a test looks at it
            java_script_enabled=script,
            has_touch=touch,
            is_mobile=touch,
        )
        context.set_default_timeout(300_000)
        page = context.new_page()
        watched = Watched(page)

        def gate(route: Route) -> None:
            url = route.request.url
            if url.startswith((origin, "data:", "blob:")):
                route.continue_()
            else:
                watched.outside.append(url)
                route.abort()

        context.route("**/*", gate)
        page.on("pageerror", lambda error: watched.errors.append(str(error)))
        page.on("console", lambda m: watched.errors.append(m.text) if m.type == "error" else None)
        opened.append(watched)
        page.goto(address)
        return watched

    yield opener
    try:
        for watched in opened:
            assert watched.outside == []
            assert watched.errors == []
    finally:
        for watched in opened:
            watched.page.context.close()
