"""The start of workers has one price per step, wherever in the loop it lies."""

from __future__ import annotations

import msgspec
import pytest

from torch_bottleneck.model.codes import Part, WhatIf
from torch_bottleneck.model.run import (
    HostFacts,
    LoaderFacts,
    Production,
    Run,
    SourceSite,
    StepTable,
    Window,
    WorkerStart,
)
from torch_bottleneck.timeline.steps.basis import StepBasis, find_basis
from torch_bottleneck.timeline.steps.rare import with_rare
from torch_bottleneck.timeline.steps.starts import with_starts

from .cpu_traces import training
from .readings import read

STEP_MS, MADE_MS, START_MS, STOP_MS, EVALUATION_MS = 3.0, 1.0, 40.0, 8.0, 20.0


def loader(at: list[int], *, steps: int, per_pass: int, role: str = "train", **known: object) -> LoaderFacts:
    """A loader whose workers are started in the steps `at` and stopped in the next of them."""
    starts = [
        WorkerStart(
            step=step,
            making_ms=START_MS / 2,
            wait_ms=START_MS / 2 + MADE_MS,
            stop_step=following,
            stopping_ms=STOP_MS if following >= 0 else 0.0,
        )
        for step, following in zip(at, [*at[1:], -1], strict=True)
    ]
    fields: dict[str, object] = {"num_workers": 2, "dataset": "Rows", "starts": starts}
    wait_step = [k for k in range(steps) if role == "train" or k in at]
    return LoaderFacts(
        id=len(role),
        cls="DataLoader",
        role=role,  # type: ignore[arg-type]
        site=SourceSite(file="train.py", line=len(role), function="main"),
        fetches=per_pass * len(at),
        iterators=len(at),
        wait_ms=[START_MS / 2 + MADE_MS if k in at else 0.1 for k in wait_step],
        wait_step=wait_step,
        production=Production(where="workers", batches=10, fetch_ms=[MADE_MS] * 10),
        **(fields | known),  # type: ignore[arg-type]
    )


def run_of(steps: int, started: list[LoaderFacts], *, evaluated: tuple[int, ...] = ()) -> Run:
    held = [0.0] * steps
    for each in started:
        for start in each.starts:
            held[start.step] += start.making_ms + start.wait_ms - MADE_MS
            if start.stop_step >= 0:
                held[start.stop_step] += start.stopping_ms
    aside = [EVALUATION_MS if k in evaluated else 0.0 for k in range(steps)]
    noise = [0.01 * (k % 3) for k in range(steps)]
    table = StepTable(
        index=list(range(steps)),
        wall_ms=[STEP_MS + h + a + n for h, a, n in zip(held, aside, noise, strict=True)],
        phases_ms={
            "data": [0.5 + h for h in held],
            "forward": [1.0] * steps,
            "backward": [1.0] * steps,
            "optimizer": [0.2] * steps,
            "evaluation": aside,
        },
        validation=[k in evaluated for k in range(steps)],
        user_cpu_ms=[STEP_MS] * steps,
        system_cpu_ms=[0.0] * steps,
        minor_faults=[0] * steps,
    )
    return Run(windows=[Window(name="baseline", status="ok", steps=table)], host=HostFacts(cores=4))


def basis_of(steps: int, *loaders: LoaderFacts, evaluated: tuple[int, ...] = ()) -> StepBasis:
    return find_basis(run_of(steps, list(loaders), evaluated=evaluated), None, given_ms=None, loaders=loaders)


def test_the_start_of_an_epoch_that_the_window_holds_once_counts_at_its_frequency():
    basis = basis_of(60, loader([0, 40], steps=60, per_pass=40))
    assert basis.starts is not None
    assert basis.starts.cost_ms == pytest.approx((START_MS + STOP_MS) / 40)
    assert basis.summary.true_ms == pytest.approx(STEP_MS + basis.starts.cost_ms, rel=0.01)
    assert basis.ordinary_ms == pytest.approx(STEP_MS, rel=0.01)
    assert basis.summary.count == 60, "no step is left out for it"
    assert basis.notes[-1].startswith("Starting and stopping workers takes 48.0 ms every 40 steps")


def test_starts_that_have_ceased_do_not_go_on_at_the_pace_of_the_first_two():
    """One iterator kept from the second step on: 328 ms a step were told where it took 143."""
    basis = basis_of(60, loader([0, 1], steps=60, per_pass=60))
    assert basis.starts is not None
    assert basis.starts.cost_ms == pytest.approx((START_MS + STOP_MS) / 59)


def test_workers_of_each_step_start_in_each_step_and_not_every_one_steps():
    basis = basis_of(20, loader(range(20), steps=20, per_pass=1))
    assert basis.notes[-1].startswith("Starting and stopping workers takes 48.0 ms in each step: ")


def test_a_start_in_an_evaluation_is_no_part_of_the_evaluation():
    train = loader([0, 10, 20, 30], steps=40, per_pass=10)
    test = loader([10, 20, 30], steps=40, per_pass=2, role="eval")
    basis = basis_of(40, train, test, evaluated=(10, 20, 30))
    assert basis.rare is not None
    assert basis.rare.each_ms == pytest.approx(EVALUATION_MS, rel=0.01)
    assert basis.starts is not None
    assert [each.loader.role for each in basis.starts.loaders] == ["train", "eval"]
    assert basis.starts.cost_ms == pytest.approx(2 * (START_MS + STOP_MS) / 10)
    whole = STEP_MS + EVALUATION_MS / 10 + basis.starts.cost_ms
    assert basis.summary.true_ms == pytest.approx(whole, rel=0.01)


