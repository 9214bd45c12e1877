"""A B A B ...: which run comes next, and what the pairs say."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from torch_bottleneck.model.verify import Applied, EndedBy, Measured, Protocol, RunRecord
from torch_bottleneck.verify.measure import measure, memory_change, noise_of, pays_after, startup_change
from torch_bottleneck.verify.protocol import estimate_seconds, next_run

FIX = ("FX311",)
PROTOCOL = Protocol(pairs=3, max_pairs=4)


def record(number: int, fixes: tuple[str, ...], ms: float | None, **fields: Any) -> RunRecord:
    applied = [Applied(fix=fix, state="applied") for fix in fixes]
    values = {"standard_error_ms": 0.001, "status": "ok", "applied": applied, **fields}
    return RunRecord(number=number, fixes=fixes, step_ms=ms, **values)


def runs(*times: float, **fields: Any) -> list[RunRecord]:
    """Runs in turns, beginning without the fix."""
    sides = itertools.cycle([(), FIX])
    return [record(i + 1, next(sides), ms, **fields) for i, ms in enumerate(times)]


def following(done: list[RunRecord], **options: Any) -> str:
    step = next_run(done, base=(), added=FIX, protocol=PROTOCOL, session=1, **options)
    return step.run if step.run != "stop" else f"stop: {step.ended.value}"


def test_runs_take_turns_until_it_is_decided_and_end_without_the_fix() -> None:
    times = [10.0, 5.0, 10.1, 5.1, 10.0, 5.0, 10.0]
    done: list[RunRecord] = []
    order = []
    while not (step := following(done)).startswith("stop"):
        order.append(step)
        number = len(done)
        done.append(record(number + 1, FIX if step == "with" else (), times[number]))
    assert order == ["without", "with"] * 3 + ["without"]
    assert step == "stop: done"


def test_more_pairs_are_run_while_it_is_undecided_up_to_the_cap() -> None:
    noisy = runs(10.0, 9.0, 10.5, 11.0, 9.5, 9.8, 10.4)
    assert following(noisy) == "with"
    assert following([*noisy, record(8, FIX, 10.2)]) == "without"
    assert following([*noisy, record(8, FIX, 10.2), record(9, (), 9.9)]) == "stop: done"


def test_a_gain_is_measured_on_until_it_is_known_to_half_of_itself() -> None:
    # Both times it is faster for certain; the second time nobody could say by how much.
    two = Protocol(pairs=2, max_pairs=4)
    for times, expected in (
        ((12.7, 8.0, 12.6, 8.1, 12.7), "stop"),
        ((12.7, 6.8, 13.1, 7.5, 12.9), "with"),
    ):
        step = next_run(runs(*times), base=(), added=FIX, protocol=two, session=1)
        assert step.run == expected, step


def test_beside_another_fix_each_run_answers_two_questions() -> None:
    kept, added = ("FX412",), FIX
    times = {(): 12.0, kept: 8.0, kept + added: 3.0}
    done = [record(1, (), 12.0)]
    order = []
    while True:
        step = next_run(done, base=kept, added=added, protocol=PROTOCOL, session=1)
        if step.run == "stop":
            break
        order.append(step.run)
        fixes = {"with": kept + added, "without": kept, "as it is": ()}[step.run]
        done.append(record(len(done) + 1, fixes, times[fixes] * (1 + 0.001 * (len(done) % 3))))
    assert order == ["with", "without", "with", "as it is", "with", "without"]
    beside, _ = measure(done, base=kept, added=added)
    together, _ = measure(done, base=(), added=kept + added)
    assert beside is not None and together is not None
    assert (beside.pairs, together.pairs) == (3, 3)
    assert beside.ratio == pytest.approx(8 / 3, rel=0.01)
    assert together.ratio == pytest.approx(4.0, rel=0.01)
    assert following_together(done, kept + added) == "stop"


def following_together(done: list[RunRecord], fixes: tuple[str, ...]) -> str:
    return next_run(done, base=(), added=fixes, protocol=PROTOCOL, session=1).run


def test_a_failure_and_what_is_not_applied_end_it_at_once() -> None:
    failed = [*runs(10.0), record(2, FIX, None, status="failed", reason="out of memory")]
    assert following(failed) == "stop: fault"
    idle = [*runs(10.0), record(2, FIX, 10.0, applied=[Applied(fix="FX311", state="not applied")])]
    assert following(idle) == "stop: done"


def test_harm_ends_it_once_the_script_was_compared_with_itself() -> None:
    assert following(runs(10.0, 5.0), harmful=True) == "without"
    assert following(runs(10.0, 5.0, 10.0), harmful=True) == "stop: done"


def test_a_run_of_an_earlier_call_is_no_neighbour() -> None:
    step = next_run(runs(10.0, 5.0, 10.0), base=(), added=FIX, protocol=PROTOCOL, session=2)
    assert step.run == "without"
    later = [*runs(10.0, 5.0), record(3, (), 100.0, session=2)]
    found, _ = measure(later, base=(), added=FIX)
    assert found is not None
    assert found.before_ms == pytest.approx(10.0)


def test_what_was_decided_is_not_run_again_by_a_later_call() -> None:
    done = runs(10.0, 5.0, 10.0, 5.0, 10.0, 5.0)
    step = next_run(done, base=(), added=FIX, protocol=PROTOCOL, session=2)
    assert (step.run, step.ended) == ("stop", EndedBy.DONE)


def test_each_run_is_compared_with_those_on_either_side() -> None:
    found, ratio = measure(runs(10.0, 10.0, 40.0), base=(), added=FIX)
    assert found is not None
    assert found.ratio == pytest.approx(2.0)
    assert (found.low, found.pairs) == (None, 1)
    assert ratio is not None


LENGTHS = [5.0, 20.0, 8.0, 14.0, 31.0, 11.0, 6.0, 25.0, 9.0, 17.0] * 4


def windowed(number: int, fixes: tuple[str, ...], first: int, count: int, factor: float) -> RunRecord:
    """A run over sentences of different lengths, of which it has timed some."""
    times: list[float | None] = [factor * ms for ms in LENGTHS[first : first + count]]
    mean = sum(ms or 0.0 for ms in times) / count
    return record(number, fixes, mean, first_step=first, times_ms=times, standard_error_ms=0.2 * mean)


def test_steps_of_different_size_are_compared_step_by_step() -> None:
    done = [
        windowed(1, (), 0, 24, 1.0),
        windowed(2, FIX, 4, 31, 0.5),
        windowed(3, (), 2, 28, 1.001),
        windowed(4, FIX, 7, 29, 0.5),
        windowed(5, (), 1, 36, 1.0),
    ]
    found, _ = measure(done, base=(), added=FIX)
    assert found is not None
    assert found.ratio == pytest.approx(2.0, rel=0.002)
    assert found.low is not None and found.high is not None
    assert found.high / found.low < 1.02, "though their means differ by a quarter"
    noise = noise_of(done)
    assert noise is not None
    assert noise.worst < 0.002


def test_steps_that_are_long_at_random_are_compared_by_their_means() -> None:
    import random

    generator = random.Random(3)
    done = []
    for number, fixes in ((1, ()), (2, FIX), (3, ())):
        times: list[float | None] = [generator.uniform(5, 15) for _ in range(40)]
        mean = sum(ms or 0.0 for ms in times) / 40
        done.append(record(number, fixes, mean, times_ms=times, standard_error_ms=0.05 * mean))
    found, _ = measure(done, base=(), added=FIX)
    assert found is not None
    assert found.ratio == pytest.approx(found.before_ms / found.after_ms)


def test_a_drifting_machine_is_not_taken_for_a_gain() -> None:
    drift = runs(10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 16.0)
    found, ratio = measure(drift, base=(), added=FIX)
    assert found is not None
    assert ratio is not None
    assert found.ratio == pytest.approx(1.0, abs=0.01)
    noise = noise_of(drift)
    assert noise is not None
    assert noise.worst == pytest.approx(0.2)


def test_runs_that_compare_losses_are_not_timed() -> None:
    done = [*runs(10.0, 5.0), record(3, FIX, 1.0, purpose="parity")]
    found, _ = measure(done, base=(), added=FIX)
    assert found is not None
    assert found.ratio == pytest.approx(2.0)


def test_memory_and_start_up_are_differences_of_medians() -> None:
    done = [
        record(1, (), 10.0, peak_bytes=100, peak_is="device", startup_seconds=3.0),
        record(2, FIX, 5.0, peak_bytes=160, peak_is="device", startup_seconds=23.0),
        record(3, (), 10.0, peak_bytes=120, peak_is="device", startup_seconds=3.2),
        record(4, FIX, 5.0, peak_bytes=180, peak_is="device", startup_seconds=8.0),
    ]
    assert memory_change(done, base=(), added=FIX) == (60, "device")
    assert startup_change(done, base=(), added=FIX) == pytest.approx(15.5 - 3.1)
    assert memory_change(done[:1], base=(), added=FIX) == (None, "")


def test_a_compilation_is_that_without_a_cache() -> None:
    compiled = [
        record(1, (), 10.0, startup_seconds=3.0),
        record(2, ("FX414",), 5.0, startup_seconds=23.0),
        record(3, ("FX414",), 5.0, startup_seconds=8.0),
    ]
    assert startup_change(compiled, base=(), added=("FX414",)) == pytest.approx(20.0)


def test_start_up_is_paid_back_or_never() -> None:
    faster = Measured(ratio=2.0, before_ms=10.0, after_ms=5.0)
    assert pays_after(10.0, faster) == 2000
    assert pays_after(-1.0, faster) == 0
    assert pays_after(10.0, Measured(ratio=0.5, before_ms=5.0, after_ms=10.0)) is None
    assert pays_after(None, faster) is None


def test_the_estimate_counts_runs() -> None:
    assert estimate_seconds(10.0, fixes=2, protocol=PROTOCOL) == (130.0, 170.0)
