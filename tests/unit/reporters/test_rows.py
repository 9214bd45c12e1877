"""The plain rows behind the reports: sums, order, and what is left for --verbose."""

from __future__ import annotations

import msgspec
import pytest
from recorded.diagnosed import diagnosis_of
from unit.reporters.sample import empty, sample

from torch_bottleneck.model import words as wording
from torch_bottleneck.model.codes import BottleneckClass, Part
from torch_bottleneck.model.diagnosis import BudgetLine
from torch_bottleneck.model.run import SourceSite
from torch_bottleneck.model.verify import Outcome
from torch_bottleneck.reporters import html, terminal
from torch_bottleneck.reporters.rows.closing import capture_line, settings_lines
from torch_bottleneck.reporters.rows.diagnosis import bar_cells, budget_rows, cause_rows, headline, step_line
from torch_bottleneck.reporters.rows.fixes import combination_line, fix_rows
from torch_bottleneck.reporters.rows.memory import memory_rows, memory_sections


def test_budget_rows_lose_nothing_and_end_with_the_unexplained() -> None:
    rows = budget_rows(sample())
    assert sum(row.ms for row in rows) == pytest.approx(87.4)
    assert [row.label for row in rows][-2:] == ["2 smaller lines", "unexplained"]
    assert "1 smaller lines" not in {row.label for row in budget_rows(sample(), most=7)}
    assert [row.ms for row in rows[:-2]] == sorted((row.ms for row in rows[:-2]), reverse=True)
    assert len(budget_rows(sample(), whole=True)) == len(sample().budget)


def test_a_budget_has_no_more_lines_than_the_bar_has_patterns() -> None:
    parts = [part for part in Part if part is not Part.UNEXPLAINED]
    lines = [BudgetLine(part=part, ms=5.0 + i, share=0.05) for i, part in enumerate(parts)]
    full = msgspec.structs.replace(
        sample(), budget=(*lines, BudgetLine(part=Part.UNEXPLAINED, ms=1.0, share=0.01))
    )
    rows = budget_rows(full)
    assert len(rows) == 8
    assert rows[-2].label == f"{len(parts) - 6} smaller lines"
    assert sum(row.ms for row in rows) == pytest.approx(sum(line.ms for line in full.budget))


def test_unexplained_is_shown_even_when_it_is_nothing() -> None:
    none = msgspec.structs.replace(
        sample(),
        budget=(
            BudgetLine(part=Part.INPUT, ms=87.4, share=1.0),
            BudgetLine(part=Part.UNEXPLAINED, ms=0.0, share=0.0),
        ),
    )
    assert [row.label for row in budget_rows(none)] == ["waiting for input", "unexplained"]


@pytest.mark.parametrize("width", [1, 7, 30, 80])
@pytest.mark.parametrize(
    "shares", [[1.0], [0.5, 0.5], [0.62, 0.2, 0.1, 0.05, 0.03], [0.333, 0.333, 0.334], [0, 0, 1]]
)
def test_the_bar_is_exactly_full(shares: list[float], width: int) -> None:
    cells = bar_cells(shares, width)
    assert sum(cells) == width
    assert all(abs(cell - share * width) < 1 for cell, share in zip(cells, shares, strict=True))


def test_a_bar_of_nothing_is_empty() -> None:
    assert bar_cells([], 10) == []
    assert bar_cells([0.0, 0.0], 10) == [0, 0]


@pytest.mark.parametrize(
    ("told", "shown"),
    [("each step waits", "Each step waits"), ("empty_cache() runs", "empty_cache() runs")],
)
def test_a_headline_is_a_sentence_unless_it_begins_with_a_name(told: str, shown: str) -> None:
    diagnosis = sample()
    name = diagnosis.verdict.bottleneck_class.value
    verdict = msgspec.structs.replace(diagnosis.verdict, headline=f"{name}: {told}")
    assert headline(msgspec.structs.replace(diagnosis, verdict=verdict)) == shown


def test_causes_below_the_threshold_are_apart() -> None:
    worth, small = cause_rows(sample())
    assert [row.name for row in worth] == ["input-bound", "launch-bound"]
    assert [row.name for row in small] == ["sync-bound"]
    assert worth[0].sites == ("train.py:41 (main)",)
    assert worth[1].after_previous == "", "5.8 and 6.0 ms: the same"


