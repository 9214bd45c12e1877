"""All renderers, on one shared diagnosis, its hostile twin and an empty one."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from unit.reporters.sample import HOSTILE_NAME, empty, hostile, sample

from torch_bottleneck.model.codes import WhatIf
from torch_bottleneck.model.diagnosis import Diagnosis, WhatIfResult
from torch_bottleneck.model.documents import load_diagnosis
from torch_bottleneck.reporters import json as json_reporter
from torch_bottleneck.reporters import markdown, terminal
from torch_bottleneck.reporters.base import FORMATS
from torch_bottleneck.reporters.output import render_for

EVERY = [sample, hostile, empty]


def bounded() -> Diagnosis:
    """The sample, where the price of dispatching is the most that it can be."""
    base = sample()
    answer = WhatIfResult(
        question=WhatIf.DISPATCH_FREE, step_ms=81.4, saves_ms=6.0, basis="replay", bound=True
    )
    return msgspec.structs.replace(base, what_ifs=(*base.what_ifs, answer))


def test_a_price_that_is_a_bound_says_so() -> None:
    lines = terminal.render(bounded()).splitlines()
    (line,) = [line for line in lines if line.startswith("launch-bound")]
    assert "≤ 6.0 ms" in line
    assert line.endswith("≥ 81.4 ms")
    assert "≤" not in terminal.render(sample())


def test_a_bound_of_a_fix_that_is_as_large_makes_no_bound_of_the_cause() -> None:
    base = sample()
    ready = next(answer for answer in base.what_ifs if answer.question is WhatIf.INPUT_READY)
    of_a_fix = msgspec.structs.replace(ready, question=WhatIf.PRODUCTION_CHEAPER, bound=True)
    assert "≤" not in terminal.render(msgspec.structs.replace(base, what_ifs=(of_a_fix, *base.what_ifs)))


def test_the_terminal_report_fits_one_screen() -> None:
    lines = terminal.render(sample()).splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 40


def test_the_terminal_report_says_the_verdict_first_and_then_all_there_is_to_act_on() -> None:
    text = terminal.render(sample())
    assert text.splitlines()[0] == "INPUT-BOUND   confidence high"
    in_order = [
        "54.6 of 87.4 ms (62 %)",
        "Where the step goes",
        "waiting for input",
        "What each cause costs",
        "BN101",
        "train.py:41",
        "What to change",
        "FX101",
        "33.0 ms (2.65×)",
        "num_workers=4",
        "on: ",
        "capture: ",
    ]
    positions = [text.index(words) for words in in_order]
    assert positions == sorted(positions)
    assert "Findings, with their evidence" not in text


def test_verbose_adds_everything_else() -> None:
    text = terminal.render(sample(), verbose=True)
    for words in (
        "55.0 ms per step inside next(loader)",
        "[baseline window]",
        "Note: Not slow host-to-device copies",
        "one-launch: at best 81.0 ms",
        "nvjet_tst_128x256",
        "matmul.precision = highest",
        "memory: absent: --no-memory",
        "rank 1",
        "undo: Set num_workers back.",
        "https://docs.pytorch.org/docs/stable/data.html",
    ):
        assert words in text, words


@pytest.mark.parametrize("make", EVERY)
@pytest.mark.parametrize("width", [40, 60, 80, 100])
@pytest.mark.parametrize("verbose", [False, True])
def test_no_line_is_wider_than_the_page(make: Any, width: int, verbose: bool) -> None:
    for unicode in (True, False):
        text = terminal.render(make(), width=width, verbose=verbose, unicode=unicode)
        assert max(map(len, text.splitlines())) <= width
        assert not re.search(r"[ \t]+$", text, flags=re.MULTILINE)


@pytest.mark.parametrize("make", EVERY)
def test_no_control_character_reaches_a_reader(make: Any) -> None:
    for text in (terminal.render(make(), verbose=True), markdown.render(make(), verbose=True)):
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", text)
        text.encode()  # no lone surrogates


def test_markup_in_names_is_shown_not_obeyed() -> None:
    text = terminal.render(hostile(), verbose=True)
    assert "[bold]evil[/bold]" in text
    assert "[red]with[/red]" in text


def test_colour_is_there_only_when_asked_for() -> None:
    assert "\x1b[" not in terminal.render(sample())
    coloured = terminal.render(sample(), color=True)
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured).split() == terminal.render(sample()).split()


def test_ascii_is_ascii_where_the_facts_are() -> None:
    text = terminal.render(sample(), unicode=False, verbose=True)
    assert text.isascii()
    assert "33.0 ms (2.65x)" in text
    assert ">= 81.4 ms" in terminal.render(bounded(), unicode=False)
    assert "#####" in text


def test_undetermined_says_why_and_what_to_do() -> None:
    for text in (terminal.render(empty()), markdown.render(empty())):
        assert "undetermined" in text.lower()
        assert "The script ended after 0 optimizer steps." in text
        assert "Let it run for at least 10 steps." in text
        assert "No trace was taken" in text
        assert "ValueError: bad input" in text
    assert "confidence" not in terminal.render(empty())


def test_long_code_is_cut_on_the_screen_and_whole_in_verbose() -> None:
    code = "\n".join(f"line_{n} = {n}" for n in range(30))
    base = sample()
    long = msgspec.structs.replace(
        base, suggestions=(msgspec.structs.replace(base.suggestions[0], code=code), *base.suggestions[1:])
    )
    assert "line_29" not in terminal.render(long)
    assert "more lines" in terminal.render(long)
    assert "line_29" in terminal.render(long, verbose=True)
    assert "line_29" in markdown.render(long)


def test_markdown_tables_keep_their_columns() -> None:
    for diagnosis in (sample(), hostile()):
        lines = markdown.render(diagnosis, verbose=True).splitlines()
        tables = [line for line in lines if line.startswith("|")]
        assert tables
        header = None
        for line in tables:
            cells = len(re.findall(r"(?<!\\)\|", line))
            if "---" in line:
                assert cells == header
            header = cells


def test_markdown_fences_cannot_be_broken_out_of() -> None:
    text = markdown.render(hostile())
    assert "````python" in text
    outside = re.sub(r"(?ms)^(`{3,})python$.*?^\1$", "", text)
    assert "```" not in outside.replace("\\`", "")


def test_markdown_escapes_html() -> None:
    text = markdown.render(hostile(), verbose=True)
    assert "<script>" not in text
    assert "&lt;script&gt;" in text


@pytest.mark.parametrize("make", [sample, empty])
def test_json_reads_back_as_the_same_diagnosis_and_renders_the_same(make: Any, tmp_path: Any) -> None:
    path = tmp_path / "diagnosis.json"
    path.write_text(json_reporter.render(make()))
    again = load_diagnosis(path)
    assert again == make()
    assert load_diagnosis(tmp_path) == again
    for name in ("text", "md"):
        assert render_for(again, name, verbose=True) == render_for(make(), name, verbose=True)


@pytest.mark.parametrize("name", FORMATS["Diagnosis"])
@pytest.mark.parametrize("make", [sample, empty])
def test_every_format_renders_and_ends_in_one_newline(name: str, make: Any) -> None:
    text = render_for(make(), name)
    assert text.endswith("\n")
    assert not text.endswith("\n\n")


def test_a_kernel_name_of_thousands_of_characters_does_not_flood_the_screen() -> None:
    assert len(HOSTILE_NAME) > 4000
    # Four such names and three blocks of folded code: more than a screen, far from a flood.
    assert len(terminal.render(hostile()).splitlines()) <= 90


def test_the_rest_of_the_job_is_a_line_where_there_is_room_and_a_section_of_all() -> None:
    told = sample()
    short = msgspec.structs.replace(told, suggestions=told.suggestions[:1])
    assert "the rest of the job: compiling 41.0 s, import of torch 3.20 s" in terminal.render(short)
    # It is the first that goes: what to change counts more.
    assert "the rest of the job" not in terminal.render(told)
    for text in (terminal.render(told, verbose=True), markdown.render(told, verbose=True)):
        assert "The rest of the job" in text
        assert "compiling: 41.0 s, once (in 2 of the first steps at train.py:41" in text
