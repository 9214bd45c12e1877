"""Every recorded run on one screen of 80 columns, with all that a reader needs to act."""

from __future__ import annotations

import re

import msgspec
import pytest
from recorded.cases import CASES
from recorded.diagnosed import as_measured
from unit.reporters.sample import sample

from torch_bottleneck.model.words import milliseconds
from torch_bottleneck.reporters import markdown, terminal
from torch_bottleneck.reporters.rows.diagnosis import cause_rows
from torch_bottleneck.reporters.rows.fixes import fix_rows

SCREEN = 40
LINE = re.compile(r"^\S .{8,}? +(?P<ms>\d[\d .]*) ms +(?P<share>[\d.]+) %", re.MULTILINE)


def budget_lines(text: str) -> list[tuple[str, float, float]]:
    part = text.partition("Where the step goes\n")[2].partition("\n\n")[0]
    return [
        (found[0], float(found["ms"].replace(" ", "")), float(found["share"]))
        for found in LINE.finditer(part)
    ]


@pytest.mark.parametrize("name", CASES)
def test_a_recorded_run_fits_the_screen_and_says_what_to_do(name: str) -> None:
    diagnosis = as_measured(CASES[name])
    text = terminal.render(diagnosis)
    lines = text.splitlines()
    assert len(lines) <= SCREEN
    assert max(map(len, lines)) <= 80
    assert "\n\n\n" not in text

    verdict = diagnosis.verdict.bottleneck_class.value
    assert lines[0].startswith(verdict.upper())
    assert verdict == "undetermined" or f"confidence {diagnosis.verdict.confidence}" in lines[0]
    worth, _ = cause_rows(diagnosis)
    for row in worth[:1]:
        assert row.code in text
        assert row.sites[:1] == () or row.sites[0] in text, "where in the code"
    for row in worth:
        assert row.name in text, "every cause above 2 % is named with its price"
        assert f"{row.cost} ms" in " ".join(text.split())
    fixes = [row for row in fix_rows(diagnosis) if not row.minor]
    top = [row for row in fixes if not row.instead_of][:2]
    for row in top:
        assert f"{row.fix} {row.title}" in text
        assert row.after in text
    ways = [row for row in fixes if row.instead_of and row.instead_of == top[0].fix]
    assert not ways or f"or: {ways[0].fix}" in text or f"also: {ways[0].fix}" in text
    assert not top or "    " + top[0].code.splitlines()[-1] in text or "bottleneck catalog show" in text
    assert re.search(r"^(on|off|partly|unknown): ", text, flags=re.MULTILINE)
    assert f"capture: {diagnosis.capture.quality}" in text


@pytest.mark.parametrize("name", CASES)
def test_the_budget_on_the_screen_adds_up_and_hides_little(name: str) -> None:
    diagnosis = as_measured(CASES[name])
    true_ms = diagnosis.step.true_ms
    shown = budget_lines(terminal.render(diagnosis))
    if true_ms is None or not shown:
        assert all(line.part.value == "unexplained" for line in diagnosis.budget)
        return
    places = len(milliseconds(true_ms).partition(".")[2])
    assert sum(ms for _, ms, _ in shown) == pytest.approx(
        true_ms, abs=0.51 * len(shown) * 10**-places + 0.001 * true_ms
    )
    assert sum(share for _, _, share in shown) == pytest.approx(100, abs=0.5 * len(shown))
    assert "unexplained" in shown[-1][0] or "unexplained" in terminal.render(diagnosis)
    gathered = [share for line, _, share in shown if "smaller lines" in line]
    assert all(share <= 25 for share in gathered)


@pytest.mark.parametrize("width", [40, 50, 60, 120])
@pytest.mark.parametrize("name", ["example-sync-bound", "memory-oom-caught-h200", "case-recompiles-by-shape"])
def test_no_line_is_wider_than_the_terminal(name: str, width: int) -> None:
    for unicode in (True, False):
        text = terminal.render(as_measured(CASES[name]), width=width, unicode=unicode)
        assert max(map(len, text.splitlines())) <= width


def test_a_narrow_terminal_still_has_the_figures() -> None:
    diagnosis = as_measured(CASES["example-sync-bound"])
    text = terminal.render(diagnosis, width=40)
    (first, *_), _ = cause_rows(diagnosis)
    assert re.search(rf"^{first.name} {first.cost} ms +{first.without} ms$", text, flags=re.MULTILINE)
    assert re.search(r"^What to change +\(now 30\.1 ms\)$", text, flags=re.MULTILINE)
    assert fix_rows(diagnosis)[0].after in text


@pytest.mark.parametrize("name", ["example-sync-bound", "example-input-bound", "case-fp32-products"])
def test_report_md_says_the_same(name: str) -> None:
    diagnosis = as_measured(CASES[name])
    report = markdown.render(diagnosis).replace("\\", "")
    worth, _ = cause_rows(diagnosis)
    for row in worth:
        assert f"{row.name} | {row.code} | {'≤ ' if row.bound else ''}{row.cost}" in report
        assert all(site in report for site in row.sites[:3])
        assert row.after_previous in report
    for fix in fix_rows(diagnosis):
        assert fix.gain in report
        assert fix.code in markdown.render(diagnosis)


def test_causes_that_go_with_the_first_are_one_line() -> None:
    base = sample()
    gone = msgspec.structs.replace(base.causes[1], after_previous_ms=0.1)
    text = terminal.render(msgspec.structs.replace(base, causes=(base.causes[0], gone, base.causes[2])))
    assert "\ngone with input-bound: launch-bound 6.0 ms\nbelow 2 % of the step: sync-bound 0.3 ms\n" in text


def test_an_excerpt_of_code_leaves_out_whole_imports_and_empty_lines() -> None:
    code = "from a import (\n    b,\n    c,\n)\n\n\nx = b(c)\n\ny = x\n"
    base = sample()
    first = msgspec.structs.replace(base.suggestions[0], code=code)
    lines = terminal.render(msgspec.structs.replace(base, suggestions=(first,))).splitlines()
    at = lines.index("    x = b(c)")
    assert lines[at + 1] == "    y = x"
    assert not any(line.strip() in ("b,", "c,", ")") for line in lines)


def test_code_that_does_not_parse_is_shown_as_it_is() -> None:
    base = sample()
    first = msgspec.structs.replace(base.suggestions[0], code="import x\n$ pip install y")
    assert "    $ pip install y" in terminal.render(msgspec.structs.replace(base, suggestions=(first,)))


def test_with_nothing_priced_the_fixes_are_named_as_worth_a_look() -> None:
    base = sample()
    notes = tuple(msgspec.structs.replace(fix, note=True, predicted_ms=None) for fix in base.suggestions[:2])
    text = terminal.render(msgspec.structs.replace(base, suggestions=notes, combination=None))
    assert "worth a look: FX101 Give the DataLoader more workers, FX410 Compile the model" in text
    assert "also: " not in text


def test_a_cause_that_shows_as_nothing_is_not_listed() -> None:
    base = sample()
    nothing = msgspec.structs.replace(base.causes[2], cost_ms=0.001, share=0.00001)
    text = terminal.render(msgspec.structs.replace(base, causes=(*base.causes[:2], nothing)))
    assert "sync-bound" not in text
