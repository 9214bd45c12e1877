"""What computes on the host in the steps of a run with a GPU: where it stands, and the step without it."""

from __future__ import annotations

import pytest
from recorded.cases import CASES
from recorded.diagnosed import diagnosed

from torch_bottleneck.model.codes import BottleneckClass, Part
from torch_bottleneck.model.diagnosis import Diagnosis
from torch_bottleneck.model.fix import Suggestion


def first(name: str) -> tuple[Diagnosis, Suggestion]:
    found = diagnosed(CASES[name].folder)
    return found, found.suggestions[0]


@pytest.mark.parametrize(
    ("name", "group", "line", "within"),
    [
        ("thread-host-draws-h100", BottleneckClass.HOST, 65, 0.25),
        ("thread-host-targets-h100", BottleneckClass.TRANSFER, 74, 0.1),
    ],
)
def test_operators_on_the_host_are_its_work_and_the_copies_around_them_go_with_them(
    name: str, group: BottleneckClass, line: int, within: float
) -> None:
    found, fix = first(name)
    facts = CASES[name].facts
    assert found.verdict.bottleneck_class is group
    assert (fix.fix, fix.site.line if fix.site else 0) == ("FX524", line)
    assert fix.predicted_ms is not None and found.step.true_ms is not None
    measured = float(facts["measured_fixed_ms"]) / float(facts["measured_slow_ms"])
    assert fix.predicted_ms / found.step.true_ms == pytest.approx(measured, rel=within)
    assert {row.part: row.ms for row in found.budget}[Part.HOST] > 0.25 * found.step.true_ms


def test_python_between_forward_and_backward_is_told_as_what_makes_the_loss() -> None:
    found, fix = first("thread-numpy-alignment-h100")
    assert found.verdict.bottleneck_class is BottleneckClass.HOST
    assert (fix.fix, fix.finding, fix.site.line if fix.site else 0) == ("FX514", "BN901", 32)
    assert "FX504" not in {suggestion.fix for suggestion in found.suggestions}


def test_where_the_phases_fill_the_step_the_host_is_taken_to_wait_in_them() -> None:
    """The host's phases took 0.85 of their traced time, most of it waiting for the device."""
    found = diagnosed(CASES["timm-resnet50-h100"].folder)
    (fix,) = (s for s in found.suggestions if s.fix == "FX310")
    assert fix.predicted_ms == pytest.approx(34.2, rel=0.05)


def test_python_in_the_forward_has_the_line_that_its_calls_lead_to() -> None:
    """A function that calls itself reaches it by several ways, and copies to the device stand between."""
    found, fix = first("thread-listed-parameters-h100")
    assert found.verdict.bottleneck_class is BottleneckClass.HOST
    assert (fix.fix, fix.finding, fix.site.line if fix.site else 0) == ("FX514", "BN901", 59)


def test_norms_that_know_nchw_only_keep_the_conversions_around_convolutions() -> None:
    found = diagnosed(CASES["thread-instance-norms-h100"].folder)
    (fix,) = (s for s in found.suggestions if s.fix == "FX310")
    assert fix.predicted_ms is not None and found.step.true_ms is not None
    assert fix.predicted_ms > 0.95 * found.step.true_ms, "it was a loss: 0.73x"


def test_what_few_stalled_steps_add_is_not_taken_for_slow_dispatch() -> None:
    found, fix = first("thread-frozen-encoder-h100")
    facts = CASES["thread-frozen-encoder-h100"].facts
    assert fix.fix == "FX110" and fix.predicted_ms is not None and found.step.true_ms is not None
    measured = float(facts["measured_fixed_ms"]) / float(facts["measured_slow_ms"])
    assert fix.predicted_ms / found.step.true_ms == pytest.approx(measured, rel=0.15)


def test_a_device_that_is_never_idle_is_not_made_faster_until_the_host_decides() -> None:
    """Launch-bound it was said to be, with the kernels at half their time."""
    found = diagnosed(CASES["thread-einsum-attention-h100"].folder)
    assert found.verdict.bottleneck_class is BottleneckClass.COMPUTE
    assert "leaf_attention.py:45" in found.verdict.headline
