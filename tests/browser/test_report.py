"""report.html in a real browser: loads offline, answers at once, and its controls do what they say."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from recorded.diagnosed import diagnosis_of
from unit.reporters.drawn import drawn, odd, planted
from unit.reporters.sample import empty, hostile
from unit.reporters.test_fleet import grid, job

from torch_bottleneck.model.diagnosis import Diagnosis, Straggler
from torch_bottleneck.reporters.html import render

if TYPE_CHECKING:
    from playwright.sync_api import Page

Open = Callable[..., Any]
MARKUP = '"\'><b class=planted onmouseover="document.title=1">&amp;</script><script>document.title=2</script>'
RECORDED = ["example-launch-bound", "example-graph-breaks", "input-bound-cpu/run", "input-h200", "ddp-h200"]


@pytest.fixture
def write(tmp_path: Path) -> Callable[[Diagnosis], Path]:
    def writer(diagnosis: Diagnosis) -> Path:
        path = tmp_path / "report.html"
        path.write_text(render(diagnosis), encoding="utf-8")
        return path

    return writer


def recorded(name: str) -> Diagnosis:
    return diagnosis_of(name)


def zoom(page: Page) -> tuple[float, float]:
    box = page.locator("#timeline-chart")
    return float(box.get_attribute("data-start") or 0), float(box.get_attribute("data-end") or 100)


def until(page: Page, condition: str) -> None:
    """Wait for a condition; the page's own policy forbids the polling that Playwright would put into it."""
    for _ in range(2400):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(50)
    pytest.fail(f"never true: {condition}")


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_run_opens_with_its_verdict_in_sight(name: str, open_page: Open, write: Any) -> None:
    diagnosis = recorded(name)
    page = open_page(write(diagnosis)).page
    title = page.get_by_role("heading", level=1)
    assert diagnosis.verdict.bottleneck_class.value in title.inner_text()
    box = title.bounding_box()
    assert box is not None
    assert box["y"] + box["height"] < 900, "seen without scrolling"
    assert page.locator("#budget-chart svg").count() == 1
    assert page.locator("#timeline-chart canvas").count() >= 1
    assert page.locator("#steps-chart svg").count() == 1


@pytest.mark.parametrize("make", [empty, hostile, odd])
def test_odd_diagnoses_open_too(make: Callable[[], Diagnosis], open_page: Open, write: Any) -> None:
    page = open_page(write(make())).page
    assert page.get_by_role("heading", level=1).is_visible()


def ran_out_of_memory() -> Diagnosis:
    """A recorded run whose exception holds an address and a setting without a space in them."""
    return diagnosis_of("memory-oom-in-loop-h200")


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize(
    "make", [drawn, hostile, ran_out_of_memory], ids=["drawn", "hostile", "out of memory"]
)
def test_the_page_never_scrolls_sideways(
    make: Callable[[], Diagnosis], width: int, open_page: Open, write: Any
) -> None:
    page = open_page(write(make()), width=width).page
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_without_scripts_everything_but_the_charts_is_there(open_page: Open, write: Any) -> None:
    page = open_page(write(drawn()), script=False).page
    for text in ("input-bound", "87.4 → 33.0 ms (2.65×)", "waiting for input", "call to print()", "Photos"):
        assert page.get_by_text(text).first.is_visible()
    assert page.get_by_role("button", name="Copy").count() == 0, "no button that would do nothing"


def test_markup_planted_everywhere_never_becomes_an_element_or_runs(open_page: Open, write: Any) -> None:
    page = open_page(write(planted(drawn(), MARKUP))).page
    assert page.locator(".planted").count() == 0
    page.locator("#timeline-box").scroll_into_view_if_needed()
    box = page.locator("#timeline-chart").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + 22 + 3.5 * 18)
    page.wait_for_selector(".tip")
    assert "class=planted" in page.locator(".tip").inner_text()
    assert page.locator(".planted").count() == 0
    assert not page.title().isdigit()


def test_kernels_are_sorted_by_a_click_and_by_the_keyboard(open_page: Open, write: Any) -> None:
    page = open_page(write(recorded("example-launch-bound"))).page
    table = page.locator("#kernel-table")

    def column(n: int) -> list[str]:
        return [
            str(t) for t in table.locator(f"tbody tr:visible :nth-child({n})[class~=n]").all_inner_texts()
        ]

    before = [float(t.split()[0]) for t in column(2)]
    assert before == sorted(before, reverse=True)
    table.get_by_role("button", name="ms per step").click()
    assert table.locator("[aria-sort=ascending]").inner_text() == "ms per step"
    after = [float(t.split()[0]) for t in column(2)]
    assert after == sorted(before)
    table.get_by_role("button", name="class").focus()
    page.keyboard.press("Enter")
    assert table.locator("[aria-sort=ascending]").inner_text() == "class"
    classes = table.locator("tbody td.class").all_inner_texts()
    assert classes == sorted(classes)
    assert len(set(classes)) > 1