def test_what_a_start_slows_in_its_step_is_part_of_its_price():
    started = loader([0, 10, 20, 30], steps=40, per_pass=10)
    run = run_of(40, [started])
    table = run.windows[0].steps
    slower = [0.8 if k % 10 == 0 else 0.01 * (k % 2) for k in range(40)]
    phases = {**table.phases_ms, "forward": [1.0 + s for s in slower]}
    longer = [wall + s for wall, s in zip(table.wall_ms, slower, strict=True)]
    window = msgspec.structs.replace(
        run.windows[0], steps=msgspec.structs.replace(table, wall_ms=longer, phases_ms=phases)
    )
    slowed = msgspec.structs.replace(run, windows=[window])
    plain = find_basis(run, None, given_ms=None, loaders=[started])
    basis = find_basis(slowed, None, given_ms=None, loaders=[started])
    assert plain.starts is not None
    assert plain.starts.slowed_ms == 0
    assert basis.starts is not None
    assert basis.starts.slowed_ms == pytest.approx(0.08, rel=0.02)
    assert basis.ordinary_ms == pytest.approx(STEP_MS, rel=0.01)
    assert basis.summary.true_ms == pytest.approx(STEP_MS + basis.starts.cost_ms, rel=0.01)
    assert "slows these steps" in basis.notes[-1]


def test_workers_that_are_kept_and_a_single_start_change_nothing():
    for once in (
        loader([0], steps=20, per_pass=20),
        loader([0, 10], steps=20, per_pass=10, starts=[]),
    ):
        basis = basis_of(20, once)
        assert basis.starts is None
        assert basis.loaders == (once,)


def test_a_given_step_time_holds_everything():
    started = loader([0, 10], steps=20, per_pass=10)
    basis = find_basis(run_of(20, [started]), None, given_ms=5.0, loaders=[started])
    assert (basis.summary.true_ms, basis.starts) == (5.0, None)


def test_first_fetches_wait_for_their_batch_only():
    basis = basis_of(20, loader([0, 10], steps=20, per_pass=10))
    (left,) = basis.loaders
    assert left.wait_ms[0] == left.wait_ms[10] == MADE_MS
    assert set(left.wait_ms[1:10]) == {0.1}


def test_budget_and_answers_hold_for_the_mean_step():
    train = loader([0, 10, 20, 30], steps=40, per_pass=10)
    test = loader([10, 20, 30], steps=40, per_pass=2, role="eval")
    basis = basis_of(40, train, test, evaluated=(10, 20, 30))
    assert basis.starts is not None
    assert basis.rare is not None
    trace, steps = training(4, data=500.0)
    usual = read(
        trace, steps, true_ms=basis.ordinary_ms, run=basis.run, kept=basis.kept, loaders=basis.loaders
    )
    started = with_starts(usual, basis.starts)
    whole = with_rare(started, basis.rare)
    cost = basis.starts.cost_ms
    assert whole.true_ms == pytest.approx(basis.summary.true_ms)
    assert sum(line.ms for line in whole.budget) == pytest.approx(whole.true_ms, rel=1e-6)
    assert whole.part_ms(Part.INPUT) == pytest.approx(usual.part_ms(Part.INPUT) + cost)
    for question, answer in whole.what_ifs.items():
        assert answer.step_ms == pytest.approx(whole.true_ms - answer.saves_ms), question
    assert whole.what_ifs[WhatIf.WORKERS_KEPT].saves_ms == pytest.approx(cost)
    ready = usual.what_ifs[WhatIf.INPUT_READY]
    assert whole.what_ifs[WhatIf.INPUT_READY].saves_ms == pytest.approx(ready.saves_ms + cost)
    other = usual.what_ifs[WhatIf.DISPATCH_FREE]
    assert whole.what_ifs[WhatIf.DISPATCH_FREE].saves_ms == pytest.approx(other.saves_ms)
    for pair, step_ms in started.after.items():
        gone = 0.0 if WhatIf.INPUT_READY in pair else cost
        assert step_ms == pytest.approx(usual.after[pair] + gone)


def test_workers_that_are_sent_much_start_one_after_another():
    light = loader([0, 10], steps=20, per_pass=10)
    sent = [
        msgspec.structs.replace(start, pickled_bytes=20_000_000, booting_ms=12.0) for start in light.starts
    ]
    heavy = msgspec.structs.replace(light, starts=sent)
    trace, steps = training(4, data=500.0)
    for started, price in ((light, None), (heavy, (START_MS + STOP_MS - 12.0 - STOP_MS) / 10)):
        basis = basis_of(20, started)
        assert basis.starts is not None
        usual = read(trace, steps, true_ms=basis.ordinary_ms, run=basis.run, kept=basis.kept)
        answer = with_starts(usual, basis.starts).what_ifs.get(WhatIf.DATASET_LIGHT)
        assert (None if answer is None else answer.saves_ms) == (
            None if price is None else pytest.approx(price)
        )