def test_what_is_suspected_easily_is_told_with_how_often_it_happens() -> None:
    base = sample()
    assert [row.brief for row in cause_rows(base)[1]] == ["sync-bound 0.3 ms"]
    title = "270 reads of values per step take 0.03 ms"
    counted = msgspec.structs.replace(base.causes[2], headline=title, share=0.0003)
    other = msgspec.structs.replace(base.causes[1], share=0.0003, negligible=True)
    _, small = cause_rows(msgspec.structs.replace(base, causes=(base.causes[0], other, counted)))
    assert [row.brief for row in small] == [title]


def test_a_cause_that_others_cover_says_what_is_left_of_it() -> None:
    base = sample()
    covered = msgspec.structs.replace(base.causes[1], after_previous_ms=1.2)
    worth, _ = cause_rows(msgspec.structs.replace(base, causes=(base.causes[0], covered)))
    assert worth[1].after_previous == "gone with input-bound"
    assert worth[1].covered, "1.2 of 87.4 ms are below 2 %"
    half = msgspec.structs.replace(base.causes[1], after_previous_ms=3.0)
    worth, _ = cause_rows(msgspec.structs.replace(base, causes=(base.causes[0], half)))
    assert worth[1].after_previous == "3.0 ms of it remain without input-bound"
    assert not worth[1].covered


def test_under_a_compute_verdict_the_others_are_asked_without_the_first_that_can_go() -> None:
    base = sample()
    work = msgspec.structs.replace(base.causes[0], bottleneck_class=BottleneckClass.COMPUTE, code="BN301")
    left = msgspec.structs.replace(base.causes[1], after_previous_ms=0.0)
    worth, _ = cause_rows(msgspec.structs.replace(base, causes=(work, base.causes[0], left)))
    assert worth[2].after_previous == "gone with input-bound"


def test_the_work_itself_has_no_step_without_it() -> None:
    base = sample()
    work = msgspec.structs.replace(
        base.causes[0], bottleneck_class=BottleneckClass.COMPUTE, code="BN301", predicted_ms=2.6
    )
    worth, _ = cause_rows(msgspec.structs.replace(base, causes=(work,)))
    assert worth[0].without == ""
    assert worth[0].means == "the work itself"


def test_lines_of_the_script_are_shown_from_where_it_was_started() -> None:
    base = sample()
    site = SourceSite(file="/home/someone/project/train.py", line=41, function="main")
    other = SourceSite(file="/home/someone/project/pkg/model.py", line=3)
    cause = msgspec.structs.replace(base.causes[0], sites=(site, other))
    worth, _ = cause_rows(msgspec.structs.replace(base, causes=(cause,)))
    assert worth[0].sites == ("train.py:41 (main)", "pkg/model.py:3")


@pytest.mark.parametrize("most", range(3, 9))
def test_fewer_lines_lose_nothing_either(most: int) -> None:
    rows = budget_rows(sample(), most=most)
    assert len(rows) <= most
    assert sum(row.ms for row in rows) == pytest.approx(87.4)
    assert not any(row.label.startswith("1 ") for row in rows)


def test_prose_is_cut_at_its_end_and_names_in_their_middle() -> None:
    assert wording.brief("short", 10) == "short"
    cut = wording.brief("the effect is within the noise, and more", 33)
    assert cut == "the effect is within the noise …"
    assert len(wording.brief("x" * 500, 40)) == 40


def test_a_fix_says_what_is_predicted_and_what_is_not() -> None:
    rows = {row.fix: row for row in fix_rows(sample())}
    assert rows["FX101"].gain == "87.4 → 33.0 ms (2.65×)"
    assert rows["FX410"].gain.startswith("at best 87.4 → 81.0 ms")
    assert rows["FX107"].gain == "gain not predicted"
    assert rows["FX318"].gain == ""
    assert rows["FX410"].unchecked == "whether shapes are static"
    assert [fix for fix, row in rows.items() if row.minor] == ["FX601", "FX318"]


def test_a_fix_that_buys_memory_with_time_says_what_it_costs() -> None:
    base = sample()
    bought = msgspec.structs.replace(base.suggestions[0], predicted_ms=None, saves_ms=None, adds_ms=12.6)
    (row,) = fix_rows(msgspec.structs.replace(base, suggestions=(bought,)))
    assert row.after == "at most 100.0 ms (0.87×)"
    assert row.gain == "87.4 ms → at most 100.0 ms (0.87×), for memory"


