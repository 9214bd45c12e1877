"""Training in float64 is priced where the price is known, and noted where it is not."""

from __future__ import annotations

import pytest

from torch_bottleneck.analyzers.findings.precision import DoublePrecision
from torch_bottleneck.model.codes import WhatIf
from torch_bottleneck.model.run import OptimizerFacts, Run, SourceSite

from .facts import facts

SITE = SourceSite(file="train.py", line=7)
RUN = Run(optimizers=[OptimizerFacts(cls="SGD", parameter_dtype="float64", site=SITE)])


def test_float64_on_a_cpu_has_a_price_and_a_place():
    saves = {WhatIf.SINGLE_PRECISION: 40.0}
    (found,) = DoublePrecision().find(
        facts("cpu", saves=saves, context={"optimizer.parameter_dtype": "float64"}, run=RUN)
    )
    assert found.cost_ms == 40.0
    assert found.sites == (SITE,)
    assert not found.note


def test_float64_on_a_gpu_is_a_note_without_a_price():
    (found,) = DoublePrecision().find(facts("gpu", context={"optimizer.parameter_dtype": "float64"}, run=RUN))
    assert found.cost_ms is None
    assert found.note


@pytest.mark.parametrize("context", [{"optimizer.parameter_dtype": "float32"}, {}])
def test_other_or_unknown_dtypes_are_no_finding(context):
    assert not list(DoublePrecision().find(facts("cpu", context=context, run=RUN)))
