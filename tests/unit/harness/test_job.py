"""The account of a job, its file of steps and what a look sees: rows, samples and frames made by hand."""

from __future__ import annotations

import gc
import sys
from collections import deque
from pathlib import Path
from typing import Any

import torch

from torch_bottleneck.harness.job.account import Account, Evaluated, Sample, Stretch
from torch_bottleneck.harness.job.looks import APART, LOOKS, Looks
from torch_bottleneck.harness.job.series import POINTS, Series
from torch_bottleneck.harness.lines.sites import names_in
from torch_bottleneck.harness.windows.table import Row
from torch_bottleneck.model.run import SourceSite

MS = 1_000_000
LINE = SourceSite(file="train.py", line=9, function="main")


def row(index: int, ms: float = 10.0, **phases_ms: float) -> Row:
    """A step of which 8 ms lie in phases."""
    phases = {"data": 1.0, "forward": 3.0, "backward": 3.0, "optimizer": 1.0, **phases_ms}
    return Row(
        index=index,
        start_ns=index * 1000 * MS,
        wall_ms=ms,
        phases_ns={name: round(value * MS) for name, value in phases.items()},
    )


def account_of(*odd: Stretch, samples: list[Sample] | None = None) -> dict[str, float]:
    """Return ms by part of 60 usual steps and these; and check that they add up."""
    account, total = Account(), 0.0
    for stretch in [Stretch(row(i)) for i in range(60)]:
        account.step(stretch, [])
        total += stretch.row.wall_ms
    for stretch in odd:
        account.step(stretch, samples or [])
        total += stretch.row.wall_ms
    account.settle()
    parts = account.parts()
    assert abs(sum(part.s for part in parts.values()) * 1e3 - total) < 0.01
    return {name: round(part.s * 1e3, 3) for name, part in parts.items()}


def test_usual_steps_are_training() -> None:
    assert account_of() == {"training steps": 600.0}


def test_a_step_keeps_its_usual_time_and_the_rest_goes_to_what_has_a_clock() -> None:
    save = row(60, 45.0, checkpoint=35.0)
    assert account_of(Stretch(save)) == {"training steps": 610.0, "checkpoints": 35.0}
    start = row(60, 210.0, data=201.0)
    assert account_of(Stretch(start, starting=(201 * MS, LINE))) == {
        "training steps": 610.0,
        "epoch starts": 200.0,
    }
    collected = row(60, 25.0)
    collected.gc_ms = 15.0
    assert account_of(Stretch(collected)) == {"training steps": 610.0, "garbage collections": 15.0}
    assert account_of(Stretch(row(60, 2010.0), paused_ns=2000 * MS))["pauses"] == 2000.0


def test_validation_takes_its_span_and_what_comes_after_it_does_not() -> None:
    validated = row(60, 510.0, evaluation=100.0)
    validated.validation = True
    evaluated = Evaluated(begin_ns=0, end_ns=400 * MS, saved_ns=0, outside_ns=300 * MS)
    parts = account_of(Stretch(validated, evaluated=evaluated))
    assert parts["validation"] == 400.0
    assert parts["between steps"] == 100.0
    assert parts["training steps"] == 610.0


def test_a_late_compilation_is_a_recompilation_and_an_early_one_is_of_the_first_steps() -> None:
    late = row(60, 310.0, forward=303.0)
    late.compiled = True
    assert account_of(Stretch(late))["recompilations"] == 300.0
    account = Account()
    for i in range(60):
        account.step(Stretch(row(i, 510.0 if i == 0 else 10.0, forward=503.0 if i == 0 else 3.0)), [])
    assert round(account.parts()["first steps"].s, 6) == 0.5


def test_a_slow_forward_stays_a_step_and_time_outside_of_phases_does_not() -> None:
    assert account_of(Stretch(row(60, 40.0, forward=33.0))) == {"training steps": 640.0}
    samples = [Sample(0, 50 * MS, "", LINE)]
    account = account_of(Stretch(row(60, 60.0)), samples=samples)
    assert account == {"training steps": 610.0, "between steps": 50.0}


