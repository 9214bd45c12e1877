"""The Diagnosis tab and the stock profiler tab in a real browser, with nothing but loopback to reach."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from recorded.cases import CASES
from reviewing import HOSTILE, Review, served

from torch_bottleneck.reporters.rows.fleet import late_lines
from torch_bottleneck.reporters.rows.groups import group_lines
from torch_bottleneck.review.logdir import prepare_run

if TYPE_CHECKING:
    from playwright.sync_api import FrameLocator, Page, Route

GPU, RANKS, CPU = "example-input-bound", "ddp-h200", "example-graph-breaks-cpu"
Open = Callable[..., Any]
SLOW_MS = 300_000
"""The trace viewer is 2.6 MB of script behind a polyfill, on a machine that may be busy."""


def diagnosis_tab(page: Page, run: str) -> FrameLocator:
    """Open a run in the tab and return its frame."""
    frame = page.frame_locator("iframe:visible")
    frame.locator("#run").select_option(run, timeout=SLOW_MS)
    frame.locator(f"main[data-run='{run}']").wait_for(timeout=SLOW_MS)
    return frame


@pytest.mark.parametrize("run", [GPU, CPU])
def test_the_tab_says_what_the_run_waits_on(review: Review, open_page: Open, run: str) -> None:
    tensorboard, diagnoses = review
    page = open_page(f"{tensorboard.address}#bottleneck").page
    frame = diagnosis_tab(page, run)
    verdict = diagnoses[run].verdict
    assert frame.locator("#verdict").inner_text().startswith(verdict.bottleneck_class.value)
    assert frame.locator(".headline").inner_text()
    shares = [
        float(text.split()[0].lstrip("<"))
        for text in frame.locator("#budget td:last-child").all_inner_texts()
    ]
    assert sum(shares) == pytest.approx(100, abs=2)
    assert (
        frame.locator("details[open] summary")
        .first.inner_text()
        .startswith(diagnoses[run].suggestions[0].fix)
    )
    assert page.locator("body").evaluate("() => document.title")


@pytest.mark.parametrize(("run", "line"), [(GPU, "waiting for the next batch|input"), (CPU, "")])
def test_a_click_on_a_cause_zooms_the_trace_to_it(
    review: Review, open_page: Open, run: str, line: str
) -> None:
    tensorboard, diagnoses = review
    page = open_page(f"{tensorboard.address}#bottleneck").page
    frame = diagnosis_tab(page, run)
    pane = frame.locator("section.trace[data-state=ready]")
    pane.wait_for(timeout=SLOW_MS)
    code = diagnoses[run].causes[0].code
    frame.locator(f"li[data-code={code}] button.show").click()
    frame.locator("section.trace[data-shown]").wait_for(timeout=SLOW_MS)
    low, high = map(float, str(pane.get_attribute("data-shown")).split())
    note = frame.locator("#trace-note").inner_text()
    assert note.startswith("Zoomed to: ") and re.search(line, note)
    viewer = frame.frame_locator("#viewer")
    # Asked for anew: the polyfill wraps elements, and only wrappers have the viewer's fields.
    bounds = viewer.locator("body").evaluate(
        """() => {
            const viewer = document.getElementById('viewer');
            const track = viewer.trackView, view = track.viewport.currentDisplayTransform;
            const container = track.modelTrackContainer_ || track;
            const width = (container.canvas || container).offsetWidth * window.devicePixelRatio;
            return [view.xViewToWorld(0), view.xViewToWorld(width)];
        }"""
    )
    assert bounds[0] < low < high < bounds[1] < high + (high - low), "what was asked for fills the view"
    if run == GPU:
        assert high - low == pytest.approx(89, abs=5), "the step's one fetch"


def test_an_answer_that_comes_late_does_not_take_the_place_of_the_run_chosen_since(
    review: Review, open_page: Open
) -> None:
    tensorboard, diagnoses = review
    page = open_page(f"{tensorboard.address}#bottleneck").page
    frame = diagnosis_tab(page, GPU)
    held: list[Route] = []
    page.route("**/page?run=*", lambda route: route.fallback() if held else held.append(route))
    frame.locator("#run").select_option(RANKS)
    frame.locator("main:not([data-run])").wait_for()
    diagnosis_tab(page, CPU)
    with page.expect_response("**/page?run=*", timeout=SLOW_MS):
        held[0].fallback()
    page.wait_for_timeout(500)
    assert frame.locator("main").get_attribute("data-run") == CPU
    assert frame.locator("#verdict").inner_text().startswith(diagnoses[CPU].verdict.bottleneck_class.value)


def test_the_ranks_of_a_run_can_be_changed(review: Review, open_page: Open) -> None:
    tensorboard, diagnoses = review
    page = open_page(f"{tensorboard.address}#bottleneck").page
    frame = diagnosis_tab(page, RANKS)
    timeline = diagnoses[RANKS].timeline
    assert timeline is not None
    assert frame.locator("#rank").input_value() == f"rank_{timeline.rank}.pt.trace.json.gz"
    ranks = sorted(frame.locator("#ranks tbody th").all_inner_texts())
    assert ranks == [str(row.rank) for row in diagnoses[RANKS].ranks]
    who, *_ = late_lines(diagnoses[RANKS])[0]
    assert frame.locator("p.late").first.inner_text().startswith(who)
    assert frame.locator("p.group").all_inner_texts() == group_lines(diagnoses[RANKS])
    frame.locator("section.trace[data-state=ready]").wait_for(timeout=SLOW_MS)
    frame.locator("#rank").select_option("rank_0.pt.trace.json.gz")
    page.wait_for_function(
        "() => [...document.querySelectorAll('iframe')].some((f) => f.offsetParent"
        " && /steps, /.test(f.contentDocument.querySelector('#trace-note')?.textContent || ''))",
        timeout=SLOW_MS,
    )


def test_runs_stand_side_by_side_with_bars_as_long_as_their_steps(review: Review, open_page: Open) -> None:
    tensorboard, diagnoses = review
    page = open_page(f"{tensorboard.address}#bottleneck").page
    frame = diagnosis_tab(page, GPU)
    frame.locator("#beside summary").click()
    rows = frame.locator("#beside tbody tr")
    assert rows.count() == len(diagnoses) + 1
    widths = {}
    for run in (GPU, CPU):
        row = rows.filter(has_text=run)
        verdict = diagnoses[run].verdict
        classes = [c.value for c in (verdict.bottleneck_class, *verdict.also)]
        assert row.locator("td").first.inner_text() == " / ".join(classes)
        widths[run] = row.locator(".bar").evaluate("(bar) => bar.getBoundingClientRect().width")
    ratio = (diagnoses[GPU].step.true_ms or 0) / (diagnoses[CPU].step.true_ms or 1)
    assert widths[GPU] / widths[CPU] == pytest.approx(ratio, rel=0.02)
    rows.filter(has_text=CPU).locator("button").click()
    frame.locator(f"main[data-run='{CPU}']").wait_for(timeout=SLOW_MS)
    assert frame.locator("#run").input_value() == CPU


def test_text_from_a_run_stays_text(review: Review, open_page: Open) -> None:
    tensorboard, _ = review
    page = open_page(f"{tensorboard.address}#bottleneck").page
    dialogs: list[str] = []
    page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    frame = diagnosis_tab(page, HOSTILE)
    assert "<" in frame.locator("article").inner_text()
    assert frame.locator("article img, article script, article iframe, article a, article b").count() == 0
    frame.locator("#beside summary").click()
    assert frame.locator("nav img, nav script, nav iframe, nav a, nav b").count() == 0
    assert dialogs == []


@pytest.mark.parametrize("dark", [False, True])
def test_it_is_readable_narrow_and_by_everyone(review: Review, open_page: Open, dark: bool) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    tensorboard, _ = review
    # The tab's own page, without TensorBoard's around it: that one is not ours to judge.
    page = open_page(
        f"{tensorboard.address}data/plugin_entry.html?name=bottleneck", width=400, dark=dark
    ).page
    page.locator("#run").select_option(GPU, timeout=SLOW_MS)
    page.locator(f"main[data-run='{GPU}']").wait_for(timeout=SLOW_MS)
    assert page.evaluate("() => document.documentElement.scrollWidth <= window.innerWidth")
    found = axe.Axe().run(page, context="article, nav", options={"runOnly": ["wcag2a", "wcag2aa"]})
    assert found.violations_count == 0, found.generate_report()


def stock_tab(page: Page) -> FrameLocator:
    return page.frame_locator("iframe:visible")


def choose(frame: FrameLocator, what: str, value: str) -> None:
    """Pick from one of the stock tab's menus."""
    frame.locator(f".MuiListSubheader-root:has-text('{what}') + *, :text-is('{what}')").first.wait_for(
        timeout=SLOW_MS
    )
    frame.locator(".MuiSelect-root").nth(["Runs", "Views", "Workers"].index(what)).click()
    frame.get_by_role("option", name=value, exact=True).click()