def test_the_step_line_says_how_the_time_is_known() -> None:
    base = sample()
    assert "over 40 steps" in step_line(base)
    for how, words in (("profiled", "with the profiler, so too long"), ("given", "as given")):
        step = msgspec.structs.replace(base.step, true_is=how)
        assert words in step_line(msgspec.structs.replace(base, step=step))
    assert step_line(empty()) == "step time not measured"


def test_settings_are_grouped_by_state() -> None:
    assert settings_lines(sample()) == [
        ("on", "autocast (bfloat16), fused optimizer"),
        ("off", "TF32, torch.compile"),
        ("unknown", "flash attention"),
    ]


def test_the_capture_line_states_only_what_was_measured() -> None:
    line = capture_line(sample())
    for words in ("quality good", "1.2 %", "1.34×", "8.2 µs per step", "6.1 s"):
        assert words in line
    assert capture_line(empty()) == "quality poor"
    assert (
        capture_line(sample(), short=True)
        == "good; profiling 1.34×, corrected; hooks 8.2 µs per step; added 6.1 s"
    )
    slow = msgspec.structs.replace(sample().capture, replay_error=0.04, overhead={"hook_us_per_step": 2345.6})
    line = capture_line(msgspec.structs.replace(sample(), capture=slow), short=True)
    assert "replay off by 4.0 %" in line
    assert line.endswith("hooks 2346 µs per step")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "not measured"),
        (0.0, "0.000"),
        (-0.0001, "0.000"),
        (0.0421, "0.042"),
        (6.607, "6.61"),
        (87.43, "87.4"),
        (12345.6, "12 346"),
    ],
)
def test_milliseconds_keep_three_figures(value: float | None, text: str) -> None:
    assert wording.milliseconds(value) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (None, "-"),
        (0.0, "0.0 %"),
        (0.0004, "0.0 %"),
        (0.0008, "<0.1 %"),
        (-0.0001, "0.0 %"),
        (0.0712, "7.1 %"),
        (0.6247, "62 %"),
        (-0.0313, "-3.1 %"),
    ],
)
def test_percent(share: float | None, text: str) -> None:
    assert wording.percent(share) == text


def test_clean_takes_away_what_could_act_on_a_terminal() -> None:
    assert wording.clean("a\x1b[31mb\x1b]0;title\x07c\nd\te\x00f\u202eg") == "abc d e f g"
    assert wording.clean("plain [bold] `text` é 日本") == "plain [bold] `text` é 日本"


def test_long_places_keep_their_end() -> None:
    site = SourceSite(file="/home/someone/" + "deep/" * 30 + "train.py", line=7, function="main")
    shown = wording.place(site, width=40)
    assert shown.endswith("deep/train.py:7 (main)")
    assert shown.startswith("…/")
    assert len(shown) <= 40


def test_two_fixes_replayed_together_are_one_line() -> None:
    line = combination_line(sample())
    assert line.startswith("FX101 and FX311 together:")
    assert "28.5 ms" in line
    assert combination_line(msgspec.structs.replace(sample(), combination=None)) == ""


def test_what_is_named_together_has_its_title_in_the_report() -> None:
    diagnosis = sample()
    first = diagnosis.suggestions[0]
    minor = msgspec.structs.replace(first, fix="FX505", title="Hold the collector", note=True)
    suggestions = (*diagnosis.suggestions, *(first for _ in range(5)), minor)
    pair = msgspec.structs.replace(diagnosis.combination, fixes=("FX101", "FX505"))
    text = terminal.render(msgspec.structs.replace(diagnosis, suggestions=suggestions, combination=pair))
    assert "FX101 and FX505 together" in text
    assert any(line.startswith("FX505 Hold the collector") for line in text.splitlines())
    unknown = Outcome(fixes=("FX101", "FX207"), title="Together: Workers, Reuse large temporaries")
    text = terminal.render(msgspec.structs.replace(diagnosis, tried=(unknown,)))
    assert "FX101 and FX207 together (Workers, Reuse large temporaries)" in text


@pytest.mark.parametrize("name", ["memory-oom-caught-h200", "memory-activations-h200"])
def test_page_and_terminal_say_the_same_of_memory(name: str) -> None:
    """Where memory ran out both show what was held then, not at a peak that came before."""
    diagnosis = diagnosis_of(name)
    (section,) = memory_sections(diagnosis)
    texts = [text for _, text in memory_rows(diagnosis, whole=True)]
    page = " ".join(html.render(diagnosis).split())
    assert section.head == tuple(texts[: len(section.head)])
    assert all(text in page for text in section.head)
    largest = section.composition[0]
    assert texts[len(section.head)].startswith(f"{largest.category} {largest.size} ({largest.share})")
    assert f">{largest.size}</td>" in page
    assert (diagnosis.memory[0].out_of_memory is not None) == (section.at == "when memory ran out")


