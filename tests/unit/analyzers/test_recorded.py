"""Every recorded run, whoever captured it: a diagnosis whose parts add up and whose prices are possible."""

from __future__ import annotations

import pytest
from recorded.cases import CASES
from recorded.diagnosed import as_measured

from torch_bottleneck.model.codes import BottleneckClass, WhatIf


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_budget_adds_up_and_no_cause_costs_more_than_the_step(case):
    diagnosis = as_measured(case)
    true_ms = diagnosis.step.true_ms
    if true_ms is None:
        assert diagnosis.memory, "only memory can be told without a step"
        return
    assert sum(line.ms for line in diagnosis.budget) == pytest.approx(true_ms, rel=1e-6)
    assert all(0 <= cause.cost_ms <= true_ms * (1 + 1e-9) for cause in diagnosis.causes)
    assert all(answer.step_ms >= 0 for answer in diagnosis.what_ifs)
    recomputes = any(answer.question is WhatIf.RECOMPUTE_GONE for answer in diagnosis.what_ifs)
    assert recomputes == ("recompute" in case.name), "no other of them checkpoints"
    verdict = diagnosis.verdict
    if verdict.bottleneck_class is BottleneckClass.UNDETERMINED:
        assert verdict.remedy
    else:
        assert diagnosis.causes[0].bottleneck_class is verdict.bottleneck_class
        assert verdict.bottleneck_class.value in verdict.headline


CPU_CASES = {name: case for name, case in CASES.items() if case.facts.get("device") == "CPU"}


@pytest.mark.parametrize("case", CPU_CASES.values(), ids=CPU_CASES)
def test_a_run_without_a_gpu_gets_the_class_that_it_is_known_to_be(case):
    diagnosis = as_measured(case)
    assert diagnosis.verdict.bottleneck_class.value == case.facts["expected_class"]
