"""The account of a job in the terminal."""

from __future__ import annotations

from torch_bottleneck.model.run import SourceSite
from torch_bottleneck.model.watch import AccountLine, Change, Growth, SiteSeconds, Watch
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


def test_changes_failures_and_jobs_without_steps_are_told() -> None:
    text = render(sample(changes=[Change(step=1000, ratio=1.31)]))
    assert "From step 1000 on or so, steps are slower: 1.31 times the time before." in text
    text = render(sample(exit_code=137, outcome="the script was ended by SIGKILL."))
    assert "the script was ended by SIGKILL." in text
    text = render(sample(steps=0, goodput=None, step_ms=None), unicode=False)
    assert "no training step was seen in this process" in text
    assert text.isascii()