@pytest.mark.parametrize("run", [GPU, CPU])
def test_the_stock_tab_works_without_internet(review: Review, open_page: Open, run: str) -> None:
    tensorboard, _ = review
    page = open_page(f"{tensorboard.address}#pytorch_profiler").page
    frame = stock_tab(page)
    frame.get_by_text("Execution Summary").wait_for(timeout=SLOW_MS)
    choose(frame, "Runs", run)
    table = frame.locator("table:has-text('Average Step Time')")
    table.wait_for(timeout=SLOW_MS)
    expected = tensorboard.overview(run, "rank_0")["Average Step Time"]
    shown = 0.0
    for _ in range(SLOW_MS // 100):
        # The table of the run before stands until the chosen one has come.
        step_us = table.locator("tr:has-text('Average Step Time') td").nth(1).inner_text()
        shown = float(step_us.replace(",", "")) / 1e3
        if shown == pytest.approx(expected, rel=1e-3):
            break
        page.wait_for_timeout(100)
    assert shown == pytest.approx(expected, rel=1e-3)
    assert frame.locator("svg path").count() > 8, "pie and bars"

    choose(frame, "Views", "Operator")
    frame.locator("text=Host Self Time (us)").first.wait_for(timeout=SLOW_MS)
    assert frame.locator("svg path").count() > 8
    if run == GPU:
        choose(frame, "Views", "GPU Kernel")
        frame.locator("text=Total Time (us)").first.wait_for(timeout=SLOW_MS)

    choose(frame, "Views", "Trace")
    viewer = frame.frame_locator("iframe")
    viewer.locator("#trace-viewer").wait_for(timeout=SLOW_MS)
    viewer.locator("text=Diagnosis (pid Diagnosis) >> visible=true").first.wait_for(timeout=SLOW_MS)


def test_the_distributed_view_draws(review: Review, open_page: Open) -> None:
    tensorboard, _ = review
    page = open_page(f"{tensorboard.address}#pytorch_profiler").page
    frame = stock_tab(page)
    frame.get_by_text("Execution Summary").wait_for(timeout=SLOW_MS)
    choose(frame, "Runs", RANKS)
    choose(frame, "Views", "Distributed")
    frame.locator("text=Communication Operations Stats").first.wait_for(timeout=SLOW_MS)
    frame.locator("td:text-is('nccl:all_reduce')").first.wait_for(timeout=SLOW_MS)


def test_the_full_report_opens_from_the_tab(tmp_path: Path, review: Review, open_page: Open) -> None:
    _, diagnoses = review
    prepare_run(diagnoses[GPU], [CASES[GPU].folder], tmp_path / GPU, report=True)
    with served(tmp_path) as tensorboard:
        page = open_page(f"{tensorboard.address}#bottleneck").page
        frame = diagnosis_tab(page, GPU)
        with page.context.expect_page() as opened:
            frame.locator("#report").click()
        report = opened.value
        report.locator("text=input-bound").first.wait_for(timeout=SLOW_MS)
        report.locator("svg, canvas").first.wait_for(timeout=SLOW_MS)


def test_where_a_folder_has_no_diagnosis_the_tab_says_how_to_make_one(
    tmp_path: Path, open_page: Open
) -> None:
    with served(tmp_path) as tensorboard:
        page = open_page(f"{tensorboard.address}data/plugin_entry.html?name=bottleneck").page
        page.locator("text=bottleneck diagnose train.py").wait_for(timeout=SLOW_MS)
