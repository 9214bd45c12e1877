"""Stretches of the baseline: which of them make the step time, and what is said where they differ."""

from __future__ import annotations

import numpy as np
import pytest

from torch_bottleneck.model.finding import DoubtCode
from torch_bottleneck.model.run import Run, StepTable, Stretch, Window
from torch_bottleneck.model.stacks import StackFrame, Stacks
from torch_bottleneck.timeline.steps.basis import find_basis
from torch_bottleneck.timeline.steps.drift import growth, growth_note

Place = tuple[str, float, bool]


def table(first: int, times_ms: np.ndarray) -> StepTable:
    return StepTable(index=list(range(first, first + len(times_ms))), wall_ms=times_ms.tolist())


def run_of(*places: Place, steps: int = 60) -> Run:
    """A run with a stretch per place: (window, mean step in ms, whether it counts)."""
    rng = np.random.default_rng(5)
    baseline = StepTable()
    windows, stretches = [], []
    for i, (name, mean_ms, counted) in enumerate(places):
        steps_of = table(100 * i, rng.normal(mean_ms, 0.5, steps))
        stretches.append(Stretch(window=name, steps=steps, counted=counted))  # type: ignore[arg-type]
        windows.append(Window(name=name, status="ok", steps=steps_of))  # type: ignore[arg-type]
        if counted:
            baseline = StepTable(
                index=[*baseline.index, *steps_of.index], wall_ms=[*baseline.wall_ms, *steps_of.wall_ms]
            )
    windows[0] = Window(name="baseline", status="ok", steps=baseline, stretches=stretches)
    return Run(windows=windows)


def test_stretches_that_agree_are_one() -> None:
    basis = find_basis(run_of(("baseline", 10.0, True), ("after", 10.05, True)), None, given_ms=None)
    assert basis.doubts == ()
    assert basis.summary.count == 120
    assert basis.summary.true_ms == pytest.approx(10.0, rel=0.02)


@pytest.mark.parametrize(("later_ms", "says"), [(11.0, "longer"), (9.0, "less")])
def test_drift_is_told_and_all_steps_count(later_ms: float, says: str) -> None:
    places: tuple[Place, ...] = (("baseline", 10.0, True), ("between", 10.0, True), ("after", later_ms, True))
    basis = find_basis(run_of(*places), None, given_ms=None)
    (doubt,) = basis.doubts
    assert doubt.code is DoubtCode.STEPS_DRIFT
    assert says in doubt.text
    assert "after the captures" in doubt.text
    assert basis.summary.true_ms == pytest.approx((20 + later_ms) / 3, rel=0.01)
    low, high = basis.summary.true_ci_ms or (0.0, 0.0)
    assert high - low > 0.5, "a mean of steps that drift is known less well"


def test_what_the_noise_of_the_steps_explains_is_no_drift() -> None:
    places: tuple[Place, ...] = (("baseline", 10.0, True), ("after", 10.5, True))
    assert find_basis(run_of(*places, steps=5), None, given_ms=None).doubts == ()
    assert find_basis(run_of(*places, steps=60), None, given_ms=None).doubts != ()


@pytest.mark.parametrize(
    ("later_ms", "code", "why"),
    [
        (12.0, DoubtCode.LATER_STEPS_SLOWER, "profiler"),
        (8.0, DoubtCode.LATER_STEPS_FASTER, "page faults"),
    ],
)
def test_a_stretch_that_was_set_aside_is_told_and_does_not_count(
    later_ms: float, code: DoubtCode, why: str
) -> None:
    basis = find_basis(run_of(("baseline", 10.0, True), ("after", later_ms, False)), None, given_ms=None)
    (doubt,) = basis.doubts
    assert doubt.code is code
    assert why in doubt.text
    assert basis.summary.count == 60
    assert basis.summary.true_ms == pytest.approx(10.0, rel=0.02)


def test_a_run_that_knows_no_stretches_has_no_drift() -> None:
    run = Run(windows=[Window(name="baseline", status="ok", steps=table(0, np.full(20, 10.0)))])
    assert find_basis(run, None, given_ms=None).doubts == ()
    assert (
        find_basis(run_of(("baseline", 10.0, True), ("after", 20.0, True)), None, given_ms=9.0).doubts == ()
    )


@pytest.mark.parametrize("per_step_ms", [0.0, 0.01, 0.1])
@pytest.mark.parametrize("evaluates", [False, True])
def test_steps_that_grow_are_told_with_what_to_run(per_step_ms: float, evaluates: bool) -> None:
    rng = np.random.default_rng(7)
    noise = rng.normal(0.0, 0.05, 120)
    times = 10.0 + per_step_ms * np.arange(120) + noise
    steps = table(40, times)
    if evaluates:
        steps.validation[:] = [i % 40 == 20 for i in range(120)]
        steps.wall_ms[20::40] = [200.0, 200.0, 200.0]
    basis = find_basis(Run(windows=[Window(name="baseline", status="ok", steps=steps)]), None, given_ms=None)
    assert (basis.growth_ms is not None) == (per_step_ms > 0)
    if per_step_ms == 0.1:
        assert basis.growth_ms is not None
        told = growth_note(basis.growth_ms, None)
        assert "`bottleneck watch`" in told
        assert "Steps grow, from 10.9 ms in the first that were timed to 21" in told


JOINS, TRAINS = (
    StackFrame(file="/me/train.py", line=k, call=name) for k, name in ((9, "cat()"), (12, "fit()"))
)


def sampled(*steps: tuple[float, float]) -> Stacks:
    """Return stacks of steps with so many ms in two lines each."""
    spent = [(step, line, ms) for step, its in enumerate(steps) for line, ms in enumerate(its)]
    return Stacks(
        frames=[JOINS, TRAINS],
        stacks=[[0], [1]],
        phases=[""],
        step_ms=[sum(its) for its in steps],
        step=[step for step, _, _ in spent],
        stack=[line for _, line, _ in spent],
        phase=[0] * len(spent),
        after=[0] * len(spent),
        us=[round(1e3 * ms) for *_, ms in spent],
        counts=[1] * len(spent),
    )


@pytest.mark.parametrize(
    ("steps", "line"),
    [
        ([(1.0, 20.0), (2.0, 20.0), (9.0, 20.0), (10.0, 20.0)], "`cat()` at train.py:9 grew most"),
        ([(1.0, 20.0), (2.0, 20.0), (9.0, 29.0), (10.0, 30.0)], "`fit()` at train.py:12 grew most"),
        ([(5.0, 20.0), (5.0, 20.0), (5.0, 20.0), (5.0, 20.0)], ""),
        ([(5.0, 20.0), (4.0, 18.0)], ""),
        ([(5.0, 20.0), (7.0, 20.0)], ""),
        ([(5.0, 20.0)], ""),
        ([], ""),
    ],
)  # fmt: skip
def test_the_line_that_grows_most_is_named(steps: list[tuple[float, float]], line: str) -> None:
    told = growth_note((10.0, 20.0), sampled(*steps))
    assert line in told
    assert ("from 1.50 ms to 9.50 ms a step" in told) == ("cat()" in line)
    assert ("grew most" in told) == bool(line)


def test_steps_that_only_scatter_are_not_said_to_grow() -> None:
    accused = 0
    for seed in range(200):
        times = np.random.default_rng(seed).normal(10.0, 1.0, 60)
        accused += growth(times) is not None
    assert accused <= 1