def test_kernels_are_filtered_by_name_and_by_class(open_page: Open, write: Any) -> None:
    diagnosis = recorded("example-launch-bound")
    page = open_page(write(diagnosis)).page
    wanted = [row for row in diagnosis.kernels if "elementwise" in row.name]
    page.get_by_label("Name contains").fill("ELEMENTwise")
    assert page.locator("#kernel-table tbody tr:visible").count() == len(wanted) > 0
    assert f"{len(wanted)} of {len(diagnosis.kernels)}" in page.locator("#kernel-count").inner_text()
    page.get_by_label("Name contains").fill("")
    page.get_by_label("Class").select_option("other math")
    of_class = [row for row in diagnosis.kernels if row.part.value == "other math"]
    assert page.locator("#kernel-table tbody tr:visible").count() == len(of_class)


def test_a_cause_leads_to_its_blocks_in_the_timeline(open_page: Open, write: Any) -> None:
    page = open_page(write(drawn())).page
    page.get_by_role("button", name="Show input-bound in the timeline").click()
    start, end = zoom(page)
    # The longest wait of the drawn step: 0 to 55 ms of 100.
    assert start == 0
    assert 55 < end < 100
    status = page.locator("#timeline-status")
    assert "input-bound, block 1 of 2" in status.inner_text()
    assert "55.0 ms" in status.inner_text()
    assert page.locator("#timeline-causes [aria-pressed=true]").inner_text() == "input-bound"
    assert page.evaluate("document.activeElement.id") == "timeline-box"
    page.get_by_role("button", name="Next block").click()
    start, end = zoom(page)
    assert start < 90 < 95 < end
    assert end - start < 20
    page.get_by_role("button", name="Everything").click()
    assert zoom(page) == (0, 100)


def test_the_timeline_is_worked_by_keys(open_page: Open, write: Any) -> None:
    page = open_page(write(drawn())).page
    page.locator("#timeline-box").focus()
    page.keyboard.press("+")
    assert zoom(page) == (25, 75)
    page.keyboard.press("ArrowRight")
    assert zoom(page) == (37.5, 87.5)
    page.keyboard.press("-")
    assert zoom(page) == (12.5, 100) or zoom(page) == (0, 100)
    page.keyboard.press("0")
    assert zoom(page) == (0, 100)


def test_the_wheel_scrolls_the_page_and_zooms_only_with_ctrl(open_page: Open, write: Any) -> None:
    page = open_page(write(drawn())).page
    page.locator("#timeline-box").scroll_into_view_if_needed()
    box = page.locator("#timeline-chart").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 60)
    before = page.evaluate("scrollY")
    page.mouse.wheel(0, -120)
    until(page, f"scrollY < {before}")
    assert zoom(page) == (0, 100)
    box = page.locator("#timeline-chart").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 60)
    page.keyboard.down("Control")
    page.mouse.wheel(0, -240)
    page.keyboard.up("Control")
    until(page, "document.querySelector('#timeline-chart').dataset.end < 100")


def test_a_finger_scrolls_past_the_timeline(open_page: Open, write: Any) -> None:
    page = open_page(write(drawn()), width=400, height=800, touch=True).page
    page.locator("#timeline-box").scroll_into_view_if_needed()
    box = page.locator("#timeline-chart").bounding_box()
    assert box is not None
    before = page.evaluate("scrollY")
    session = page.context.new_cdp_session(page)
    x, y = box["x"] + 150, box["y"] + 60
    session.send("Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": [{"x": x, "y": y}]})
    for k in range(1, 12):
        moved = [{"x": x, "y": y + 15 * k}]
        session.send("Input.dispatchTouchEvent", {"type": "touchMove", "touchPoints": moved})
        page.wait_for_timeout(16)
    session.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    until(page, f"scrollY < {before}")
    assert zoom(page) == (0, 100)


def test_a_drag_moves_the_timeline(open_page: Open, write: Any) -> None:
    page = open_page(write(drawn())).page
    page.get_by_role("button", name="Zoom in").click()
    assert zoom(page) == (25, 75)
    box = page.locator("#timeline-chart").bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] / 2, box["y"] + 60
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 100, y, steps=4)
    page.mouse.up()
    # The chart follows in steps of its own.
    chart = "document.querySelector('#timeline-chart').dataset"
    until(page, f"{chart}.start < 25 && Math.abs({chart}.end - {chart}.start - 50) < 0.5")


def test_a_block_tells_its_name_and_time_on_hover_and_on_click(open_page: Open, write: Any) -> None:
    page = open_page(write(drawn())).page
    box = page.locator("#timeline-chart").bounding_box()
    assert box is not None
    # Row 3: the idle lane's blocks (head, phases, head, idle), under the axis.
    page.locator("#timeline-box").scroll_into_view_if_needed()
    box = page.locator("#timeline-chart").bounding_box()
    assert box is not None
    spot = (box["x"] + 0.3 * box["width"], box["y"] + 22 + 3.5 * 18)
    page.mouse.move(*spot)
    page.wait_for_selector(".tip")
    assert "device idle: waiting for the next batch" in page.locator(".tip").inner_text()
    assert "55.0 ms" in page.locator(".tip").inner_text()
    page.mouse.click(*spot)
    assert "waiting for input" in page.locator("#timeline-status").inner_text()


