"""Work that only some steps do is priced against the steps that do not do it."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from torch_bottleneck.model.codes import Part, WhatIf
from torch_bottleneck.model.run import LoaderFacts, Run, SiteTime, SourceSite, StepTable, Window
from torch_bottleneck.model.view import CodeNode
from torch_bottleneck.timeline.result import SpanKind
from torch_bottleneck.timeline.steps.basis import find_basis
from torch_bottleneck.timeline.steps.rare import FORWARDS, ordinary_steps, with_rare

from .cpu_traces import make_steps, training
from .readings import read

ORDINARY_MS = 2.3


def run_of(wall: list[float], *, evaluated: list[int] = (), worked: bool = True) -> Run:  # type: ignore[assignment]
    """Steps of 2.3 ms, whose phases leave 0.1 ms outside; what is longer stands outside the phases."""
    n = len(wall)
    table = StepTable(
        index=list(range(n)),
        wall_ms=wall,
        phases_ms={"forward": [1.0] * n, "backward": [1.0] * n, "optimizer": [0.2] * n},
        validation=[i in evaluated for i in range(n)],
        user_cpu_ms=[w if worked else ORDINARY_MS for w in wall],
        system_cpu_ms=[0.0] * n,
        minor_faults=[0] * n,
    )
    place = SiteTime(
        site=SourceSite(file="train.py", line=40, function="evaluate"), phase="evaluation", count=2
    )
    return Run(windows=[Window(name="baseline", status="ok", steps=table)], sites=[place])


def every(period: int, extra_ms: float, n: int = 40) -> list[float]:
    return [ORDINARY_MS + (extra_ms if i % period == period - 1 else 0.0) + 0.01 * (i % 3) for i in range(n)]


def test_an_evaluation_every_twenty_steps_is_part_of_the_step_and_has_its_price_and_place():
    wall = every(20, 40.0)
    basis = find_basis(run_of(wall, evaluated=[19, 39]), None, given_ms=None)
    assert basis.rare is not None
    assert basis.rare.ms == pytest.approx(2.0, rel=0.01)
    assert basis.summary.true_ms == pytest.approx(float(np.mean(wall)), rel=0.01)
    assert basis.rare.site is not None
    assert basis.rare.site.line == 40
    assert "evaluation" in basis.rare.note


def test_a_model_in_training_mode_acts_and_evaluates_nothing():
    """A rollout of PPO in cleanrl: `Agent` is never in eval mode. In stable-baselines3 it always is then.

    Keras never changes the mode, either, but trains on the batches of a loader.
    """
    run = run_of(every(20, 40.0), evaluated=[19, 39])
    batches = LoaderFacts(id=0, cls="DataLoader", role="train", fetches=40)
    for settings, loaders, what in (
        ({"ungraded.training": True}, (), FORWARDS),
        ({"ungraded.training": True}, (batches,), "evaluation"),
        # A loader for what each rollout has collected.
        ({"ungraded.training": True, "ungraded.first": True}, (batches,), FORWARDS),
        ({"ungraded.training": True, "ungraded.first": False}, (), "evaluation"),
        ({"ungraded.training": True, "ungraded.first": True}, (), FORWARDS),
        ({"ungraded.training": False}, (), "evaluation"),
        ({"ungraded.training": False, "ungraded.environment": True}, (batches,), FORWARDS),
    ):
        basis = find_basis(
            msgspec.structs.replace(run, settings=settings), None, given_ms=None, loaders=loaders
        )
        assert basis.rare is not None
        assert basis.rare.what == what
        assert what in basis.rare.note
        assert basis.rare.ms == pytest.approx(2.0, rel=0.01)


def test_an_evaluation_is_divided_like_the_step():
    run = run_of(every(20, 40.0), evaluated=[19, 39])
    table = run.windows[0].steps
    own = [30.0 if flag else 0.0 for flag in table.validation]
    waits = [6.2 if flag else 0.2 for flag in table.validation]
    phases = {**table.phases_ms, "evaluation": own, "data": waits}
    window = msgspec.structs.replace(run.windows[0], steps=msgspec.structs.replace(table, phases_ms=phases))
    basis = find_basis(msgspec.structs.replace(run, windows=[window]), None, given_ms=None)
    assert basis.rare is not None
    assert (basis.rare.waits_ms, basis.rare.computes_ms) == (pytest.approx(6.0), pytest.approx(30.0))
    assert "each, of which 6.00 ms for its batches and 30.0 ms in the model" in basis.rare.note
    undivided = find_basis(run, None, given_ms=None).rare
    assert undivided is not None
    assert undivided.divided == ""


def test_what_begins_behind_the_update_and_ends_with_the_next_step_is_one():
    """Histograms of all weights, then an evaluation, whose loader begins the next step."""
    wall = [w + (35.0 if i % 20 == 18 else 0.0) for i, w in enumerate(every(20, 40.0))]
    basis = find_basis(run_of(wall, evaluated=[19, 39]), None, given_ms=None)
    assert basis.rare is not None
    assert (basis.rare.covers, np.flatnonzero(basis.rare.steps).tolist()) == (2, [18, 19, 38, 39])
    assert basis.rare.each_ms == pytest.approx(75.0, rel=0.01)
    assert basis.summary.true_ms == pytest.approx(float(np.mean(wall)), rel=0.01)
    assert "2 of 40 baseline steps hold evaluation (every 20 steps, 75" in basis.rare.note


@pytest.mark.parametrize(
    "before",
    [{18: 90.0, 38: 90.0}, {18: 35.0}, {17: 35.0, 37: 35.0}],
    ids=["longer", "one", "not next to it"],
)
def test_a_long_step_near_an_evaluation_is_another_matter(before: dict[int, float]):
    wall = [w + before.get(i, 0.0) for i, w in enumerate(every(20, 40.0))]
    rare = find_basis(run_of(wall, evaluated=[19, 39]), None, given_ms=None).rare
    assert rare is not None
    assert (rare.covers, np.flatnonzero(rare.steps).tolist()) == (1, [19, 39])
    assert rare.each_ms == pytest.approx(40.0, rel=0.01)


def test_an_outlier_beside_rare_work_is_told():
    wall = every(20, 40.0)
    wall[5] = 900.0
    basis = find_basis(run_of(wall, evaluated=[19, 39]), None, given_ms=None)
    assert basis.rare is not None and basis.rare.ms == pytest.approx(2.0, rel=0.01)
    assert [note for note in basis.notes if "900" in note and "outlier" in note]


def test_a_single_evaluation_is_left_out_and_its_time_told():
    basis = find_basis(run_of(every(40, 40.0), evaluated=[39]), None, given_ms=None)
    assert basis.rare is None
    assert basis.summary.true_ms == pytest.approx(ORDINARY_MS, rel=0.02)
    assert "42.3 ms" in basis.notes[0]


def test_the_windows_around_the_baseline_tell_the_rhythm_of_an_evaluation():
    run = run_of(every(40, 40.0), evaluated=[39])
    later = Window(name="trace", status="ok", steps=StepTable(index=[59, 60], validation=[True, False]))
    basis = find_basis(msgspec.structs.replace(run, windows=[*run.windows, later]), None, given_ms=None)
    assert basis.rare is not None
    assert basis.rare.every == 20
    assert basis.rare.ms == pytest.approx(2.0, rel=0.01)
    assert basis.rare.error_ms == pytest.approx(0.5, rel=0.01)


def test_evaluations_behind_the_captures_alone_are_priced_too():
    run = run_of(every(100, 40.0))
    first = Window(name="trace", status="ok", steps=StepTable(index=[59, 60], validation=[True, False]))
    later = Window(
        name="after",
        status="ok",
        steps=StepTable(
            index=list(range(70, 80)),
            wall_ms=[ORDINARY_MS + (40.0 if n == 79 else 0.0) for n in range(70, 80)],
            validation=[n == 79 for n in range(70, 80)],
        ),
    )
    basis = find_basis(
        msgspec.structs.replace(run, windows=[*run.windows, first, later]), None, given_ms=None
    )
    assert basis.rare is not None
    assert basis.rare.every == 20
    assert basis.rare.ms == pytest.approx(2.0, rel=0.01)
    assert basis.summary.true_ms == pytest.approx(ORDINARY_MS + 2.0, rel=0.02)
    assert "after the captures" in basis.rare.note


def test_a_checkpoint_every_ten_steps_is_a_rhythm():
    basis = find_basis(run_of(every(10, 30.0)), None, given_ms=None)
    assert basis.rare is not None
    assert basis.rare.every == 10
    assert basis.rare.ms == pytest.approx(3.0, rel=0.01)


@pytest.mark.parametrize(
    ("wall", "worked"),
    [
        ([ORDINARY_MS + (20.0 if i in (3, 17) else 0.01 * (i % 3)) for i in range(40)], False),
        ([ORDINARY_MS + (20.0 if i in (3, 17, 22) else 0.01 * (i % 3)) for i in range(40)], False),
        ([ORDINARY_MS + {3: 5.0, 17: 80.0}.get(i, 0.01 * (i % 3)) for i in range(40)], True),
        ([ORDINARY_MS + (20.0 if i % 2 else 0.01 * (i % 3)) for i in range(40)], True),
    ],
    ids=["time lost to others", "irregular", "two of different kinds", "every other step"],
)
def test_what_another_process_took_or_the_trace_describes_is_no_rare_work(wall, worked):
    assert find_basis(run_of(wall, worked=worked), None, given_ms=None).rare is None


def test_steps_that_are_all_as_long_in_another_window_tell_a_change_of_pace_and_no_rare_work():
    run = run_of(every(10, 30.0))
    slower = Window(
        name="trace",
        status="ok",
        steps=StepTable(index=list(range(40, 60)), wall_ms=[ORDINARY_MS + 30.0] * 20),
    )
    basis = find_basis(msgspec.structs.replace(run, windows=[*run.windows, slower]), None, given_ms=None)
    assert basis.rare is None


def test_long_steps_that_wait_are_not_charged_again_at_the_distance_of_all_long_ones():
    """Each third step is long; in most of them the time passes inside the backward, for another rank."""
    wall = every(3, 20.0, n=60)
    run = run_of(wall)
    table = run.windows[0].steps
    waits = [w - ORDINARY_MS if w > 10.0 and i % 12 != 11 else 0.0 for i, w in enumerate(wall)]
    phases = {**table.phases_ms, "backward": [1.0 + wait for wait in waits]}
    windows = [
        msgspec.structs.replace(run.windows[0], steps=msgspec.structs.replace(table, phases_ms=phases))
    ]
    basis = find_basis(msgspec.structs.replace(run, windows=windows), None, given_ms=None)
    assert basis.rare is None
    assert basis.summary.true_ms == pytest.approx(float(np.mean(wall)))


def test_a_step_time_that_the_user_gives_stands():
    basis = find_basis(run_of(every(10, 30.0)), None, given_ms=2.0)
    assert basis.rare is None
    assert basis.summary.true_ms == 2.0


def test_budget_and_answers_hold_for_the_mean_step():
    run = run_of(every(10, 30.0))
    basis = find_basis(run, None, given_ms=None)
    assert basis.rare is not None
    assert basis.ordinary_ms is not None
    trace, steps = training(4, after=100.0)
    ordinary = read(trace, steps, true_ms=basis.ordinary_ms, run=basis.run, kept=basis.kept)
    whole = with_rare(ordinary, basis.rare)
    assert whole.true_ms == pytest.approx(basis.summary.true_ms)
    assert sum(line.ms for line in whole.budget) == pytest.approx(whole.true_ms, rel=1e-6)
    assert sum(line.share for line in whole.budget) == pytest.approx(1.0, rel=1e-6)
    assert whole.part_ms(Part.HOST) == pytest.approx(ordinary.part_ms(Part.HOST) + 3.0, rel=0.02)
    gone = whole.what_ifs[WhatIf.HOST_WORK_GONE]
    assert gone.step_ms == pytest.approx(ORDINARY_MS, rel=0.05)
    for question, answer in whole.what_ifs.items():
        assert answer.step_ms == pytest.approx(whole.true_ms - answer.saves_ms), question
    assert [span.kind for span in whole.spans].count(SpanKind.RARE) == 1


def test_the_collector_in_rare_work_is_priced_as_such_and_its_line_goes_along():
    run = run_of(every(10, 30.0))
    table = run.windows[0].steps
    table.gc_ms[:] = [28.0 if wall > 10 else 0.0 for wall in table.wall_ms]
    basis = find_basis(run, None, given_ms=None)
    assert basis.rare is not None
    assert basis.ordinary_ms is not None
    assert "each, of which 28.0 ms in Python's collector" in basis.rare.note
    trace, steps = training(4, after=100.0)
    ordinary = read(trace, steps, true_ms=basis.ordinary_ms, run=basis.run, kept=basis.kept)
    line = CodeNode(name="gc.collect()", role="extra", ms=3.0, share=0.5, price_ms=3.0, file="a.py", line=9)
    whole = with_rare(ordinary, basis.rare, nodes=[line])
    assert whole.extras[0] == line
    assert whole.what_ifs[WhatIf.GC_FREE].saves_ms == pytest.approx(2.8, rel=0.02)
    assert whole.context["gc.ms_per_step"] == pytest.approx(2.8, rel=0.02)


def test_a_line_that_each_step_runs_too_costs_both() -> None:
    basis = find_basis(run_of(every(10, 30.0)), None, given_ms=None)
    assert basis.rare is not None
    trace, steps = training(4, after=100.0)
    ordinary = read(trace, steps, true_ms=basis.ordinary_ms, run=basis.run, kept=basis.kept)
    log = CodeNode(
        name="log()", role="extra", ms=1.0, share=0.1, price_ms=1.0, bound=True, file="a.py", line=9
    )
    write = msgspec.structs.replace(log, ms=3.0, share=0.3, price_ms=3.0, bound=False, samples=7)
    other = msgspec.structs.replace(write, name="write()", line=12, price_ms=3.5)
    whole = with_rare(replace(ordinary, extras=(log,)), basis.rare, nodes=[write, other])
    both = whole.extras[0]
    assert [node.line for node in whole.extras] == [9, 12]
    assert (both.ms, both.price_ms) == (pytest.approx(3.0 + 0.9 * 1.0), pytest.approx(3.0 + 0.9 * 1.0))
    assert (both.bound, both.samples) == (True, 7)


def test_two_calls_of_one_line_stay_two() -> None:
    basis = find_basis(run_of(every(10, 30.0)), None, given_ms=None)
    assert basis.rare is not None
    trace, steps = training(4, after=100.0)
    ordinary = read(trace, steps, true_ms=basis.ordinary_ms, run=basis.run, kept=basis.kept)
    one = CodeNode(name="a()", call="a()", role="extra", ms=2.0, share=0.2, price_ms=2.0, file="a.py", line=9)
    two = msgspec.structs.replace(one, name="b()", call="b()", ms=1.0, price_ms=1.0)
    assert with_rare(replace(ordinary, extras=(one, two)), basis.rare).extras == (one, two)


def test_traced_steps_that_hold_the_rare_work_are_not_read():
    rare = find_basis(run_of(every(10, 30.0)), None, given_ms=None).rare
    assert rare is not None
    bounds = [(0.0, 2300.0), (2300.0, 35000.0), (35000.0, 37300.0), (37300.0, 39600.0), (39600.0, 41900.0)]
    read = ordinary_steps(make_steps(bounds), rare)
    assert read.numbers.tolist() == [2, 3, 4]
    few = make_steps(bounds[:3])
    assert ordinary_steps(few, rare) is few