def test_what_was_tried_in_the_run_says_what_it_did_and_what_does_not_help_stands_apart() -> None:
    from torch_bottleneck.model.fix import MeasuredHere
    from torch_bottleneck.reporters.rows.fixes import fix_rows, measured_here, useless_rows

    shown = sample()
    assert "FX412" not in [row.fix for row in fix_rows(shown)]
    assert useless_rows(shown) == [
        ("FX412 Record CUDA graphs", "0.86× (0.80 to 0.92) in this run, slower, loss same")
    ]

    def worded(**fields: object) -> str:
        measured = MeasuredHere(**{"verdict": "faster", "speedup": 1.5, **fields})  # type: ignore[arg-type]
        return measured_here(msgspec.structs.replace(shown.suggestions[0], measured=measured))

    assert worded(low=1.4, high=1.6, loss="close") == "1.50× (1.40 to 1.60) in this run, loss close"
    assert worded(loss="changed", loss_change=0.5) == "1.50× in this run, changes the loss by 50 %"
    assert worded(verdict="failed", speedup=None, note="RuntimeError: no") == "fails here: RuntimeError: no"
    alone = worded(low=1.4, high=1.6, loss="same", tried_as="by CUDA graphs alone")
    assert alone == "1.50× (1.40 to 1.60) in this run, by CUDA graphs alone, loss same"
    assert worded(verdict="undecided") == "1.50× in this run, timed once: too little to decide"
    wide = worded(verdict="undecided", low=0.9, high=2.5)
    assert wide == "1.50× (0.90 to 2.50) in this run, too noisy to decide"
    assert worded(verdict="not-tried", speedup=None, note="time") == ""


def test_other_ways_to_the_same_gain_stand_beside_the_first() -> None:
    from torch_bottleneck.model.fix import MeasuredHere

    replace = msgspec.structs.replace
    shown = sample()
    first, second, *rest = shown.suggestions
    same = replace(second, fix="FX208", title="Back large tensors", predicted_ms=first.predicted_ms)
    rows = fix_rows(replace(shown, suggestions=(first, second, same, *rest)))
    found = {row.fix: row for row in rows}
    assert found[first.fix].others == ("FX208 Back large tensors",)
    assert found["FX208"].instead_of == first.fix
    assert found[second.fix].instead_of == ""

    measured = replace(same, measured=MeasuredHere(verdict="faster", speedup=1.1, loss="same"))
    rows = fix_rows(replace(shown, suggestions=(first, measured)))
    assert [row.instead_of for row in rows] == ["", ""], "what was measured has a figure of its own"
    helps = replace(measured, fix=first.fix)
    useless = replace(helps, measured=MeasuredHere(verdict="slower", speedup=0.9, loss="same"))
    for leader, expected in ((helps, first.fix), (useless, "")):
        found = {row.fix: row for row in fix_rows(replace(shown, suggestions=(leader, same)))}
        assert found["FX208"].instead_of == expected


def test_a_fix_says_how_far_its_predictions_were_from_measurements() -> None:
    from torch_bottleneck.model.fix import Record
    from torch_bottleneck.reporters.rows.fixes import record_words

    record = Record(predictions=3, error=0.042, close=2, bounds=4, held=3)
    assert record_words(record) == '3 predictions: median error 4.2 %, 2 within 10 %; 4 "at best": 3 held'
    assert record_words(Record(predictions=1, error=0.5)) == "1 prediction: median error 50 %, 0 within 10 %"
    assert record_words(Record(bounds=1, held=0)) == '1 "at best": 0 held'

    shown = sample()
    first = msgspec.structs.replace(shown.suggestions[0], record=record)
    with_record = msgspec.structs.replace(shown, suggestions=(first, *shown.suggestions[1:]))
    told = record_words(record)
    assert told in " ".join(terminal.render(with_record, verbose=True).split())
    assert told.replace('"', "&#34;") in html.render(with_record)
    assert [row.record for row in fix_rows(with_record)][:2] == [told, ""]