def test_the_code_of_the_first_fix_is_copied(open_page: Open, write: Any) -> None:
    watched = open_page(write(drawn()))
    page = watched.page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy").first.click()
    until(page, "document.querySelector('.copy').textContent === 'Copied'")
    assert "num_workers=4" in page.evaluate("navigator.clipboard.readText()")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("make", [drawn, empty], ids=["drawn", "empty"])
def test_no_rule_of_accessibility_is_broken(
    make: Callable[[], Diagnosis], dark: bool, open_page: Open, write: Any
) -> None:
    """axe-core, WCAG 2.1 A and AA, with everything unfolded."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    page = open_page(write(make()), dark=dark).page
    page.evaluate("for (const d of document.querySelectorAll('details')) d.open = true")
    # The rules are put in by hand: the page's own policy lets no foreign script in.
    found = axe.Axe().run(
        page,
        options={
            "runOnly": {
                "type": "tag",
                "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"],
            }
        },
    )
    assert [(v["id"], [n["target"] for n in v["nodes"]][:5]) for v in found.response["violations"]] == []


def test_the_theme_is_chosen_by_hand_and_charts_follow(open_page: Open, write: Any) -> None:
    page = open_page(write(drawn())).page
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    for _ in range(2):
        page.get_by_role("button", name=re.compile("Theme")).click()
    assert page.get_by_role("button", name="Theme: dark").is_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != light


def test_print_is_light_tells_how_things_were_measured_and_leaves_the_controls_out(
    open_page: Open, write: Any
) -> None:
    page = open_page(write(drawn()), dark=True).page
    assert page.pdf()[:4] == b"%PDF"
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details.how:not([open])").count() == 0
    assert page.evaluate("document.querySelector('#timeline-chart').clientWidth") <= 690
    assert not page.locator("nav.sections").is_visible()
    assert page.locator("html").get_attribute("data-theme") == "light"
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("html").get_attribute("data-theme") is None


def test_memory_and_step_charts_are_drawn_from_the_diagnosis(open_page: Open, write: Any) -> None:
    page = open_page(write(drawn())).page
    memory = page.locator(".memory-chart svg")
    assert memory.count() == 1
    assert "peak 150 MiB" in (memory.text_content() or "")
    steps = page.locator("#steps-chart svg").text_content() or ""
    assert "log scale" in steps
    assert "87.4 ms" in steps


def test_a_thousand_ranks_fit_and_each_can_be_asked_for(open_page: Open, write: Any) -> None:
    late = Straggler(ranks=(37,), kind="persistent", cause="input", costs_ms=20.0, late_ms=20.0)
    page = write(job(1024, late))
    assert page.stat().st_size < 1_500_000
    shown = open_page(page).page
    heat = shown.locator("#heat")
    heat.scroll_into_view_if_needed()
    heat.focus()
    for _ in range(38):
        heat.press("ArrowRight")
    assert "rank 37, step 1 of 16: 20" in shown.locator("#heat-told").inner_text()
    box = heat.bounding_box()
    assert box is not None
    assert box["width"] > 600
    heat.hover(position={"x": box["width"] - 1, "y": 3})
    assert shown.locator("#heat-told").inner_text().startswith("rank 1023, step 1")
    assert shown.locator("#ranks-table tbody th").first.inner_text() == "37", "who is late stands first"


def test_beside_all_ranks_some_are_shown_larger_by_machine_and_group(open_page: Open, write: Any) -> None:
    shown = open_page(write(grid(1024, stages=4))).page
    heat, near, told = shown.locator("#heat"), shown.locator("#heat-near"), shown.locator("#heat-told")
    heat.scroll_into_view_if_needed()
    box = heat.bounding_box()
    assert box is not None
    # A click on the map of all brings the place into the larger one.
    heat.click(position={"x": 124 + (box["width"] - 124) * 0.5, "y": 60})
    until(shown, "document.querySelector('#heat-near').scrollLeft > 1000")
    canvas = near.locator("canvas")
    inner = canvas.bounding_box()
    assert inner is not None
    assert inner["width"] <= box["width"], "only what is in sight is drawn"
    canvas.hover(position={"x": 124 + (inner["width"] - 124) / 2, "y": 60})
    text = told.inner_text()
    found = re.match(r"rank (\d+), step .* than its peers; node (\d+), stage (\d), tensor (\d+)-(\d+)", text)
    assert found is not None, text
    rank, node, stage, first, last = map(int, found.groups())
    assert abs(rank - 512) < 16
    assert (node, stage) == (rank // 8, rank // 256)
    assert first <= rank <= last
    assert shown.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_few_ranks_are_shown_once(open_page: Open, write: Any) -> None:
    shown = open_page(write(grid(16))).page
    shown.locator("#heat").scroll_into_view_if_needed()
    assert not shown.locator("#heat-near").is_visible()
