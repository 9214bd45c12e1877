"""Recorded runs of the examples, analysed anew: the verdict is the class, the prediction near the truth.

tests/benchmarks/gallery.py recorded them; their traces are cut to two steps, their other facts whole.
"""

from __future__ import annotations

from functools import cache

import pytest
from recorded.cases import CASES, Case

from torch_bottleneck.diagnose import diagnose_paths
from torch_bottleneck.model.diagnosis import Diagnosis

EXAMPLES = sorted(name for name in CASES if name.startswith("example-"))

# Predicted over measured gain of the classes that host-side causes decide; a kernel's speed in another
# precision is the device's to tell, not the trace's.
PREDICTED = sorted(
    name
    for name in EXAMPLES
    if CASES[name].facts["expected_class"] in ("allocator-thrashing", "transfer-bound")
)


@cache
def diagnosis_of(name: str) -> Diagnosis:
    return diagnose_paths([CASES[name].folder])


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
