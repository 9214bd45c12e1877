"""Takes the pictures of report.html that the README shows, from recorded H200 runs.

    PYTHONPATH=tests python tests/browser/screenshots.py        # writes reports/screenshots/*.png

Needs Chromium and Playwright, as the browser tests do.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from browser.conftest import chromium
from playwright.sync_api import Page, sync_playwright
from recorded.cases import CASES

from torch_bottleneck.diagnose import diagnose_paths
from torch_bottleneck.reporters.html import render

OUT = Path(__file__).resolve().parents[2] / "reports" / "screenshots"


def verdict(page: Page) -> None:
    """The answer as it stands on opening."""


def timeline(page: Page) -> None:
    """Where the dearest cause happens in a step."""
    page.get_by_role("button", name="Show allocator-thrashing").click()
    page.get_by_role("button", name="Whole step").click()
    page.evaluate("document.activeElement.blur()")


def memory(page: Page) -> None:
    """What the peak is made of, and which lines hold it."""
    page.evaluate("document.getElementById('memory').scrollIntoView()")


SHOTS = (
    ("verdict", "example-sync-bound", False, verdict, 860),
    ("memory", "memory-activations-h200", False, memory, 700),
    ("timeline", "example-allocator-thrashing", True, timeline, 760),
)


def main() -> None:
    """Write the pictures."""
    OUT.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        for name, case, dark, prepare, height in SHOTS:
            file = Path(folder) / f"{name}.html"
            file.write_text(render(diagnose_paths([CASES[case].folder])), encoding="utf-8")
            context = browser.new_context(
                viewport={"width": 1240, "height": height},
                color_scheme="dark" if dark else "light",
                reduced_motion="reduce",
            )
            page = context.new_page()
            page.goto(file.as_uri())
            prepare(page)
            page.wait_for_timeout(200)
            page.screenshot(path=OUT / f"{name}.png")
            context.close()
        browser.close()


if __name__ == "__main__":
    main()
