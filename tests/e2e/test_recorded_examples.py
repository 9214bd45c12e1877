"""Recorded runs of the examples, analysed anew: the verdict is the class, the prediction near the truth.

tests/benchmarks/gallery.py recorded them; their traces are cut to two steps, their other facts whole.
"""

from __future__ import annotations

import pytest
from recorded.cases import CASES, Case
from recorded.diagnosed import diagnosis_of

EXAMPLES = sorted(name for name in CASES if name.startswith("example-"))

# Predicted over measured gain of the classes that host-side causes decide; a kernel's speed in another
# precision is the device's to tell, not the trace's.
PREDICTED = sorted(
    name
    for name in EXAMPLES
    if CASES[name].facts["expected_class"] in ("allocator-thrashing", "transfer-bound")
)


def test_there_are_recorded_examples() -> None:
    assert EXAMPLES


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_verdict_is_the_class_of_the_example(name: str) -> None:
    assert diagnosis_of(name).verdict.bottleneck_class.value == CASES[name].facts["expected_class"]


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_budget_adds_up(name: str) -> None:
    diagnosis = diagnosis_of(name)
    assert diagnosis.step.true_ms is not None
    assert sum(line.ms for line in diagnosis.budget) == pytest.approx(diagnosis.step.true_ms, rel=1e-3)


@pytest.mark.parametrize("name", PREDICTED)
def test_the_step_without_the_cause_is_near_the_fixed_twin(name: str) -> None:
    case: Case = CASES[name]
    expected = case.facts["expected_class"]
    cause = next(c for c in diagnosis_of(name).causes if c.bottleneck_class.value == expected)
    assert cause.predicted_ms == pytest.approx(float(case.facts["measured_fixed_ms"]), rel=0.25)


@pytest.mark.parametrize(
    ("name", "bound"), [("example-transfer-bound", True), ("example-compute-bound", False)]
)
def test_bf16_is_only_bounded_where_convolutions_run_on_nchw(name: str, bound: bool) -> None:
    (suggestion,) = [s for s in diagnosis_of(name).suggestions if s.fix == "FX303"]
    assert suggestion.bound is bound
    assert ("try channels_last first" in suggestion.basis) is bound


def test_channels_last_is_priced_with_the_batch_norms_that_nchw_slows_down() -> None:
    """Measured: 1.34 times as fast, of which the layout-change kernels alone would make 1.06."""
    diagnosis = diagnosis_of("example-transfer-bound")
    (suggestion,) = [s for s in diagnosis.suggestions if s.fix == "FX310"]
    assert diagnosis.step.true_ms is not None
    assert suggestion.predicted_ms is not None
    assert diagnosis.step.true_ms / suggestion.predicted_ms == pytest.approx(1.34, rel=0.1)


@pytest.mark.parametrize(("fix", "measured"), [("FX303", 1.56), ("FX414", 1.49)])
def test_what_holds_less_memory_is_only_bounded_where_the_allocator_runs_short(
    fix: str, measured: float
) -> None:
    diagnosis = diagnosis_of("example-allocator-thrashing")
    (suggestion,) = [s for s in diagnosis.suggestions if s.fix == fix]
    assert diagnosis.step.true_ms is not None
    assert suggestion.predicted_ms is not None
    assert suggestion.bound
    assert diagnosis.step.true_ms / suggestion.predicted_ms > measured
    assert diagnosis.combination is not None
    assert not diagnosis.combination.bound, "beside segments that grow nothing of it is open"


def test_what_the_run_shows_not_to_apply_is_not_tried() -> None:
    """Nothing is copied to the device there, and nothing compiled: `verify --all` would only lose time."""
    offered = {s.fix for s in diagnosis_of("example-allocator-thrashing").applicable}
    assert offered
    assert not offered & {"FX103", "FX407", "FX410"}
    there = diagnosis_of("example-input-bound")
    copied = {s.fix for s in (*there.suggestions, *there.applicable)}
    assert "FX103" in copied
