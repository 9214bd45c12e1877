"""The account of a job in the terminal, on its page and in the other formats."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest
from recorded.watched_job import recorded

from torch_bottleneck.errors import UsageError
from torch_bottleneck.model.run import SourceSite
from torch_bottleneck.model.watch import (
    AccountLine,
    CaptureTaken,
    Change,
    Growth,
    RankAccount,
    SiteSeconds,
    Watch,
    WithFix,
)
from torch_bottleneck.reporters.base import FORMATS
from torch_bottleneck.reporters.brief import MOST_CHARACTERS
from torch_bottleneck.reporters.output import render_for, save_watch
from torch_bottleneck.reporters.watch_terminal import render

SITE = SourceSite(file="/home/me/project/training/loop_of_the_model.py", line=48, function="validate_model")


def line(part: str, seconds: float, *, count: int = 1, each: float | None = None) -> AccountLine:
    return AccountLine(
        part=part,
        s=seconds,
        share=seconds / 3600,
        count=count,
        ms_each=each,
        site=SITE,
        places=[SiteSeconds(site=SITE, s=seconds)],
    )


def sample(**fields: object) -> Watch:
    """An hour."""
    known: dict[str, object] = {
        "command": ["train.py"],
        "cwd": "/home/me/project",
        "outcome": "the script ended by itself.",
        "exit_code": 0,
        "wall_s": 3600.0,
        "account": [
            line("interpreter and imports", 6.0),
            line("set-up", 54.0),
            line("training steps", 2400.0, count=24000, each=100.0),
            line("validation", 1130.0, count=12, each=94166.7),
            line("unexplained", 10.0),
        ],
        "explained_share": 0.997,
        "goodput": 0.61,
        "steps": 24000,
        "step_ms": 99.0,
        "growth": [],
        "changes": [],
    }
    return Watch(**{**known, **fields})  # type: ignore[arg-type]


def test_an_hour_in_eighty_columns() -> None:
    text = render(sample())
    assert max(map(len, text.splitlines())) <= 80
    for words in (
        "1 h 00 min, of which 67 % in 24000 training steps",
        "goodput 61 %",
        "12 × 94 167 ms",
        "training/loop_of_the_model.py:48 (validate_model)",
        "1 smaller",
        "unexplained",
    ):
        assert words in text, text


def test_growth_says_what_it_will_cost_and_what_grows() -> None:
    growth = Growth(
        what="self.outputs",
        site=SITE,
        ms_per_1000_steps=3.1,
        low=2.9,
        high=3.3,
        objects_per_step=1.0,
        kind="tensors in list",
        step_ms=100.0,
        at_step=2000,
    )
    text = " ".join(render(sample(growth=[growth])).split())
    assert "The step grows by 3.10 ms per 1000 steps (95 %: 2.90 to 3.30)" in text
    assert "at step 100000 it takes 4.0 times as long as at step 2000" in text
    assert "self.outputs (training/loop_of_the_model.py:48 (validate_model)) gains 1 a step" in text
    nothing = Growth(what="step", ms_per_1000_steps=3.1, low=2.9, high=3.3, step_ms=100.0, at_step=2000)
    assert "Nothing was found that grows with it" in " ".join(render(sample(growth=[nothing])).split())
    early = msgspec.structs.replace(nothing, looked=False)
    assert "ended before it was looked for" in " ".join(render(sample(growth=[early])).split())


def test_what_a_fix_leaves_is_told_in_time_too_and_our_own_part_by_another_name_than_the_tool() -> None:
    validation = msgspec.structs.replace(
        line("validation", 1130.0, count=12, each=94166.7),
        with_fix=WithFix(change="on a tenth of the batches", s=113.0, share=0.044, fix="FX512"),
    )
    text = " ".join(render(sample(account=[validation, line("bottleneck", 36.0)])).split())
    assert (
        "validation, every 2000 steps: 31 % of the job (18 min 50 s); on a tenth of the batches 4.4 %"
        " (1 min 53 s, FX512)" in text
    )
    assert "this watching 36.0 s" in text


def test_changes_failures_and_jobs_without_steps_are_told() -> None:
    text = render(sample(changes=[Change(step=1000, ratio=1.31)]))
    assert "From step 1000 on or so, steps are slower: 1.31 times the time before." in text
    text = render(sample(exit_code=137, outcome="the script was ended by SIGKILL."))
    assert "the script was ended by SIGKILL." in text
    text = render(sample(steps=0, goodput=None, step_ms=None), unicode=False)
    assert "no training step was seen in this process" in text
    assert text.isascii()


class Parsed(HTMLParser):
    """What a page draws and where it leads."""

    def __init__(self) -> None:
        super().__init__()
        self.policy = ""
        self.scripts = 0
        self.addresses: list[str] = []
        self.shapes: list[tuple[str, str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        if found.get("http-equiv") == "Content-Security-Policy":
            self.policy = found["content"]
        self.scripts += tag == "script"
        self.addresses += [v for k, v in found.items() if k in ("src", "href") and not v.startswith("#")]
        if tag in ("path", "polyline", "polygon"):
            self.shapes.append((tag, found.get("class", ""), found.get("points", found.get("d", ""))))


def parsed(text: str) -> Parsed:
    page = Parsed()
    page.feed(text)
    return page


@pytest.mark.parametrize("name", FORMATS["Watch"])
def test_every_format_says_the_same_of_the_recorded_job(name: str) -> None:
    text = render_for(recorded(), name)
    for words in ("training steps", "validation", "losses", "train.py", "FX511"):
        assert words in text, words
    assert text.endswith("\n")


def test_the_brief_is_short_and_the_other_formats_are_named() -> None:
    text = render_for(recorded(), "brief")
    assert len(text) <= MOST_CHARACTERS
    told = json.loads(text)
    assert told["steps"] == 2560
    assert told["account"][0]["part"] == "training steps"
    with pytest.raises(UsageError, match="no format 'sarif'"):
        render_for(recorded(), "sarif")


def test_the_page_asks_nothing_of_a_network_and_runs_no_script() -> None:
    page = parsed(render_for(recorded(), "html"))
    assert "default-src 'none'" in page.policy
    assert not page.scripts and not page.addresses
    drawn = [shape for shape in page.shapes if shape[0] == "path"]
    columns = recorded().timeline
    assert columns is not None
    assert len(drawn) >= len(columns.parts)
    # Whole, however long: a drawing that is cut off is not drawn at all.
    line = next(shape for shape in page.shapes if "series" in shape[1])
    assert len(line[2].split()) == len(recorded().step_times.step)
    assert all(0 <= float(y) <= 100 for _, y in (point.split(",") for point in line[2].split()))
    assert any("trend" in shape[1] for shape in page.shapes)


def test_names_from_the_job_stay_text_on_the_page() -> None:
    nasty = '<img src=x onerror="alert(1)">'
    site = SourceSite(file=f"/{nasty}.py", line=1, function=nasty)
    hostile = sample(
        command=[nasty],
        cwd=nasty,
        outcome=nasty,
        exit_code=1,
        problem=nasty,
        account=[msgspec.structs.replace(line("validation", 6.0), places=[SiteSeconds(site=site, s=1.0)])],
        growth=[
            Growth(
                what=nasty,
                site=site,
                ms_per_1000_steps=1,
                low=1,
                high=1,
                step_ms=1,
                at_step=9,
                kind=nasty,
                objects_per_step=1.0,
            )
        ],
    )
    for name in ("html", "md"):
        assert "<img" not in render_for(hostile, name)


def test_a_job_without_steps_or_times_has_a_page() -> None:
    page = render_for(sample(steps=0, step_ms=None, goodput=None), "html")
    assert "too few usual steps" in page
    assert "The job over time" not in page


def test_the_reports_are_saved_and_a_disk_that_refuses_them_fails_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_watch(recorded(), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"watch.json", "report.md", "report.html"}
    assert not capsys.readouterr().err
    (tmp_path / "file").write_text("")
    save_watch(recorded(), tmp_path / "file")
    assert capsys.readouterr().err.count("Cannot write") == 3


def rank(number: int, **seconds: float) -> RankAccount:
    by_part = {name.replace("_", " "): s for name, s in seconds.items()}
    return RankAccount(
        rank=number,
        exit_code=0,
        wall_s=sum(by_part.values()),
        seconds=by_part,
        explained_share=1.0,
        goodput=0.5,
        steps=100,
        step_ms=10.0,
    )


def test_the_page_draws_each_rank_on_the_scale_of_the_longest() -> None:
    ranks = [rank(0, training_steps=1000.0, checkpoints=800.0), rank(1, training_steps=900.0)]
    page = render_for(sample(ranks=ranks), "html")
    section = page.partition('<section id="ranks"')[2].partition("</section>")[0]
    assert section.count('<svg class="rank"') == 2
    assert 'x="0.0" y="0" width="555.56"' in section
    assert 'x="555.56" y="0" width="444.44"' in section
    assert 'x="0.0" y="0" width="500.0"' in section
    assert "checkpoints: 13 min 20 s in rank 0, 0.00 s in rank 1" in section.replace("\xa0", " ")
    assert '<section id="ranks"' not in render_for(sample(), "html")


@pytest.mark.parametrize("kind", ["text", "md", "html", "brief"])
def test_captures_and_notes_are_told_in_every_format(kind: str) -> None:
    taken = CaptureTaken(
        folder="captures/1", step=120, steps=80, at_s=9.0, took_s=4.0, says="input-bound: so"
    )
    told = render_for(sample(captures=[taken], notes=["The script has its own use for it."]), kind)
    words = " ".join(told.replace("\xa0", " ").split())
    assert "captures/1: 80 steps from step 120 on" in words
    assert "input-bound: so" in words
    assert "The script has its own use for it." in words