def test_few_long_steps_are_divided_before_the_job_ends() -> None:
    account = Account()
    for i in range(4):
        account.step(Stretch(row(i, 10_000.0, forward=9_000.0)), [])
    assert account.parts()["training steps"].s > 20


def test_outside_of_steps_samples_divide_and_what_none_covers_is_unexplained() -> None:
    account = Account()
    seen = [Sample(1, 300 * MS, "importing", LINE), Sample(2, 500 * MS, "", LINE)]
    account.outside(seen, part="set-up", took_ns=1000 * MS)
    parts = account.parts()
    assert parts["interpreter and imports"].s == 0.3
    assert parts["set-up"].s == 0.5
    assert parts["unexplained"].s == 0.2
    assert parts["set-up"].places[0].site == LINE


def test_after_the_last_step_a_whole_step_that_nothing_ended_counts() -> None:
    tail = Stretch(row(60, 110.0), tail=True, whole=True)
    parts = account_of(tail, samples=[Sample(0, 100 * MS, "", LINE)])
    assert parts["training steps"] == 608.0
    assert parts["after the last step"] == 100.0


def test_a_million_steps_take_less_than_a_megabyte(tmp_path: Path) -> None:
    series = Series(tmp_path / "steps.jsonl")
    for i in range(1_000_000):
        series.add(i, 123.4567 + i % 7)
        if i % 10_000 == 0:
            series.write()
    series.write()
    assert 0 < (tmp_path / "steps.jsonl").stat().st_size < 1_000_000
    assert len(series._points) < POINTS
    assert series.best_ms is not None and 123 < series.best_ms < 131


class Program:
    """Grows in three ways."""

    def __init__(self) -> None:
        self.outputs: list[Any] = []
        self.recent: deque[int] = deque(maxlen=3)
        self.model = torch.nn.Linear(2, 2)
        self.total = torch.zeros((), requires_grad=True) * 1.0

    def step(self) -> None:
        self.outputs.append(torch.zeros(1))
        self.recent.append(1)
        self.model.register_forward_hook(lambda *_: None)
        self.total = self.total + 1.0


class Told:
    """A job that wants looks."""

    wants_look = True

    def __init__(self) -> None:
        self.grown: list[Any] = []

    def found(self, grown: list[Any]) -> None:
        self.grown = grown


def test_looks_name_what_grows_with_the_line_that_adds(monkeypatch: Any) -> None:
    from torch_bottleneck.harness.job import looks as module

    monkeypatch.setattr(module, "is_library", lambda file: file != __file__)
    monkeypatch.setattr(module, "NAMED", 9)
    program, job, looks = Program(), Told(), Looks()
    for i in range(LOOKS * APART):
        program.step()
        if looks.wanted(job, i):  # type: ignore[arg-type]
            looks.look(job, sys._getframe(), i)  # type: ignore[arg-type]
    assert not job.wants_look
    found = {(grown.what, grown.kind): grown for grown in job.grown}
    lines = Path(__file__).read_text().splitlines()
    for key, words in (
        (("program.outputs", "tensors in list"), "self.outputs.append"),
        (("program.model", "hooks"), "register_forward_hook"),
        (("program.total", "autograd nodes"), "self.total = self.total"),
    ):
        assert found[key].per_step == 1.0
        assert words in lines[found[key].site.line - 1]
    assert not any("recent" in what for what, _ in found)


def test_looking_at_names_leaves_the_frame_as_it_is() -> None:
    def plain() -> None:
        kept = object()
        before = sys.getrefcount(kept)
        names = dict(names_in(sys._getframe()))
        assert names["kept"] is kept
        del names
        assert sys.getrefcount(kept) == before

    def asked() -> None:
        options = locals()
        before = dict(options)
        later = 1
        list(names_in(sys._getframe()))
        assert dict(options) == before, later

    plain()
    if sys.version_info < (3, 13):
        asked()
    assert gc.isenabled()
